/** A kernel that encodes a value by the functions of `int8.ts` as products do, one thread a block of 32 columns of a row. */

import type { Builder } from '../../src/backend/gpu/builder.ts';
import { int8Helpers } from '../../src/backend/gpu/int8.ts';
import { weightHelpers } from '../../src/backend/gpu/wgsl.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import type { ValueName } from '../../src/model/graph.ts';

/** Words of 32 encoded columns: 8 of bytes, the scale, the sums of 16 columns each times the scale, and one of padding. */
export const ENCODED_WORDS = 12;

/** Bytes of an encoded row; `columns` is a multiple of 32. */
export function encodedBytes(columns: number): number {
  return (columns / 32) * ENCODED_WORDS * 4;
}

/** WGSL of `fn encode32(values) -> Encoded`. */
const encode32 = /* wgsl */ `
fn encode32(v: array<vec4f, 8>) -> Encoded {
  // Sizes are compared as integers: there NaN is the largest, and nothing hides it.
  let four = max(
    max(max(sizeOf(v[0]), sizeOf(v[1])), max(sizeOf(v[2]), sizeOf(v[3]))),
    max(max(sizeOf(v[4]), sizeOf(v[5])), max(sizeOf(v[6]), sizeOf(v[7]))));
  let most = max(max(four.x, four.y), max(four.z, four.w));
  let inverse = inverseFor(most);
  let lo = vec4u(bytesFor(v[0], inverse), bytesFor(v[1], inverse), bytesFor(v[2], inverse), bytesFor(v[3], inverse));
  let hi = vec4u(bytesFor(v[4], inverse), bytesFor(v[5], inverse), bytesFor(v[6], inverse), bytesFor(v[7], inverse));
  return encodedOf(lo, hi, scaleFor(most));
}
`;

/** WGSL of `fn NAME(i: u32) -> Encoded`: block i of `source`, an array<vec4u> in any address space. */
export function encodedReader(name: string, source: string): string {
  return /* wgsl */ `
fn ${name}(i: u32) -> Encoded {
  let last = ${source}[3u * i + 2u];
  return Encoded(${source}[3u * i], ${source}[3u * i + 1u], bitcast<f32>(last.x), bitcast<vec2f>(last.yz));
}`;
}

/** WGSL of `fn NAME(i: u32, x: Encoded)`: writes block i of `target`, an array<vec4u>. */
export function encodedWriter(name: string, target: string): string {
  return /* wgsl */ `
fn ${name}(i: u32, x: Encoded) {
  ${target}[3u * i] = x.lo;
  ${target}[3u * i + 1u] = x.hi;
  ${target}[3u * i + 2u] = vec4u(bitcast<u32>(x.scale), bitcast<vec2u>(x.sums), 0u);
}`;
}

const THREADS = 64;

/** The buffer that holds a value's encoded rows: [rows][width / 32][ENCODED_WORDS] words. */
export function encodedName(value: ValueName): string {
  return `${value} int8`;
}

/** Emits the dispatch that encodes a value, whose width is a multiple of 32, and declares its buffer. */
export function emitEncode(builder: Builder, mode: Mode, value: ValueName): void {
  const width = builder.width(value);
  const blocks = width / 32;
  builder.declareBuffer(encodedName(value), builder.rows * encodedBytes(width));
  builder.dispatch(mode, {
    label: `encode ${value}`,
    code: /* wgsl */ `${weightHelpers}${int8Helpers}${encode32}
@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> encoded: array<vec4u>;
${encodedWriter('writeBlock', 'encoded')}
@compute @workgroup_size(${THREADS}) fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= ${blocks}u || id.y >= step[${builder.step.rows}]) { return; }
  let block = id.y * ${blocks}u + id.x;
  let at = block * 8u;
  writeBlock(block, encode32(array<vec4f, 8>(
    values[at], values[at + 1u], values[at + 2u], values[at + 3u],
    values[at + 4u], values[at + 5u], values[at + 6u], values[at + 7u])));
}`,
    bindings: [
      { kind: 'step' },
      { kind: 'value', name: value, access: 'read' },
      { kind: 'buffer', name: encodedName(value), access: 'write' },
    ],
    workgroups: ({ rows }) => [Math.ceil(blocks / THREADS), rows, 1],
  });
}
