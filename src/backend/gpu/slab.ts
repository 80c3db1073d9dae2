/**
 * Where experts lie that the device does not hold all of: slabs of slots, each for one expert's gate, up and down. A slab
 * serves layers whose experts are alike in shape and format; which of them a slot holds changes while the model runs.
 */

import { InternalError } from '../../errors.ts';
import type { ExpertPart, Weight, Weights } from '../../model/weights.ts';

export const EXPERT_PARTS = ['gate', 'up', 'down'] as const satisfies readonly ExpertPart[];

export interface Slab {
  /** Ascending. */
  readonly layers: readonly number[];
  /** Slots of the cache, numbered from 0. */
  readonly slots: number;
  /** Slots behind them, which experts pass through that have many rows of a prompt. */
  readonly passing: number;
}

/** The name that a layer's experts have among weights. */
export function expertName(layer: number, part: ExpertPart): string {
  return `layers.${layer}.moe.${part}`;
}

/** The stack of a slab's slots, as a weight of [slots, rows, columns]; no file has it. */
export function slabWeight(slabs: readonly Slab[], index: number, part: ExpertPart, weights: Weights): Weight {
  const { layers, slots, passing } = slabs[index] as Slab;
  const name = expertName(layers[0] as number, part);
  const one = weights.get(name);
  if (one === undefined) throw new InternalError(`a slab is for ${name}, which is no weight`);
  const [experts = 1] = one.shape;
  const count = slots + passing;
  return {
    name: `experts.${index}.${part}`,
    format: one.format,
    shape: [count, ...one.shape.slice(1)],
    parts: [],
    bytes: (one.bytes / experts) * count,
  };
}

/** Every slab's stacks. */
export function slabWeights(slabs: readonly Slab[], weights: Weights): readonly Weight[] {
  return slabs.flatMap((_, index) => EXPERT_PARTS.map((part) => slabWeight(slabs, index, part, weights)));
}
