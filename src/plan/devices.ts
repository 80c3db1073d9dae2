/** Which devices a plan is for: what was asked for, held against what the machine has. */

import type { AdapterFacts } from '../backend/gpu/device.ts';
import { UsageError } from '../errors.ts';
import type { DeviceName, PlanOptions } from './plan.ts';
import { showPlural } from './show.ts';

/** Where a model is to run. */
export interface Placement {
  readonly device: DeviceName;
  /** Layers on the GPU, from the first on; `auto`: all that fit. Of interest where `device` is `gpu`. */
  readonly gpuLayers: number | 'auto';
  /** Why it is the CPU although `auto` was asked for. */
  readonly reason?: string;
}

/** What is known of the GPU when a plan is made. */
export interface GpuFacts {
  readonly adapter?: AdapterFacts;
  /** Why `auto` has none to use: none was found, or it has failed. */
  readonly noGpu?: string;
}

const devicePattern = /^(?:auto|cpu|gpu|gpu:\d{1,3}|reference)$/;

/** What `device` may be; also the flag's check. */
export function isDevice(value: unknown): boolean {
  return typeof value === 'string' && devicePattern.test(value);
}

/** The number in `gpu:N`. */
export function adapterNumber({ device }: PlanOptions): number | undefined {
  return device?.startsWith('gpu:') === true ? Number(device.slice('gpu:'.length)) : undefined;
}

/** −1 is how other engines' flags say `auto`. */
function layersAsked({ gpuLayers }: PlanOptions): number | 'auto' | undefined {
  return gpuLayers === -1 ? 'auto' : gpuLayers;
}

/** What stands for `device`, without the number: somebody who gives layers to the GPU means it. */
function deviceAsked(options: PlanOptions): DeviceName | 'auto' {
  const { device } = options;
  if (device === undefined) return (layersAsked(options) ?? 0) === 0 ? 'cpu' : 'gpu';
  return device.startsWith('gpu') ? 'gpu' : (device as DeviceName | 'auto');
}

/** Whether a GPU is to be looked for: `asked`: it must be there; `auto`: the CPU serves as well. */
export function gpuUse(options: PlanOptions): 'asked' | 'auto' | 'none' {
  if (layersAsked(options) === 0) return 'none';
  const device = deviceAsked(options);
  return device === 'gpu' ? 'asked' : device === 'auto' ? 'auto' : 'none';
}

/** @throws UsageError `usage` for options that ask for two things at once */
export function checkDevices(options: PlanOptions): void {
  const { device, gpuLayers, gpuMemoryBytes } = options;
  if ((device === 'cpu' || device === 'reference') && gpuLayers !== undefined && gpuLayers !== 0) {
    throw new UsageError(
      `gpuLayers (-g) puts ${typeof gpuLayers === 'number' && gpuLayers > 0 ? showPlural(gpuLayers, 'layer') : 'layers'} on a GPU, and device ` +
        `(--device) is ${device}; leave one of them out`,
      { data: { option: 'gpuLayers', device } },
    );
  }
  if (gpuUse(options) !== 'none') return;
  const experts = expertOption(options);
  const given: readonly (readonly [option: string, flag: string, is: boolean])[] = [
    ['gpuMemoryBytes', '--gpu-memory', gpuMemoryBytes !== undefined],
    [experts?.option ?? '', experts?.flag ?? '', experts !== undefined],
    ['gpuChecks', '--gpu-checks', options.gpuChecks === true],
  ];
  const found = given.find(([, , is]) => is);
  if (found === undefined) return;
  const [option, flag] = found;
  const todo =
    gpuLayers === 0
      ? ', and gpuLayers (-g) is 0; leave one of them out'
      : ': ask for one with device gpu or auto, or with gpuLayers (-g)';
  throw new UsageError(`${option} (${flag}) is of use only where layers run on a GPU${todo}`, { data: { option } });
}

/** Which option splits experts, and the flag for it; of two the one that leaves more to the CPU. */
export function expertOption({
  expertCache,
  cpuMoe,
}: PlanOptions): { readonly option: 'cpuMoe' | 'expertCache'; readonly flag: string } | undefined {
  if (cpuMoe !== undefined) return { option: 'cpuMoe', flag: cpuMoe === true ? '--cpu-moe' : '--n-cpu-moe' };
  return expertCache === undefined ? undefined : { option: 'expertCache', flag: '--expert-cache' };
}

/**
 * Where a plan's layers go.
 * @throws UsageError `usage` as {@link checkDevices}
 */
export function placementFor(options: PlanOptions, { adapter, noGpu }: GpuFacts): Placement {
  checkDevices(options);
  const gpuLayers = layersAsked(options) ?? 'auto';
  switch (gpuUse(options)) {
    case 'asked':
      return { device: 'gpu', gpuLayers };
    case 'none':
      return { device: options.device === 'reference' ? 'reference' : 'cpu', gpuLayers: 0 };
    case 'auto': {
      const reason = noGpu ?? whyNot(adapter);
      return reason === undefined ? { device: 'gpu', gpuLayers } : { device: 'cpu', gpuLayers: 0, reason };
    }
  }
}

/** Why the GPU cannot serve, out of the error that said so: without what follows from it, or is to be done about it. */
export function reasonOf({ message }: Error): string {
  const line = message.split('\n')[0] as string;
  const end = line.lastIndexOf('; ');
  return (end < 0 ? line : line.slice(0, end)).replace(/,? or use --device cpu$/, '');
}

function whyNot(adapter: AdapterFacts | undefined): string | undefined {
  if (adapter === undefined) return 'no GPU was found';
  return adapter.software ? `the only GPU found is software (${adapter.name})` : undefined;
}
