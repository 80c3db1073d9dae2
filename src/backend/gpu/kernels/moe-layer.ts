/** What the kernels of one MoE layer share: sizes, names, and the functions of their WGSL. */

import type { MoeOperation } from '../../../model/graph.ts';
import type { Binding, Builder } from '../builder.ts';

/** Sizes of a layer, and where its intermediate values are. */
export interface MoeLayer {
  readonly operation: MoeOperation;
  readonly builder: Builder;
  readonly hidden: number;
  /** [rows, experts (+ 1: the shared expert's gate)] f32 */
  readonly logits: string;
  readonly logitsWidth: number;
  /** [rows, used ids · used weights (bits of f32) · the shared expert's factor (bits of f32)] u32 */
  readonly route: string;
  readonly routeWidth: number;
  /** [rows, used · slot + sharedSlot] f32: what goes into the down products, zero where a slot is wider than the expert. */
  readonly inner: string;
  readonly innerWidth: number;
  /** f32 of an expert's inner values: whole blocks of 32. */
  readonly slot: number;
  readonly sharedSlot: number;
}

export const buffer = (name: string, access: 'read' | 'write') =>
  ({ kind: 'buffer', name, access }) as const satisfies Binding;
export const value = (name: string, access: 'read' | 'write') =>
  ({ kind: 'value', name, access }) as const satisfies Binding;

/** σ(x) without overflow, and x · σ(x). */
export const sigmoidCode = /* wgsl */ `
fn sigmoid(x: f32) -> f32 {
  let e = exp(-abs(x));
  return select(e, 1.0, x >= 0.0) / (1.0 + e);
}
fn silu(x: f32) -> f32 { return x * sigmoid(x); }
`;
