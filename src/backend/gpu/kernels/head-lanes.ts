/**
 * How a head's queries and keys are normed and rotated by lanes that have eight of its elements each. Whoever needs them
 * turns them by this text, in memory that lanes share or among the lanes of a subgroup, and so gets the same bits.
 */

import type { RotateOperation } from '../../../model/graph.ts';
import { type Bound, f32Literal } from './snippets.ts';

/** Lanes of a head; elements of each. */
const MOST_LANES = 32;
export const LANE_ELEMENTS = 8;

const isPowerOfTwo = (x: number) => x >= 1 && Number.isInteger(Math.log2(x));

/** Whether the heads of an operation are turned this way. */
export function turnsByLanes({ headDim, queryNorm, keyNorm, rope }: RotateOperation): boolean {
  const lanes = headDim / LANE_ELEMENTS;
  if (!isPowerOfTwo(lanes) || lanes > MOST_LANES) return false;
  if ([queryNorm, keyNorm].some((norm) => norm !== undefined && norm.group !== headDim)) return false;
  if (rope === undefined) return true;
  const { pairing, dimensions } = rope;
  return pairing === 'adjacent' ? dimensions % LANE_ELEMENTS === 0 : isPowerOfTwo(dimensions / 2 / LANE_ELEMENTS);
}

/** The lane that has the partners of a lane's elements is as far away, by exclusive or; 0: itself, or none is needed. */
export function partnerMask({ rope }: Pick<RotateOperation, 'rope'>): number {
  return rope?.pairing === 'half' ? rope.dimensions / 2 / LANE_ELEMENTS : 0;
}

/** What {@link headLanes} reads. */
export function headBindings({ rope, queryNorm, keyNorm }: RotateOperation): readonly Bound[] {
  const bound: Bound[] = [];
  if (rope !== undefined) bound.push([{ kind: 'rope', rope }, 'table', 'vec4f']);
  if (queryNorm !== undefined) bound.push([{ kind: 'weight', name: queryNorm.weight }, 'queryNorm', 'vec4f']);
  if (keyNorm !== undefined) bound.push([{ kind: 'weight', name: keyNorm.weight }, 'keyNorm', 'vec4f']);
  return bound;
}

/**
 * WGSL of `HeadPart`; of `squaresOf(x)`, whose sums over a head's lanes, neighbours first, are `sum`; of `queryNormed(x, sum,
 * queryNormAt(lane))` and the same of keys; and of `turned(x, partner, anglesAt(lane, position), lane)`, where `partner` is
 * what the lane has that is {@link partnerMask} away. What is read can be so long before it is needed.
 */
export function headLanes(operation: RotateOperation): string {
  const { headDim, rope, queryNorm, keyNorm } = operation;
  const normed = (norm: typeof queryNorm, name: string) =>
    norm === undefined
      ? `fn ${name}At(lane: u32) -> HeadPart { return HeadPart(); }
fn ${name}ed(x: HeadPart, sum: f32, weight: HeadPart) -> HeadPart { return x; }`
      : `fn ${name}At(lane: u32) -> HeadPart { return HeadPart(${name}[2u * lane], ${name}[2u * lane + 1u]); }
fn ${name}ed(x: HeadPart, sum: f32, weight: HeadPart) -> HeadPart {
  let factor = inverseSqrt(sum / ${f32Literal(headDim)} + ${f32Literal(norm.epsilon)});
  return HeadPart(x.low * factor * weight.low, x.high * factor * weight.high);
}`;
  return /* wgsl */ `
struct HeadPart { low: vec4f, high: vec4f }
fn squaresOf(x: HeadPart) -> f32 {
  let squares = fma(x.high, x.high, x.low * x.low);
  return (squares.x + squares.y) + (squares.z + squares.w);
}
${normed(queryNorm, 'queryNorm')}
${normed(keyNorm, 'keyNorm')}
${rotated(rope)}`;
}

function rotated(rope: RotateOperation['rope']): string {
  if (rope === undefined) {
    return /* wgsl */ `
struct Angles { none: u32 }
fn anglesAt(lane: u32, position: u32) -> Angles { return Angles(); }
fn turned(x: HeadPart, partner: HeadPart, angles: Angles, lane: u32) -> HeadPart { return x; }`;
  }
  const { pairing, dimensions } = rope;
  // [context][2][pairs]: cosines, then sines.
  const fours = dimensions / 8;
  const lanes = dimensions / LANE_ELEMENTS;
  if (pairing === 'half') {
    const mask = partnerMask({ rope });
    return /* wgsl */ `
struct Angles { cosines: HeadPart, sines: HeadPart }
fn anglesAt(lane: u32, position: u32) -> Angles {
  let at = position * ${2 * fours}u + 2u * (lane & ${mask - 1}u);
  return Angles(HeadPart(table[at], table[at + 1u]), HeadPart(table[at + ${fours}u], table[at + ${fours + 1}u]));
}
fn turned(x: HeadPart, partner: HeadPart, angles: Angles, lane: u32) -> HeadPart {
  if (lane >= ${lanes}u) { return x; }
  let sign = select(-1f, 1f, (lane & ${mask}u) != 0u);
  return HeadPart(
    fma(x.low, angles.cosines.low, sign * partner.low * angles.sines.low),
    fma(x.high, angles.cosines.high, sign * partner.high * angles.sines.high));
}`;
  }
  return /* wgsl */ `
struct Angles { cosines: vec4f, sines: vec4f }
fn anglesAt(lane: u32, position: u32) -> Angles {
  let at = position * ${2 * fours}u + min(lane, ${lanes - 1}u);
  return Angles(table[at], table[at + ${fours}u]);
}
fn turnedPairs(x: vec4f, cosines: vec2f, sines: vec2f) -> vec4f {
  return fma(x, cosines.xxyy, vec4f(-x.y, x.x, -x.w, x.z) * sines.xxyy);
}
fn turned(x: HeadPart, partner: HeadPart, angles: Angles, lane: u32) -> HeadPart {
  if (lane >= ${lanes}u) { return x; }
  let cosines = angles.cosines;
  let sines = angles.sines;
  return HeadPart(turnedPairs(x.low, cosines.xy, sines.xy), turnedPairs(x.high, cosines.zw, sines.zw));
}`;
}
