/**
 * A graph for the pool: sections that are run each by itself, and in them stages of tasks with a barrier after each. A `rows` stage is a chain of tasks done row by row, each
 * row by one worker; a `units` stage is tasks that do not depend on each other, cut into units.
 */

import type { ValueName } from '../../model/graph.ts';
import type { RopeSpec } from '../../model/spec.ts';

/** What a stage is counted in. `rows`: the step's rows; `units`: what its tasks say. */
export type Space = 'rows' | 'units';

/** A task as plain data, with every address resolved. */
export interface Task {
  /** Key in the table of `kernels/index.ts`. */
  readonly kind: string;
  readonly [parameter: string]: unknown;
}

export interface Stage {
  readonly space: Space;
  readonly tasks: readonly Task[];
}

/** A buffer in arena 0: rows `stride` bytes apart. */
export interface Place {
  readonly offset: number;
  readonly stride: number;
  /**
   * Of what is made row by row: where each worker has a copy of its own, in its scratch, for runs of one row. Every worker
   * then makes all of it for itself, which takes less than waiting for another.
   */
  readonly alone?: number;
}

/** Pairs of a row and an expert in order of their expert, in arena 0. */
export interface PairPlaces {
  /** The number of each pair, and its row. */
  readonly order: Place;
  readonly orderRows: Place;
  /** How many experts have pairs, then (id, first, count) of each. */
  readonly active: Place;
}

/** Of an `experts` operation: the section that does it, what it is given before, and what it gives; all in arena 0. */
export interface ExpertsPlace {
  readonly layer: number;
  readonly section: number;
  readonly input: Place;
  /** [pairs] The expert of each pair. */
  readonly ids: Place;
  readonly pairs: PairPlaces;
  /** [pairs, width] */
  readonly output: Place;
}

/** Where a weight is. Matrices are in groups of four rows, `groupBytes` each; vectors are plain f32. */
export interface WeightPlace {
  readonly arena: number;
  readonly offset: number;
  readonly bytes: number;
}

/** Pages of one layer's cache: page p of keys at `keys` + p · `keyPageBytes`. */
export interface CachePlace {
  readonly arena: number;
  readonly keys: number;
  readonly values: number;
  readonly keyPageBytes: number;
  readonly valuePageBytes: number;
}

/** Arrays that the engine's thread writes before each run, in arena 0. */
export interface StepPlaces {
  readonly tokens: number;
  readonly positions: number;
  /** Positions each row sees: its own + 1. */
  readonly limits: number;
  /** [rows] Where the page table of each row's sequence begins, in entries of `pages`. */
  readonly pageStart: number;
  readonly pages: number;
  readonly wanted: number;
  /** Rows from outside, as they come: f32 without gaps. Absent where the graph begins with an embedding. */
  readonly incoming?: number;
}

/** Cosines and sines by position for one kind of rotation: [context][cosines, sines]. */
export interface RopePlace {
  readonly offset: number;
  readonly pairs: number;
  readonly rope: RopeSpec;
}

export interface CpuProgram {
  readonly threads: number;
  /** Bytes of each arena. */
  readonly arenas: readonly number[];
  /** Where each worker's scratch begins in each arena: `scratch[arena]` + worker · `scratchBytes[arena]`. */
  readonly scratch: readonly number[];
  readonly scratchBytes: readonly number[];
  /** Of a worker's scratch in arena 0 the first so many bytes are its own copies. */
  readonly aloneBytes: number;
  /** How long a worker that waits spins before it sleeps. */
  readonly spinMs: number;
  /**
   * First a run of the graph, which may have no stages, then one for each `experts` operation, then what predicts further ahead
   * where the graph has that.
   */
  readonly sections: readonly (readonly Stage[])[];
  /** Which section predicts further ahead. */
  readonly mtp?: number;
  readonly experts: readonly ExpertsPlace[];
  /** Most rows, and most pairs, of one `experts` operation. */
  readonly expertLimits: { readonly rows: number; readonly pairs: number };
  readonly weights: Readonly<Record<string, WeightPlace>>;
  readonly values: Readonly<Record<ValueName, Place>>;
  /** By layer; undefined for those of other parts. */
  readonly cache: readonly (CachePlace | undefined)[];
  readonly step: StepPlaces;
  readonly ropes: readonly RopePlace[];
  readonly buffers: readonly { readonly name: string; readonly bytes: number }[];
}
