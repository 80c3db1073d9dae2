/**
 * Puts matrices that were copied to the device as they are, as the CPU stores them or as the file has them, into planes
 * there: the host only copies bytes. Owns the pipelines, made once, and the buffer of entries that say which matrices.
 */

import { InternalError } from '../../errors.ts';
import type { FormatId } from '../../quant/index.ts';
import { cpuFormat } from '../cpu/formats.ts';
import type { Gpu } from './device.ts';
import { acceptsWeight, gpuFormat } from './formats/index.ts';
import { type GpuFormat, planeWords } from './formats.ts';
import { ENTRY_WORDS, REPACK_THREADS, repackCode, sourceBytes, threadsOf } from './repack-code.ts';

const COPY_DST = 0x8;
const STORAGE = 0x80;
const COMPUTE = 0x4;

/** Entries of a dispatch at the most: what one binding shows of the buffer. */
const BATCH = 256;
const BATCH_BYTES = BATCH * ENTRY_WORDS * 4;
/** What an offset of a binding must be a multiple of on any device. */
const ALIGN_BYTES = 256;
/** Of entries that are written before the first ones are written over. */
const RING_BYTES = 2 ** 18;
/** Of the buffer of entries. */
export const REPACK_ENTRIES_BYTES = RING_BYTES + BATCH_BYTES;
/** Workgroups in x; where a matrix takes more they go on in y. */
const WORKGROUPS_X = 256;

/** How the source holds matrices: in the CPU's groups of four rows, or in rows as the file does. */
export type SourceLayout = 'groups' | 'rows';

/** A kind of matrix: what a pipeline is made for. */
export interface RepackKind {
  readonly format: FormatId;
  readonly columns: number;
}

export interface RepackJob extends RepackKind {
  readonly rows: number;
  /** Where the matrix begins in the source: bytes, a multiple of 4. */
  readonly source: number;
  /** Other than the source. */
  readonly target: GPUBuffer;
  /** Where its planes begin there: bytes, a multiple of 4. */
  readonly targetOffset: number;
}

interface Kernel {
  readonly format: GpuFormat;
  readonly columns: number;
  readonly pipeline: GPUComputePipeline;
}

/** Jobs of one dispatch. */
interface Batch {
  readonly kernel: Kernel;
  readonly target: GPUBuffer;
  readonly jobs: readonly RepackJob[];
}

export class Repacker {
  readonly #gpu: Gpu;
  readonly #layout: SourceLayout;
  readonly #bindings: GPUBindGroupLayout;
  readonly #kernels: ReadonlyMap<string, Kernel>;
  readonly #entries: GPUBuffer;
  /** By source and target. */
  readonly #groups = new WeakMap<GPUBuffer, WeakMap<GPUBuffer, GPUBindGroup>>();
  #next = 0;

  private constructor(made: {
    readonly gpu: Gpu;
    readonly layout: SourceLayout;
    readonly bindings: GPUBindGroupLayout;
    readonly kernels: ReadonlyMap<string, Kernel>;
    readonly entries: GPUBuffer;
  }) {
    this.#gpu = made.gpu;
    this.#layout = made.layout;
    this.#bindings = made.bindings;
    this.#kernels = made.kernels;
    this.#entries = made.entries;
  }

