/**
 * The forward pass as data: operations over T rows with named values. `decoder.ts` and its blocks alone write graphs;
 * backends read them. An operation carries spec data and logical weight names, never threads, buffers or devices. A backend
 * may rewrite a graph before kernels are chosen: the operations that only such a rewrite makes are the fused ones below.
 */

import type { Activation, GateActivation, MoeSpec, ReachSpec, RopeSpec, TemperatureSpec } from './spec.ts';

/** The name of a value: f32 [rows, width]. Each is written once. */
export type ValueName = string;
/** A logical weight name; see `spec.ts`. */
export type WeightName = string;

interface OperationBase {
  /** The layer it belongs to; -1 before the first, `layers.length` after the last. */
  readonly layer: number;
  readonly output: ValueName;
  /** It belongs to what predicts further ahead ({@link Graph.mtp}), which is run by itself. */
  readonly mtp?: true;
}

/** Row t of the output is the weight's row `tokens[t]`, multiplied with `scale` where there is one. */
export interface EmbedOperation extends OperationBase {
  readonly kind: 'embed';
  readonly weight: WeightName;
  readonly scale?: number;
}

/** Rows [rows, width] that a part of a model gets from outside: what the part before gave. */
export interface IncomingOperation extends OperationBase {
  readonly kind: 'incoming';
}

/** RMS norm over groups of `group` elements of each row (`group` = width: the whole row; = headDim: each head). */
export interface NormOperation extends OperationBase {
  readonly kind: 'norm';
  readonly input: ValueName;
  /** Absent: every element has the weight 1. */
  readonly weight?: WeightName;
  readonly epsilon: number;
  readonly group: number;
  /** So many elements at the end of a row are in no group and go on as they are; absent: none. */
  readonly rest?: number;
}

/** output[t] = weight · input[t] (+ bias). */
export interface LinearOperation extends OperationBase {
  readonly kind: 'linear';
  readonly input: ValueName;
  readonly weight: WeightName;
  readonly bias?: WeightName;
}

/**
 * A product for each head, with the weight [heads, rows, columns]: head h of the output is weight[h] times head h of the
 * input.
 */
export interface HeadLinearOperation extends OperationBase {
  readonly kind: 'headLinear';
  readonly input: ValueName;
  readonly weight: WeightName;
  readonly heads: number;
  /** So many elements at the end of each head are not multiplied and go on, behind the product, as they are; absent: none. */
  readonly rest?: number;
}

/** Rotates `rope.dimensions` elements of each head by the row's position. */
export interface RopeOperation extends OperationBase {
  readonly kind: 'rope';
  readonly input: ValueName;
  readonly headDim: number;
  readonly rope: RopeSpec;
  /** The first element of a head that is rotated; absent: 0. */
  readonly from?: number;
}

/**
 * Writes each row's key and value to the layer's cache at the row's position, then attends from the row's queries to
 * positions 0 … its own of its own sequence, or those of them that `reach` leaves. Query head h reads key/value head
 * ⌊h·kvHeads/heads⌋.
 */
export interface AttentionOperation extends OperationBase {
  readonly kind: 'attention';
  readonly query: ValueName;
  readonly key: ValueName;
  /** Absent: a value is the first `valueDim` elements of its key, and the cache keeps keys alone. */
  readonly value?: ValueName;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly scale: number;
  readonly reach?: ReachSpec;
  /** [heads] A score for each head that takes part in the softmax and brings no value. */
  readonly sinks?: WeightName;
  readonly temperature?: TemperatureSpec;
  /**
   * Fused: the operation before it, which makes `query` and writes keys and values to the cache; `key` and `value` are not
   * read.
   */
  readonly rotated?: RotateOperation;
}

/** output = act(gate) ⊙ up. */
export interface GluOperation extends OperationBase {
  readonly kind: 'glu';
  readonly gate: ValueName;
  readonly up: ValueName;
  readonly activation: Activation;
}

/** output = input ⊙ act(gate): each number of `gate` for as many elements of `input`, side by side, as widths give it. */
export interface GateOperation extends OperationBase {
  readonly kind: 'gate';
  readonly input: ValueName;
  readonly gate: ValueName;
  readonly activation: GateActivation;
}

/** output = input · factor, and · the one number of `weight` where there is one. */
export interface ScaleOperation extends OperationBase {
  readonly kind: 'scale';
  readonly input: ValueName;
  readonly factor: number;
  readonly weight?: WeightName;
  /** So many elements at the end of a row go on as they are; absent: none. */
  readonly rest?: number;
}

/** The whole MoE layer: router, selection, experts, shared expert. Weights are named under `prefix` (`layers.i.moe`). */
export interface MoeOperation extends OperationBase {
  readonly kind: 'moe';
  readonly input: ValueName;
  readonly prefix: WeightName;
  readonly moe: MoeSpec;
  /** What the router reads; absent: the input. */
  readonly routerInput?: ValueName;
  /** Fused: the norm that its input goes through first. */
  readonly norm?: RowNorm;
  /** Fused: what is added to its output. */
  readonly add?: ValueName;
  /** Placed apart: the device computes those experts that lie in its slots, an `experts` operation elsewhere the others. */
  readonly split?: true;
}

