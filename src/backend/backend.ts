/**
 * The device contract. A backend is its kernel table and `prepare`; an `Executable` is a model on a device, ready to
 * run steps. Both live in the engine's worker; the plan that describes them is plain data made before.
 */

import type { ByteSource } from '../format/source.ts';
import type { Graph } from '../model/graph.ts';
import type { ModelSpec } from '../model/spec.ts';
import type { Weights } from '../model/weights.ts';
import type { Plan } from '../plan/plan.ts';
import type { KernelRow, Mode } from './kernel.ts';

/** Positions a page of the KV cache holds. */
export const PAGE_ROWS = 64;

/** One run of the graph over T rows. */
export interface Step {
  readonly mode: Mode;
  /** [T] */
  readonly tokens: Int32Array;
  /** [T] Each row's position in its own sequence. */
  readonly positions: Int32Array;
  /** [T] Each row's sequence, an index into `pageTables`. Rows of one sequence are in order of position. */
  readonly sequences: Int32Array;
  /** A sequence's pages, in order: position p lies in page `pageTables[s][⌊p / PAGE_ROWS⌋]`, row p mod PAGE_ROWS. */
  readonly pageTables: readonly Int32Array[];
  /** Which rows' logits are wanted, ascending. May be none. */
  readonly wanted: Int32Array;
}

export interface Executable {
  /**
   * Runs the graph; `step.tokens.length` is at most the plan's rows for the mode. Returns [wanted, vocabulary] logits,
   * valid until the next run.
   * @throws NonFiniteError `non_finite` naming the layer where a value stopped being finite.
   */
  run(step: Step): Promise<Float32Array>;
  /** After a run, a copy of a named value [T, width], where the backend still has it (the reference keeps all). */
  value?(name: string): Float32Array | Promise<Float32Array>;
  /**
   * Runs a step some times over and says where the time goes: medians of `repetitions`. Absent where the backend does not
   * know.
   */
  profile?(step: Step, repetitions: number): Promise<RunProfile>;
  /** Measures how fast the device reads its memory; gives nothing where that cannot be told. */
  bandwidth?(): Promise<DeviceBandwidth | undefined>;
  /** Bytes held at the most, as the backend counted them. */
  readonly bytes: number;
  dispose(): Promise<void>;
}

/** Where the time of a run of the graph goes. */
export interface RunProfile {
  /** Commands that the device is given to compute, one after the other. */
  readonly dispatches: number;
  /** Milliseconds of the host from being asked to the submission of all of them. */
  readonly encodeMs: number;
  /** Milliseconds from being asked to the result in the host's memory. */
  readonly runMs: number;
  /**
   * By the device's clock, each dispatch in a pass of its own, the same kernel of all layers together; the longest first.
   * Absent where the device has no clock.
   */
  readonly kernels?: readonly KernelTime[];
}

export interface KernelTime {
  readonly label: string;
  readonly dispatches: number;
  /** Nanoseconds of all of them. */
  readonly ns: number;
}

export interface DeviceBandwidth {
  readonly bytesPerSecond: number;
  /** The size of the region that was read. */
  readonly bytes: number;
}

export interface LoadProgress {
  readonly bytesDone: number;
  readonly bytesTotal: number;
}

export interface PrepareRequest {
  readonly plan: Plan;
  /** What placing has made for this backend already (`programOf`); absent: it is made again, the same. */
  readonly program?: unknown;
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: Weights;
  /** By `TensorInfo.source`. */
  readonly sources: readonly ByteSource[];
  onProgress?(progress: LoadProgress): void;
  readonly signal?: AbortSignal;
}

export interface Backend {
  readonly device: KernelRow['device'];
  readonly rows: readonly KernelRow[];
  /** Allocates what the plan says, streams every weight to its place, and compiles the graph. */
  prepare(request: PrepareRequest): Promise<Executable>;
}
