/** What the kernels of one MoE layer share: sizes, names, and the functions of their WGSL. */

import type { MoeOperation } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import { ABSENT, type Binding, type Builder } from '../builder.ts';
import { slabWeight } from '../slab.ts';
import type { KernelText } from './kernel-text.ts';

/** Sizes of a layer, and where its intermediate values are. */
export interface MoeLayer {
  readonly operation: MoeOperation;
  readonly builder: Builder;
  readonly hidden: number;
  /** Which of several choices, as its dispatches are called; absent: the one that is obeyed. */
  readonly which?: string;
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
  readonly bank: Bank;
}

/** What of a layer is known without its experts. */
export type RoutedLayer = Omit<MoeLayer, 'bank'>;

/** Where the routed experts lie: all of them in stacks of the layer's own, or some in the slots of a slab. */
export interface Bank {
  readonly gate: Weight;
  readonly up: Weight;
  readonly down: Weight;
  /** Binds what the WGSL below reads. */
  bind(text: KernelText): void;
  /** WGSL of where in the stacks the expert `expert` lies; of an absent one somewhere, and nobody keeps what comes of it. */
  place(expert: string): string;
  /** Statements that declare `at`, where in the stacks the expert `expert` lies, and leave where it does not. */
  readonly find: string;
}

export function bankOf({ layer, prefix, split }: MoeOperation, builder: Builder): Bank {
  if (split === undefined) {
    const [gate, up, down] = (['gate', 'up', 'down'] as const).map((part) => builder.weight(`${prefix}.${part}`));
    return {
      gate: gate as Weight,
      up: up as Weight,
      down: down as Weight,
      bind: () => {},
      place: (expert) => expert,
      find: '\n  let at = expert;',
    };
  }
  const { slabs, weights } = builder;
  const index = slabs.findIndex(({ layers }) => layers.includes(layer));
  const stack = (part: 'gate' | 'up' | 'down') => slabWeight(slabs, index, part, weights);
  // The texts do not say how many slots there are: slabs of any size share their pipelines.
  return {
    gate: stack('gate'),
    up: stack('up'),
    down: stack('down'),
    bind: (text) => void text.bind({ kind: 'slots', layer }, 'slots', 'u32'),
    place: (expert) => `select(slots[${expert}], 0u, slots[${expert}] == ${ABSENT}u)`,
    find: `\n  let at = slots[expert];\n  if (at == ${ABSENT}u) { return; }`,
  };
}

/**
 * What an expert's gate is multiplied with, where its matrices have scales beside their values: binds them, and gives the
 * WGSL of the expert's, or of nothing.
 */
export function gateScale({ operation }: Pick<MoeLayer, 'operation'>, text: KernelText, expert: string): string {
  if (operation.moe.scaled !== true) return '';
  text.vector(`${operation.prefix}.gateScale`, 'gateScale');
  return ` * gateScale[${expert}]`;
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