/**
 * Placed apart: single experts of a MoE layer, of pairs of a row and an expert that were chosen on another device; no part of
 * a run, but what an `ExpertRunner` (`backend.ts`) is asked for. output[p] = down · (act(gate · x) ⊙ up · x) of the
 * pair's expert, x the pair's row, normed first where `norm` says so; not weighted.
 */
export interface ExpertsOperation extends OperationBase {
  readonly kind: 'experts';
  readonly input: ValueName;
  readonly norm?: RowNorm;
  /** Weights are named under it as those of the {@link MoeOperation} are: `gate`, `up` and `down` of them are read. */
  readonly prefix: WeightName;
  readonly moe: MoeSpec;
}

export interface AddOperation extends OperationBase {
  readonly kind: 'add';
  readonly left: ValueName;
  readonly right: ValueName;
}

/** output[t] = [left[t], right[t]], one after the other. */
export interface ConcatOperation extends OperationBase {
  readonly kind: 'concat';
  readonly left: ValueName;
  readonly right: ValueName;
}

/** Logits of the rows that are asked for: [wanted rows, vocabulary]. */
export interface HeadOperation extends OperationBase {
  readonly kind: 'head';
  readonly input: ValueName;
  readonly weight: WeightName;
  /** Logits l become softcap · tanh(l / softcap). */
  readonly softcap?: number;
}

/** RMS norm over the whole of a row, in front of a fused operation. */
export interface RowNorm {
  readonly weight: WeightName;
  readonly epsilon: number;
}

/** Fused: output[t] = [weight_0 · x (+ bias_0), weight_1 · x …] (+ add[t]), x = input[t], normed first where `norm` says so. */
export interface ProjectOperation extends OperationBase {
  readonly kind: 'project';
  readonly input: ValueName;
  readonly norm?: RowNorm;
  /** Their outputs stand one after the other in a row. */
  readonly parts: readonly { readonly weight: WeightName; readonly bias?: WeightName }[];
  readonly add?: ValueName;
}

/** Fused: output[t] = act(gate · x) ⊙ (up · x), x as in {@link ProjectOperation}. */
export interface GatedOperation extends OperationBase {
  readonly kind: 'gated';
  readonly input: ValueName;
  readonly norm?: RowNorm;
  readonly gate: WeightName;
  readonly up: WeightName;
  readonly activation: Activation;
}

/**
 * Fused: what lies between the projections and attention. `input` is [rows, queries · keys · values]; queries and keys are
 * normed and rotated, keys and values written to the layer's cache; the output is the queries.
 */
export interface RotateOperation extends OperationBase {
  readonly kind: 'rotate';
  readonly input: ValueName;
  /** Over groups of `group` elements, as in {@link NormOperation}. */
  readonly queryNorm?: RowNorm & { readonly group: number };
  readonly keyNorm?: RowNorm & { readonly group: number };
  readonly rope?: RopeSpec;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
}

export type Operation =
  | EmbedOperation
  | IncomingOperation
  | NormOperation
  | LinearOperation
  | HeadLinearOperation
  | RopeOperation
  | AttentionOperation
  | GluOperation
  | GateOperation
  | ScaleOperation
  | MoeOperation
  | ExpertsOperation
  | AddOperation
  | ConcatOperation
  | HeadOperation
  | ProjectOperation
  | GatedOperation
  | RotateOperation;

export type OperationKind = Operation['kind'];

export interface Graph {
  readonly operations: readonly Operation[];
  /** Width of every value, in f32 elements a row. */
  readonly widths: Readonly<Record<ValueName, number>>;
  /**
   * The value that holds the logits; in a part that ends before the head, what it gives in their place (`outgoing`). Empty in
   * a graph of `experts` operations alone, which is never run.
   */
  readonly logits: ValueName;
  /** In a part that ends before the head: the value of which a run gives all rows, for the part after it. */
  readonly outgoing?: ValueName;
  /** The residual stream after the embedding, after each layer, and after the final norm (in place of the last layer's). */
  readonly hidden: readonly ValueName[];
  /** Absent: nothing predicts further ahead, or nobody wants it to. */
  readonly mtp?: MtpSection;
}

/**
 * The operations marked `mtp`: a small graph beside the other one, over rows of its own, with the layer's own cache over the same
 * positions. Its `incoming` rows are the `given` value's of earlier runs, or its own `hidden` ones.
 */
export interface MtpSection {
  /** The value of the model's own graph that it goes on from. */
  readonly given: ValueName;
  /** The value that stands in for `given` where it goes on from itself. */
  readonly hidden: ValueName;
  /** [wanted rows, vocabulary] */
  readonly logits: ValueName;
}

/** The operations of a run of the model, without what predicts further ahead. */
export function ownOperations({ operations, mtp }: Graph): readonly Operation[] {
  return mtp === undefined ? operations : operations.filter((operation) => operation.mtp !== true);
}

export function mtpOperations({ operations }: Graph): readonly Operation[] {
  return operations.filter((operation) => operation.mtp === true);
}
