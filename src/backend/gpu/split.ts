/** Sets up what a model with split experts needs beside its program: slots, what brings experts there, and who computes the others. */

import { InternalError, SourceError } from '../../errors.ts';
import { ExpertCache, PIN_AFTER_TOKENS } from '../../experts/cache.ts';
import { Prefetch } from '../../experts/prefetch.ts';
import type { Platform } from '../../platform/platform.ts';
import type { PrepareRequest } from '../backend.ts';
import type { Binding } from './builder.ts';
import type { Gpu } from './device.ts';
import { ExpertCarrier } from './expert-carrier.ts';
import { MemoryFeed } from './expert-feed.ts';
import { FileFeed } from './file-feed.ts';
import type { GpuProgram } from './layout.ts';
import { Pulse } from './pulse.ts';
import type { Recorder } from './recorder.ts';
import { CachedResidency } from './residency.ts';
import { SplitRun } from './split-run.ts';

/**
 * @returns undefined where no experts are split
 * @throws OutOfMemoryError `out_of_memory`; `signal.reason` when aborted
 */
export async function makeSplit(
  request: PrepareRequest,
  made: {
    readonly gpu: Gpu;
    readonly program: GpuProgram;
    readonly recorder: Recorder;
    readonly platform: Platform;
    readonly bufferOf: (binding: Binding) => GPUBuffer;
  },
): Promise<SplitRun | undefined> {
  const { plan, spec, weights, experts, routing, expertUses, onFault, signal } = request;
  const onFileFault = (error: SourceError) => onFault?.(fromMemory(error));
  const { gpu, program, recorder, platform, bufferOf } = made;
  const split = plan.experts;
  if (split === undefined) return undefined;
  const { layers, slabs, policy, uploads, passes, hostPairs, prefetch, pins, slots } = split;
  const first = spec.layers[layers[0] as number]?.feedForward;
  const home = experts?.home?.bind(experts);
  if (experts === undefined || home === undefined || first?.kind !== 'moe') {
    throw new InternalError('experts are split, and nobody computes those that the GPU does not hold');
  }
  const { experts: count, used } = first.moe;
  const cache = new ExpertCache({
    policy,
    experts: count,
    groups: slabs.filter(({ slots }) => slots > 0),
    uses: expertUses,
    pin: pins === 0 ? undefined : { afterTokens: PIN_AFTER_TOKENS, share: pins / slots },
  });
  const residency = new CachedResidency(cache, uploads, prefetch === 'off' ? undefined : new Prefetch(cache, prefetch));
  const file = await openFile(request, { layers, platform, onFileFault });
  const memory = new MemoryFeed({ home, copyBytes: (from, to) => platform.copyBytes(from, to) });
  let carrier: ExpertCarrier;
  try {
    carrier = await ExpertCarrier.make({
      gpu,
      slabs,
      weights,
      bufferOf: (name) => bufferOf({ kind: 'weight', name }),
      feeds: { memory, file },
      onFileFault,
    });
  } catch (error) {
    await file?.close();
    throw error;
  }
  const slabOf = new Map(slabs.flatMap((slab) => slab.layers.map((layer) => [layer, slab] as const)));
  let run: SplitRun | undefined;
  try {
    run = new SplitRun({
      gpu,
      recorder,
      bufferOf,
      residency,
      carrier,
      elsewhere: experts,
      routing,
      // There the processor would count, instead of computing experts.
      pulse: gpu.software ? undefined : await Pulse.make(gpu),
      pauses: program.pauses,
      foreseen: program.foreseen,
      shape: {
        hidden: spec.hidden,
        used,
        experts: count,
        shared: first.moe.shared !== undefined,
        rows: Math.max(plan.maxRows.prompt, plan.maxRows.step),
        hostPairs,
        passes,
        passing: (layer) => {
          const { slots, passing } = slabOf.get(layer) as (typeof slabs)[number];
          return { first: slots, count: passing };
        },
      },
    });
    await run.fill(signal);
    return run;
  } catch (error) {
    if (run === undefined) carrier.destroy();
    else run.abandon();
    // Before the device is closed: files may still be being read into its memory.
    await (run ?? carrier).settled();
    throw error;
  }
}

/** The model's file as a feed, where there is one that can be read. */
async function openFile(
  { weights, sources }: PrepareRequest,
  how: {
    readonly layers: readonly number[];
    readonly platform: Platform;
    readonly onFileFault: (error: SourceError) => void;
  },
): Promise<FileFeed | undefined> {
  const { layers, platform, onFileFault } = how;
  try {
    return await FileFeed.open({ weights, sources, layers }, platform);
  } catch (error) {
    if (!(error instanceof SourceError)) throw error;
    onFileFault(error);
    return undefined;
  }
}

/** Nothing is lost but time: all experts have their homes. */
function fromMemory(error: SourceError): SourceError {
  const { message, data } = error;
  return new SourceError(`${message}; from now on experts are copied to the GPU from memory, which is slower`, {
    data,
    cause: error,
  });
}
