/** Every buffer of a program on the device, by what a dispatch binds. */

import { InternalError } from '../../errors.ts';
import { ropeAngles, ropeTable } from '../../model/rope.ts';
import type { PrepareRequest } from '../backend.ts';
import { ABSENT, type Binding } from './builder.ts';
import type { Gpu } from './device.ts';
import type { GpuProgram } from './layout.ts';
import { readVector } from './store.ts';

const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const STORAGE = 0x80;

/** As `sampling-buffer.ts` describes them. */
export interface SamplingBuffers {
  readonly settings: GPUBuffer;
  readonly slots: GPUBuffer;
  readonly drawn: GPUBuffer;
}

/** Bytes of a buffer that is to hold so many. */
export function bufferBytes(size: number): number {
  return Math.ceil(size / 16) * 16;
}

interface CacheBuffers {
  readonly keys: GPUBuffer;
  readonly values: GPUBuffer;
}

/** Every buffer of a program on the device. */
export class DeviceBuffers {
  readonly weights = new Map<string, GPUBuffer>();
  readonly bytes: number;
  readonly step: GPUBuffer;
  /** Absent where no tokens are drawn. */
  readonly sampling: SamplingBuffers | undefined;
  readonly #slots: readonly GPUBuffer[];
  readonly #slotOf: ReadonlyMap<string, number>;
  readonly #cache: readonly (CacheBuffers | undefined)[];
  readonly #ropes: ReadonlyMap<string, GPUBuffer>;
  /** By layer: where its experts lie in their slab. */
  readonly #slotTables: ReadonlyMap<number, GPUBuffer>;
  readonly #all: readonly GPUBuffer[];

  private constructor(made: {
    readonly weights: ReadonlyMap<string, GPUBuffer>;
    readonly step: GPUBuffer;
    readonly sampling: SamplingBuffers | undefined;
    readonly slots: readonly GPUBuffer[];
    readonly slotOf: ReadonlyMap<string, number>;
    readonly cache: readonly (CacheBuffers | undefined)[];
    readonly ropes: ReadonlyMap<string, GPUBuffer>;
    readonly slotTables: ReadonlyMap<number, GPUBuffer>;
  }) {
    for (const [name, buffer] of made.weights) this.weights.set(name, buffer);
    this.step = made.step;
    this.sampling = made.sampling;
    this.#slots = made.slots;
    this.#slotOf = made.slotOf;
    this.#cache = made.cache;
    this.#ropes = made.ropes;
    this.#slotTables = made.slotTables;
    this.#all = [
      ...made.weights.values(),
      made.step,
      ...(made.sampling === undefined ? [] : Object.values(made.sampling)),
      ...made.slots,
      ...made.cache.flatMap((layer) => (layer === undefined ? [] : [layer.keys, layer.values])),
      ...made.ropes.values(),
      ...made.slotTables.values(),
    ];
    this.bytes = this.#all.reduce((sum, { size }) => sum + size, 0);
  }

  static async make(gpu: Gpu, request: PrepareRequest, program: GpuProgram): Promise<DeviceBuffers> {
    const { device } = gpu;
    const buffer = (label: string, size: number) =>
      device.createBuffer({ label, size: bufferBytes(size), usage: STORAGE | COPY_DST | COPY_SRC });
    const ropes = await ropeBuffers(request, program, buffer, device);
    return gpu.guarded(
      () =>
        new DeviceBuffers({
          weights: new Map([...program.weightBytes].map(([name, bytes]) => [name, buffer(name, bytes)])),
          step: buffer('step', program.step.words * 4),
          sampling: program.sampling && {
            settings: buffer('settings of draws', program.sampling.settingsWords * 4),
            slots: buffer('slots of draws', program.sampling.slots * program.sampling.slotWords * 4),
            drawn: buffer('drawn tokens', program.sampling.drawnWords * 4),
          },
          slots: program.slots.map((bytes, index) => buffer(`activations ${index}`, bytes)),
          slotOf: program.slotOf,
          cache: program.cache.map(
            (bytes, layer) =>
              bytes && {
                keys: buffer(`keys of layer ${layer}`, bytes.keys),
                values: buffer(`values of layer ${layer}`, bytes.values),
              },
          ),
          ropes,
          slotTables: new Map(
            [...program.slotTables].map(([layer, experts]) => {
              const table = buffer(`slots of layer ${layer}`, experts * 4);
              device.queue.writeBuffer(table, 0, new Uint32Array(experts).fill(ABSENT));
              return [layer, table];
            }),
          ),
        }),
    );
  }

  destroy(): void {
    for (const buffer of this.#all) buffer.destroy();
  }

  named(name: string): GPUBuffer | undefined {
    const slot = this.#slotOf.get(name);
    return slot === undefined ? undefined : this.#slots[slot];
  }

  of(binding: Binding): GPUBuffer {
    const found = this.#find(binding);
    if (found === undefined) throw new InternalError(`no buffer was made for the binding ${JSON.stringify(binding)}`);
    return found;
  }

  #find(binding: Binding): GPUBuffer | undefined {
    switch (binding.kind) {
      case 'value':
      case 'buffer':
        return this.named(binding.name);
      case 'weight':
        return this.weights.get(binding.name);
      case 'cache':
        return this.#cache[binding.layer]?.[binding.part];
      case 'slots':
        return this.#slotTables.get(binding.layer);
      case 'rope':
        return this.#ropes.get(JSON.stringify(binding.rope));
      case 'step':
        return this.step;
      case 'sampling':
        return this.sampling?.[binding.part];
    }
  }
}

/** Cosines and sines of every position of the context, for each kind of rotation that a dispatch binds. */
async function ropeBuffers(
  { plan, weights, sources }: PrepareRequest,
  program: GpuProgram,
  buffer: (label: string, size: number) => GPUBuffer,
  device: GPUDevice,
): Promise<Map<string, GPUBuffer>> {
  const factors = weights.get('ropeFactors');
  const made = new Map<string, GPUBuffer>();
  for (const rope of program.ropes) {
    const own =
      rope.scaling.kind === 'factors' && factors !== undefined
        ? await readVector(factors, (index) => sources[index] as PrepareRequest['sources'][number])
        : undefined;
    const table = ropeTable(rope, own);
    const pairs = rope.dimensions / 2;
    const angles = new Float32Array(plan.context * pairs * 2);
    for (let position = 0; position < plan.context; position++) {
      ropeAngles(table, position, { cos: angles, sin: angles.subarray(pairs), offset: position * pairs * 2 });
    }
    const target = buffer('rope', angles.byteLength);
    device.queue.writeBuffer(target, 0, angles);
    made.set(JSON.stringify(rope), target);
  }
  return made;
}
