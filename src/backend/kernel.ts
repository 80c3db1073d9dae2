/**
 * The row type of every device's kernel table, and the plain-data request that rows are asked with. What a row takes is
 * said here and nowhere else; `plan/select.ts` picks, and the conformance suite walks the same tables.
 */

import { type Demand, demandsOf } from '../model/demands.ts';
import type { Operation, OperationKind } from '../model/graph.ts';
import type { FormatId } from '../quant/index.ts';

/** `prompt`: rows of a prompt (prefill). `step`: rows of decode, verify and batched decode, T = 1…64. */
export type Mode = 'prompt' | 'step';

/** The most rows one `step` run takes. */
export const MAX_STEP_ROWS = 64;

export type CacheType = 'f32' | 'f16';

/** Numbers a weight brings to a request. */
export interface WeightShape {
  readonly format: FormatId;
  readonly shape: readonly number[];
}

export interface KernelRequest {
  /** With its shapes and parameters. */
  readonly operation: Operation;
  readonly mode: Mode;
  /** The most rows of one run. */
  readonly rows: number;
  /** Every weight the operation names, by logical name. */
  readonly weights: Readonly<Record<string, WeightShape>>;
  /** Width in f32 elements of every value the operation names. */
  readonly widths: Readonly<Record<string, number>>;
  readonly cache: CacheType;
  /** What the device offers: `simd`, `relaxed-simd`, later `shader-f16` … */
  readonly features: ReadonlySet<string>;
}

/** How far an operation's output may lie from the reference's: relative RMS, with the reason for the bound. */
export interface Tolerance {
  readonly relativeRms: number;
  readonly reason: string;
}

export interface KernelRow {
  /** Unique within its device: `linear-step-q4_k`. */
  readonly name: string;
  readonly device: 'reference' | 'cpu' | 'gpu';
  readonly operation: OperationKind;
  readonly modes: readonly Mode[];
  /** What it does beyond the plain form of its operation; absent: nothing. What is demanded and not named here is refused. */
  readonly serves?: readonly Demand[];
  /** true, or the reason why not, as a phrase: `needs rows of a multiple of 256 values, found 96`. */
  accepts(request: KernelRequest): true | string;
  readonly tolerance: Tolerance;
  /**
   * GPU: stays within what it binds even where the device checks no bounds, and passes its tests without those checks, too.
   */
  readonly unchecked?: true;
  /** What this row does to a weight when it is stored, as `plan` prints it: `interleave4`. Absent: stored as in the file. */
  readonly layout?: string;
}

/** true, or why a row does not take a request, as a phrase: for its mode, for what it does not serve, or for its own bounds. */
export function answerOf(row: KernelRow, request: KernelRequest): true | string {
  const { modes, serves = [] } = row;
  if (!modes.includes(request.mode)) return `serves ${modes.join(' and ')} rows, not ${request.mode} rows`;
  const lacking = demandsOf(request.operation).filter((demand) => !serves.includes(demand));
  return lacking.length === 0 ? row.accepts(request) : `does not serve ${lacking.join(', ')}`;
}
