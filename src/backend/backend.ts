/**
 * The device contract. A backend is its kernel table and `prepare`; an `Executable` is a model on a device, ready to
 * run steps. Both live in the engine's worker; the plan that describes them is plain data made before.
 */

import type { ConclaveError } from '../errors.ts';
import type { ExpertWatcher } from '../experts/watch.ts';
import type { ByteSource } from '../format/source.ts';
import type { Graph } from '../model/graph.ts';
import type { ModelSpec } from '../model/spec.ts';
import type { ExpertPart, Weights } from '../model/weights.ts';
import type { Plan } from '../plan/plan.ts';
import type { KernelRow, Mode } from './kernel.ts';
import type { SamplerSettings } from './sampling.ts';

/** Positions a page of the KV cache holds. */
export const PAGE_ROWS = 64;

/** One run of the graph over T rows. */
export interface Step {
  readonly mode: Mode;
  /** [T] Of a {@link Drawer}'s runs also {@link drawnIn} a slot. */
  readonly tokens: Int32Array;
  /** [T] Each row's position in its own sequence. */
  readonly positions: Int32Array;
  /** [T] Each row's sequence, an index into `pageTables`. Rows of one sequence are in order of position. */
  readonly sequences: Int32Array;
  /** A sequence's pages, in order: position p lies in page `pageTables[s][⌊p / PAGE_ROWS⌋]`, row p mod PAGE_ROWS. */
  readonly pageTables: readonly Int32Array[];
  /** Which rows' logits are wanted, ascending. May be none. */
  readonly wanted: Int32Array;
  /** [T, width] What the part before gave, for a graph that begins with an `incoming` operation. Read before `run` returns. */
  readonly incoming?: Float32Array;
}

export interface Executable {
  /**
   * Runs the graph; `step.tokens.length` is at most the plan's rows for the mode. Returns [wanted, vocabulary] logits, of a
   * part with an `outgoing` value all its rows [T, width]; valid until the next run.
   * @throws NonFiniteError `non_finite` naming the layer where a value stopped being finite.
   */
  run(step: Step): Promise<Float32Array>;
  /** Draws tokens where the logits are. Absent where only the host does. */
  readonly drawer?: Drawer;
  /**
   * Has runs say which experts their rows use, and where experts are split what that took; undefined: no more. Layers whose
   * choices the host does not learn are left out. Not while a run is on its way. Absent: no layer tells.
   */
  watch?(watcher: ExpertWatcher | undefined): void;
  /** Predicts further ahead. Absent where the graph has no `mtp` operations. */
  readonly mtp?: MtpRunner;
  /** Computes experts for another device. Absent where the graph has no `experts` operations. */
  readonly experts?: ExpertRunner;
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
  /** What the device's own memory holds. Absent where it has none of its own. */
  readonly memory?: DeviceMemoryUse;
  /** Gives up what is on its way: it fails soon, whatever the device still computes. Only `dispose` may follow. */
  abandon?(): void;
  dispose(): Promise<void>;
}

/** Runs on their way to a device that draws: one that it computes, one that waits for it, one that the host makes. */
export const RUNS_AHEAD = 3;

/** Stands for a token: the one that was drawn last in a slot, whether the host has seen it or not. */
export function drawnIn(slot: number): number {
  return ~slot;
}

/** A token to draw. */
export interface Draw {
  readonly settings: SamplerSettings;
  /** The request's own: no other draw of the run has it. */
  readonly slot: number;
  /** Tokens of the request's prompt. */
  readonly prompt: number;
  /** Tokens drawn for the request before this one, seen by the host or not; the random number's index. */
  readonly index: number;
}

/** By draw: the token, or what is wrong with the row's logits. */
export type Drawn = readonly (number | ConclaveError)[];

/**
 * Draws tokens on the device, the same ones as the host's sampler, so that a step can be sent before the one that gives its
 * tokens has been read. Calls take effect in the order in which they are made, `run` of the executable among them, whatever
 * is still on its way: nobody needs to wait for a run whose cache pages or slots are given to somebody else.
 */
