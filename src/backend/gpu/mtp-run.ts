/** What predicts further ahead, on the GPU: dispatches of its own over the same buffers, run by themselves. */

import { NonFiniteError } from '../../errors.ts';
import { type Graph, type MtpSection, mtpOperations, type Operation } from '../../model/graph.ts';
import type { MtpRunner, Step } from '../backend.ts';
import type { RunShape } from './builder.ts';
import { allFinite } from './finite.ts';
import type { Recorder } from './recorder.ts';

/** f32 of a buffer, from its beginning. */
export interface ReadPart {
  readonly name: string;
  readonly count: number;
}

/** What the executable does for it. */
export interface MtpHost {
  /** What the model's last run gave of the section's `given` value. */
  given(): Float32Array;
  /** Puts a step of some operations where the next submission reads it. */
  begin(step: Step, operations: readonly Operation[]): { readonly shape: RunShape };
  encoder(): GPUCommandEncoder;
  /** Submits, and reads parts one after the other. */
  read(encoder: GPUCommandEncoder, parts: readonly ReadPart[]): Promise<Float32Array>;
}

export function gpuMtpRunner(graph: Graph, section: MtpSection, recorder: Recorder, host: MtpHost): MtpRunner {
  const operations = mtpOperations(graph);
  const width = (name: string) => graph.widths[name] as number;
  return {
    given: () => host.given(),
    async run(step) {
      const { shape } = host.begin(step, operations);
      const encoder = host.encoder();
      recorder.record(encoder, step.mode, shape);
      const logits = { name: section.logits, count: shape.wanted * width(section.logits) };
      const hidden = { name: section.hidden, count: shape.rows * width(section.hidden) };
      const made = await host.read(encoder, [logits, hidden]);
      if (!allFinite(made)) {
        const { mode, positions, tokens } = step;
        throw new NonFiniteError(
          `ahead of the last layer (MTP): a value is not finite, in the ${mode} of ${tokens.length} rows from position ` +
            `${positions[0]} on; the weights are damaged or the model does not fit its format`,
          { data: { mode, position: positions[0] } },
        );
      }
      return { logits: made.subarray(0, logits.count), hidden: made.subarray(logits.count) };
    },
  };
}
