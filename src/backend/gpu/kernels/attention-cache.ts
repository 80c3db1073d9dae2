/**
 * Keys and values in the pages of a layer's cache on the GPU, [pages][kvHeads][PAGE_ROWS][dim]: how they get there, and how
 * WGSL reads four of them at once.
 */

import type { AttentionOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import type { CacheType } from '../../kernel.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { type Bound, declare, readValue, STEP } from './snippets.ts';

/** Threads of the kernel that stores. */
const THREADS = 64;

/** Four elements of a cache as kernels read them. */
const readAs: Readonly<Record<CacheType, string>> = { f32: 'vec4f', f16: 'vec2u' };

/** Four elements of a cache as {@link encodeFour} makes them. */
export function fourOf(type: CacheType): string {
  return type === 'f32' ? 'vec4u' : 'vec2u';
}

/** Whether values are the beginnings of their keys, so that there is one cache for both. */
function isJoint({ value }: AttentionOperation): boolean {
  return value === undefined;
}

/** Binds a layer's keys and values for `keyAt` and `valueAt` of {@link cacheReaders}. */
export function cacheBindings(operation: AttentionOperation, type: CacheType): readonly Bound[] {
  const parts = isJoint(operation) ? (['keys'] as const) : (['keys', 'values'] as const);
  const { layer } = operation;
  return parts.map((part) => [{ kind: 'cache', layer, part, access: 'read' }, part, readAs[type]]);
}

/** Fours from one value of the cache to the next. */
export function valuePitch(operation: AttentionOperation): number {
  return (isJoint(operation) ? operation.headDim : operation.valueDim) / 4;
}

/** WGSL of `keyAt(i)` and `valueAt(i)`: the four elements from element 4·i on, as f32. */
export function cacheReaders(operation: AttentionOperation, type: CacheType): string {
  const read = (name: string, part: string) =>
    type === 'f32'
      ? `fn ${name}(i: u32) -> vec4f { return ${part}[i]; }`
      : `fn ${name}(i: u32) -> vec4f {
  let words = ${part}[i];
  return vec4f(unpack2x16float(words.x), unpack2x16float(words.y));
}`;
  return `${read('keyAt', 'keys')}\n${read('valueAt', isJoint(operation) ? 'keys' : 'values')}`;
}

/**
 * What is no number, or is more than f16 holds, is kept as NaN, whatever its sign: a key of -infinity would weigh nothing,
 * and so be lost in silence. Decided by bits, because comparisons with NaN may be optimised away.
 */
const encoders: Readonly<Record<CacheType, string>> = {
  f32: `fn encode(x: vec4f) -> vec4u {
  let bits = bitcast<vec4u>(x);
  return select(bits, vec4u(0x7fc00000u), (bits & vec4u(0x7f800000u)) == vec4u(0x7f800000u));
}`,
  // 65520, 0x477ff000, is the least that rounds to more than the largest f16, 65504.
  f16: `fn encode(x: vec4f) -> vec2u {
  let held = clamp(x, vec4f(-65504f), vec4f(65504f));
  let lost = (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) >= vec4u(0x477ff000u);
  let words = vec2u(pack2x16float(held.xy), pack2x16float(held.zw));
  let low = select(words & vec2u(0xffffu), vec2u(0x7e00u), lost.xz);
  let high = select(words & vec2u(0xffff0000u), vec2u(0x7e000000u), lost.yw);
  return low | high;
}`,
};

/** WGSL of `fn encode(x: vec4f)`: four elements as the cache keeps them. */
export function encodeFour(type: CacheType): string {
  return encoders[type];
}

/** Writes every row's keys, and values that are beside them, to its page; a thread takes four elements. */
export function storeDispatch(operation: AttentionOperation, builder: Builder): Dispatch {
  const { layer, key, value, kvHeads, headDim, valueDim } = operation;
  const type = builder.cacheType;
  const target = fourOf(type);
  const beside: readonly Bound[] =
    value === undefined
      ? []
      : [
          [readValue(value), 'value', 'vec4f'],
          [{ kind: 'cache', layer, part: 'values', access: 'write' }, 'values', target],
        ];
  const { text, bindings } = declare([
    [readValue(key), 'key', 'vec4f'],
    [{ kind: 'cache', layer, part: 'keys', access: 'write' }, 'keys', target],
    ...beside,
    STEP,
  ]);
  const keyFours = (kvHeads * headDim) / 4;
  const valueFours = value === undefined ? 0 : (kvHeads * valueDim) / 4;
  const { rows, positions, pageStarts, pages } = builder.step;
  const place = (fours: number) =>
    `((page * ${kvHeads}u + i / ${fours}u) * ${PAGE_ROWS}u + slot) * ${fours}u + i % ${fours}u`;
  return {
    label: `layers.${layer}.attention store`,
    bindings,
    code: `${text}
${encodeFour(type)}

@compute @workgroup_size(${THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  let row = id.y;
  if (id.x >= ${keyFours + valueFours}u || row >= step[${rows}]) { return; }
  let position = step[${positions}u + row];
  let page = step[${pages}u + step[${pageStarts}u + row] + position / ${PAGE_ROWS}u];
  let slot = position % ${PAGE_ROWS}u;
  if (id.x < ${keyFours}u) {
    let i = id.x;
    keys[${place(headDim / 4)}] = encode(key[row * ${keyFours}u + i]);
  }${
    valueFours === 0
      ? ''
      : ` else {
    let i = id.x - ${keyFours}u;
    values[${place(valueDim / 4)}] = encode(value[row * ${valueFours}u + i]);
  }`
  }
}
`,
    workgroups: ({ rows: count }) => [Math.ceil((keyFours + valueFours) / THREADS), count, 1],
  };
}