  /** Compiles what the kinds need. */
  static make(gpu: Gpu, kinds: readonly RepackKind[], layout: SourceLayout): Promise<Repacker> {
    const { device } = gpu;
    return gpu.guarded(async () => {
      const types = ['read-only-storage', 'storage', 'read-only-storage'] as const;
      const bindings = device.createBindGroupLayout({
        entries: types.map((type, binding) => ({
          binding,
          visibility: COMPUTE,
          buffer: { type, hasDynamicOffset: binding === 2 },
        })),
      });
      const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [bindings] });
      const byKey = new Map(kinds.map((kind) => [keyOf(kind), kind]));
      const kernels = await Promise.all(
        [...byKey].map(async ([key, kind]): Promise<[string, Kernel]> => {
          const { columns } = kind;
          const { format, segments } = layoutsOf(kind);
          const label = `${format.id} of ${columns} columns into planes`;
          const code = repackCode({ format, columns, ...(layout === 'groups' ? { segments } : {}) });
          const module = device.createShaderModule({ code, label });
          const compute = { module, entryPoint: 'main' };
          const pipeline = await device.createComputePipelineAsync({ label, layout: pipelineLayout, compute });
          return [key, { format, columns, pipeline }];
        }),
      );
      const entries = device.createBuffer({
        label: 'matrices to be put into planes',
        size: REPACK_ENTRIES_BYTES,
        usage: STORAGE | COPY_DST,
      });
      return new Repacker({ gpu, layout, bindings, kernels: new Map(kernels), entries });
    });
  }

  /** Bytes that a matrix takes in the source. */
  sourceBytes(matrix: RepackKind & { readonly rows: number }): number {
    return sourceBytes(this.#kernelOf(matrix).format, matrix, this.#layout);
  }

  /**
   * Records the jobs in one pass of `encoder`. They may be in any order and of any kinds that were given to `make`; none may
   * write where another does. The entries are written now, and stay until {@link RING_BYTES} more of them have
   * been, which takes 85 full dispatches at the least: `encoder` must be submitted before.
   */
  encode(encoder: GPUCommandEncoder, { raw, jobs }: { readonly raw: GPUBuffer; readonly jobs: readonly RepackJob[] }) {
    const batches = this.#batches(raw, jobs);
    if (batches.length === 0) return;
    const offsets = this.#write(batches);
    const pass = encoder.beginComputePass();
    let last: Kernel | undefined;
    for (const [index, { kernel, target, jobs }] of batches.entries()) {
      const most = jobs.reduce((rows, job) => Math.max(rows, job.rows), 0);
      const { x, y } = workgroupsOf(threadsOf(kernel.format, { rows: most, columns: kernel.columns }));
      if (kernel !== last) pass.setPipeline(kernel.pipeline);
      last = kernel;
      pass.setBindGroup(0, this.#groupOf(raw, target), [offsets[index] as number]);
      pass.dispatchWorkgroups(x, y, jobs.length);
    }
    pass.end();
  }

  destroy(): void {
    this.#entries.destroy();
  }

  /** Jobs by kernel and target, at most {@link BATCH} together. */
  #batches(raw: GPUBuffer, jobs: readonly RepackJob[]): Batch[] {
    const sorted = new Map<Kernel, Map<GPUBuffer, RepackJob[]>>();
    for (const job of jobs) {
      const kernel = this.#kernelOf(job);
      if (job.rows === 0) continue;
      this.#check(raw, job, kernel);
      const targets = getOr(sorted, kernel, () => new Map<GPUBuffer, RepackJob[]>());
      getOr(targets, job.target, () => []).push(job);
    }
    const batches: Batch[] = [];
    for (const [kernel, targets] of sorted) {
      for (const [target, all] of targets) {
        for (let at = 0; at < all.length; at += BATCH)
          batches.push({ kernel, target, jobs: all.slice(at, at + BATCH) });
      }
    }
    return batches;
  }

  /** Nothing but these checks keeps the kernel within the buffers. */
  #check(raw: GPUBuffer, job: RepackJob, { format, columns }: Kernel): void {
    const { rows, source, target, targetOffset } = job;
    const bytes = sourceBytes(format, job, this.#layout);
    const planes = rows * planeWords(format, columns).rowWords * 4;
    const fits = (at: number, size: number, buffer: GPUBuffer) => at >= 0 && at % 4 === 0 && at + size <= buffer.size;
    if (!Number.isInteger(rows) || rows < 0 || !fits(source, bytes, raw) || !fits(targetOffset, planes, target)) {
      throw new InternalError(
        `${rows} rows of ${columns} columns of ${format.id}: ${bytes} bytes from byte ${source} of ${raw.size} on cannot be` +
          ` put into ${planes} bytes from byte ${targetOffset} of ${target.size} on`,
      );
    }
  }

  /** Writes the batches' entries, each batch at an offset that it can be bound at. */
  #write(batches: readonly Batch[]): number[] {
    const sizes = batches.map(({ jobs }) => roundUp(jobs.length * ENTRY_WORDS * 4, ALIGN_BYTES));
    const all = sizes.reduce((sum, size) => sum + size, 0);
    if (all > RING_BYTES) {
      throw new InternalError(`${all} bytes of entries for one pass; at most ${RING_BYTES} are taken`);
    }
    if (this.#next + all > RING_BYTES) this.#next = 0;
    const first = this.#next;
    const words = new Uint32Array(all / 4);
    const offsets: number[] = [];
    let at = 0;
    for (const [index, { jobs }] of batches.entries()) {
      offsets.push(first + at);
      for (const [entry, { source, targetOffset, rows }] of jobs.entries()) {
        words.set([source / 4, targetOffset / 4, rows], at / 4 + entry * ENTRY_WORDS);
      }
      at += sizes[index] as number;
    }
    this.#gpu.device.queue.writeBuffer(this.#entries, first, words);
    this.#next = first + all;
    return offsets;
  }

  #kernelOf(kind: RepackKind): Kernel {
    const kernel = this.#kernels.get(keyOf(kind));
    if (kernel === undefined) {
      throw new InternalError(`no kernel was made for ${kind.format} of ${kind.columns} columns`);
    }
    return kernel;
  }

  #groupOf(raw: GPUBuffer, target: GPUBuffer): GPUBindGroup {
    const targets = getOr(this.#groups, raw, () => new WeakMap<GPUBuffer, GPUBindGroup>());
    return getOr(targets, target, () =>
      this.#gpu.device.createBindGroup({
        layout: this.#bindings,
        entries: [
          { binding: 0, resource: { buffer: raw } },
          { binding: 1, resource: { buffer: target } },
          { binding: 2, resource: { buffer: this.#entries, size: BATCH_BYTES } },
        ],
      }),
    );
  }
}

/** Bytes that a matrix takes in a source of that layout. */
export function bytesIn(layout: SourceLayout, matrix: RepackKind & { readonly rows: number }): number {
  return sourceBytes(layoutsOf(matrix).format, matrix, layout);
}

function keyOf({ format, columns }: RepackKind): string {
  return `${format} ${columns}`;
}

/** How both devices lay the kind out. */
function layoutsOf({ format: id, columns }: RepackKind) {
  const accepts = acceptsWeight('a weight to be put into planes', id, columns);
  const format = gpuFormat(id);
  const cpu = cpuFormat(id);
  if (accepts !== true || format === undefined || cpu === undefined) {
    throw new InternalError(accepts === true ? `${id} is not stored by both devices` : accepts);
  }
  return { format, segments: cpu.segments };
}

/** Workgroups in x and y that have so many threads. */
export function workgroupsOf(threads: number): { readonly x: number; readonly y: number } {
  const all = Math.ceil(threads / REPACK_THREADS);
  const y = Math.ceil(all / WORKGROUPS_X);
  return { x: Math.ceil(all / y), y };
}

function roundUp(value: number, unit: number): number {
  return Math.ceil(value / unit) * unit;
}

function getOr<K extends object, V>(
  map: { get(key: K): V | undefined; set(key: K, value: V): unknown },
  key: K,
  make: () => V,
): V {
  let value = map.get(key);
  if (value === undefined) {
    value = make();
    map.set(key, value);
  }
  return value;
}
