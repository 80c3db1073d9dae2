/**
 * The numbers of rotary position embeddings (arXiv 2104.09864): one inverse frequency a pair, after the model's scaling,
 * and the cosines and sines of a position. Every backend takes them from here, so that all rotate alike.
 *
 * Angles are computed as the official implementations do: inverse frequencies and their products with the position are
 * rounded to f32. At position 8,000 the rounding is worth up to 2e-4 radians, so it is part of what the model means.
 */

import { InternalError } from '../errors.ts';
import type { RopeScaling, RopeSpec } from './spec.ts';

export interface RopeTable {
  /** [dimensions / 2] Radians a position, for each pair. */
  readonly inverseFrequencies: Float32Array;
  /** What cosines and sines are multiplied with. */
  readonly magnitude: number;
}

/**
 * @param factors the weight `ropeFactors` [dimensions / 2]; for the scaling `factors` and only for it.
 */
export function ropeTable(rope: RopeSpec, factors?: Float32Array): RopeTable {
  const { dimensions, base, scaling } = rope;
  const pairs = dimensions / 2;
  if ((scaling.kind === 'factors') !== (factors !== undefined) || (factors !== undefined && factors.length !== pairs)) {
    throw new InternalError(
      `rope scaling ${scaling.kind} over ${pairs} pairs was given ${factors?.length ?? 'no'} factors`,
    );
  }
  const inverseFrequencies = new Float32Array(pairs);
  for (let pair = 0; pair < pairs; pair++) {
    const plain = 1 / base ** ((2 * pair) / dimensions);
    inverseFrequencies[pair] = scaled(plain, pair, rope, factors);
  }
  return { inverseFrequencies, magnitude: scaling.kind === 'yarn' ? scaling.magnitude : 1 };
}

/** Writes cosines and sines of a position, times the magnitude, to `cos` and `sin` from `offset` on: [pairs] each. */
export function ropeAngles(
  table: RopeTable,
  position: number,
  target: { readonly cos: Float32Array; readonly sin: Float32Array; readonly offset: number },
): void {
  const { inverseFrequencies, magnitude } = table;
  for (let pair = 0; pair < inverseFrequencies.length; pair++) {
    const angle = Math.fround(position * (inverseFrequencies[pair] as number));
    target.cos[target.offset + pair] = Math.cos(angle) * magnitude;
    target.sin[target.offset + pair] = Math.sin(angle) * magnitude;
  }
}

/** What YaRN multiplies cosines and sines with (arXiv 2309.00071, section 3.4), for a context that grows by `factor`. */
export function yarnMagnitude(factor: number): number {
  return factor <= 1 ? 1 : 0.1 * Math.log(factor) + 1;
}

function scaled(plain: number, pair: number, rope: RopeSpec, factors: Float32Array | undefined): number {
  const { scaling } = rope;
  switch (scaling.kind) {
    case 'none':
      return plain;
    case 'linear':
      return plain / scaling.factor;
    case 'factors':
      return plain / ((factors as Float32Array)[pair] as number);
    case 'llama3':
      return llama3(plain, scaling);
    case 'yarn': {
      const [low, high] = yarnBounds(rope, scaling);
      const ramp = Math.min(1, Math.max(0, (pair - low) / (high - low)));
      return (plain / scaling.factor) * ramp + plain * (1 - ramp);
    }
  }
}

/** Llama 3.1: long waves are slowed by the factor, short ones kept, those between blended by how often they turn. */
function llama3(plain: number, scaling: RopeScaling & { kind: 'llama3' }): number {
  const { factor, lowFrequencyFactor, highFrequencyFactor, originalContext } = scaling;
  const turns = (originalContext * plain) / (2 * Math.PI);
  if (turns < lowFrequencyFactor) return plain / factor;
  if (turns > highFrequencyFactor) return plain;
  const blend = (turns - lowFrequencyFactor) / (highFrequencyFactor - lowFrequencyFactor);
  return (1 - blend) * (plain / factor) + blend * plain;
}

/** The pairs between which YaRN goes over from kept to slowed frequencies: those that turn betaFast and betaSlow times. */
function yarnBounds(rope: RopeSpec, scaling: RopeScaling & { kind: 'yarn' }): readonly [number, number] {
  const { dimensions, base } = rope;
  const pairThatTurns = (turns: number) =>
    (dimensions * Math.log(scaling.originalContext / (turns * 2 * Math.PI))) / (2 * Math.log(base));
  let low = pairThatTurns(scaling.betaFast);
  let high = pairThatTurns(scaling.betaSlow);
  if (scaling.truncate) {
    low = Math.floor(low);
    high = Math.ceil(high);
  }
  low = Math.max(low, 0);
  high = Math.min(high, dimensions - 1);
  // The same small widening as the official code, where both fall on one pair.
  return [low, low === high ? high + 0.001 : high];
}
