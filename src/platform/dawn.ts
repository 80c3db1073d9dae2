/**
 * WebGPU in Node: Dawn, from the optional package `webgpu`, and which of the machine's adapters it opens. Dawn finds an
 * adapter by a part of its name and lists the names only in the error for a name that no adapter has.
 */

import { Refusal } from '../errors.ts';
import type { GpuChoice } from './platform.ts';

/** What the package `webgpu` exports. */
interface DawnModule {
  readonly create: (flags: string[]) => GPU;
  readonly globals: object;
}

export interface DawnAdapter {
  /** The driver's interface: `vulkan`, `metal`, `d3d12` … */
  readonly backend: string;
  readonly name: string;
}

/** Chrome's gates that kernels may use; none makes a kernel that passes validation do anything else. */
const gates = ['allow_unsafe_apis', 'vulkan_enable_f16_on_nvidia'];
/** Kernels read no workgroup memory that they have not written: nobody needs to clear it each time. */
const uncleared = 'disable_workgroup_init';
/** What costs kernels their bounds checks and commands their validation. */
const unchecked = ['skip_validation', 'disable_robustness'];
/** Exact timestamps: a program of one's own has no secrets from itself. */
const disabled = 'disable-dawn-features=timestamp_quantization';

/** A card is listed once for each interface; these are the ones that Dawn is made for. */
const preferredBackends = ['metal', 'd3d12', 'vulkan'];

/** No adapter's name has this in it. */
const NOBODY = 'conclave lists adapters';

let loaded: Promise<DawnModule | undefined> | undefined;
/** By the flags that they were made with. Never given up: Dawn ends the process when one is collected before its devices. */
const instances = new Map<string, GPU>();

function loadDawn(): Promise<DawnModule | undefined> {
  loaded ??= import('webgpu').then(
    (module) => {
      Object.assign(globalThis, module.globals);
      return module as DawnModule;
    },
    () => undefined,
  );
  return loaded;
}

/**
 * Dawn, once for this thread and choice; undefined without the package.
 * @param choice whose `number` is of an adapter in {@link readAdapters}; absent: the one that Dawn takes for the fastest
 * @throws Refusal `refused` for a number that cannot be had
 */
export async function openDawn(choice: GpuChoice = {}): Promise<GPU | undefined> {
  const dawn = await loadDawn();
  if (dawn === undefined) return undefined;
  const { number } = choice;
  const toggles = [...gates, uncleared, ...(choice.unchecked === true ? unchecked : [])];
  return instance(dawn, [
    `enable-dawn-features=${toggles.join()}`,
    disabled,
    ...(number === undefined ? [] : adapterFlags(await listAdapters(dawn), number)),
  ]);
}

function instance({ create }: DawnModule, flags: readonly string[]): GPU {
  const key = JSON.stringify(flags);
  let made = instances.get(key);
  if (made === undefined) {
    made = create([...flags]);
    instances.set(key, made);
  }
  return made;
}

async function listAdapters(dawn: DawnModule): Promise<readonly DawnAdapter[]> {
  try {
    await instance(dawn, [`adapter=${NOBODY}`]).requestAdapter();
  } catch (error) {
    return readAdapters(error instanceof Error ? error.message : String(error));
  }
  // Without any adapter nothing is listed.
  return [];
}

/** The adapters that Dawn names when it finds none of the name asked for, in its order, each card once. */
export function readAdapters(message: string): readonly DawnAdapter[] {
  const all = Array.from(message.matchAll(/backend: '([^']*)', name: '(.*)'/g), ([, backend = '', name = '']) => ({
    backend,
    name,
  }));
  const backend =
    preferredBackends.find((preferred) => all.some((adapter) => adapter.backend === preferred)) ?? all[0]?.backend;
  return all.filter((adapter) => adapter.backend === backend);
}

/**
 * What makes Dawn open the adapter of that number.
 * @throws Refusal `refused` when there is none, or when an earlier one answers to its name
 */
export function adapterFlags(adapters: readonly DawnAdapter[], number: number): readonly string[] {
  const wanted = adapters[number];
  if (wanted === undefined) {
    const list = adapters.map(({ name }, index) => `gpu:${index} ${name}`).join(', ');
    throw new Refusal(
      adapters.length === 0
        ? `gpu:${number} was asked for, and no GPU was found: check its Vulkan, Metal or D3D12 driver, or use --device cpu`
        : `gpu:${number} was asked for, and this machine has ${list}; choose one of these, or use --device gpu`,
      { data: { asked: number, adapters: adapters.map(({ name }) => name) } },
    );
  }
  const first = adapters.findIndex(({ name }) => name.includes(wanted.name));
  if (first !== number) {
    throw new Refusal(
      `gpu:${number} (${wanted.name}) cannot be told from gpu:${first} (${adapters[first]?.name}): the package webgpu opens` +
        ' adapters by name only; start Conclave where the driver shows that one alone, as a container can, and use --device gpu',
      { data: { asked: number, adapters: adapters.map(({ name }) => name) } },
    );
  }
  return [`backend=${wanted.backend}`, `adapter=${wanted.name}`];
}