export interface Drawer {
  /** Requests that can draw at once, each in a slot: 0 … slots − 1. */
  readonly slots: number;
  /** Whether tokens are drawn by these settings: true, or why not, as a phrase. */
  takes(settings: SamplerSettings): true | string;
  /**
   * A request takes a slot.
   * @param tokens its prompt and all that was drawn for it so far, for the penalties to look back on
   */
  begin(slot: number, settings: SamplerSettings, tokens: ArrayLike<number>): void;
  /**
   * Runs a step and draws a token from each wanted row's logits; settles when they have come to the host. `step` and
   * `draws` are read before it returns.
   * @param draws by wanted row
   * @throws DeviceLostError `device_lost` and other errors of the run; what is wrong with one row is in `Drawn`
   */
  draw(step: Step, draws: readonly Draw[]): Promise<Drawn>;
}

/**
 * Runs what predicts further ahead ({@link MtpSection}), beside the model's own runs and never at the same time. What the last of
 * these gave stays valid meanwhile.
 */
export interface MtpRunner {
  /** [T, width] The `given` value of the model's last run, row by row; valid until its next. */
  given(): Float32Array;
  /**
   * @param step `incoming` has the rows that it goes on from, those of `given` or of `hidden`; row t's token is the one that came
   * after it
   * @returns valid until the next run
   * @throws NonFiniteError `non_finite`
   */
  run(step: Step): Promise<{
    /** [wanted, vocabulary] */
    readonly logits: Float32Array;
    /** [T, width] What stands in for `given` where a row further is drafted. */
    readonly hidden: Float32Array;
  }>;
}

/** Pairs of a row and an expert that are to be computed. */
export interface ExpertWork {
  readonly layer: number;
  /** [rows, hidden] What the layer's `experts` operation reads. */
  readonly rows: Float32Array;
  /** [pairs] The row of each pair, an index into `rows`. */
  readonly rowOf: Int32Array;
  /** [pairs] The expert of each pair. Pairs of one expert need not stand together. */
  readonly expertOf: Int32Array;
}

/**
 * Computes single experts for rows that are on another device, while that device computes others. A pair's result does not
 * depend on the pairs beside it.
 */
export interface ExpertRunner {
  /** Most rows, and most pairs, of one call. */
  readonly limits: { readonly rows: number; readonly pairs: number };
  /**
   * Starts the layer's `experts` operation on all other threads. The caller's has no part in it, so that its core's caches keep what
   * drives the other device.
   * @returns what waits for them, and without others does the work: to be called once, before anything else runs there. It gives
   * [pairs, hidden], not weighted, valid until the next start, and throws NonFiniteError `non_finite` naming the layer
   */
  start(work: ExpertWork): () => Float32Array;
  /**
   * The bytes of an expert's matrix where they lie, whole groups of rows in the layout of the CPU's kernels
   * (`cpu/formats.ts`); in memory that other threads read, too. Absent where weights are not stored so.
   */
  home?(layer: number, part: ExpertPart, expert: number): Uint8Array;
}

/** Experts that were recorded elsewhere, token by token. */
export interface GivenRouting {
  /** Goes on by so many tokens, a run's rows. */
  advance(rows: number): void;
  /** [rows · used] Of the rows that it went on by. */
  ids(layer: number): Uint32Array;
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
   * By the device's clock, the same kernel of all layers together, apart from the others; the longest first.
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

/** Bytes that a device's buffers take, and took at the most since it was opened; mapped ones too. */
export interface DeviceMemoryUse {
  readonly device: Plan['device'];
  readonly bytes: number;
  readonly peakBytes: number;
}

export interface LoadProgress {
  readonly bytesDone: number;
  readonly bytesTotal: number;
}

export interface PrepareRequest {
  readonly plan: Plan;
  /** What placing has made for this backend already (`programsOf`); absent: it is made again, the same. */
  readonly program?: unknown;
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: Weights;
  /** By `TensorInfo.source`. */
  readonly sources: readonly ByteSource[];
  /** What computes the experts that this part splits off. */
  readonly experts?: ExpertRunner;
  /** For measurements: which experts the rows of split layers take, whatever the router says. */
  readonly routing?: GivenRouting;
  /** How often experts were used, as far as that is known: the most used have slots at first. */
  readonly expertUses?: (layer: number, expert: number) => number;
  onProgress?(progress: LoadProgress): void;
  /** Something failed, and the model goes on without it; told once each. */
  readonly onFault?: ((error: ConclaveError) => void) | undefined;
  readonly signal?: AbortSignal;
}

export interface Backend {
  readonly device: KernelRow['device'];
  readonly rows: readonly KernelRow[];
  /** Allocates what the plan says, streams every weight to its place, and compiles the graph. */
  prepare(request: PrepareRequest): Promise<Executable>;
}
