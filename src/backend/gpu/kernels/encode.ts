/** Encodes a value for integer products (`int8.ts`): one thread a block of 32 columns of a row. */

import type { ValueName } from '../../../model/graph.ts';
import type { Mode } from '../../kernel.ts';
import type { Builder } from '../builder.ts';
import { encodedBytes, encodedWriter, int8Helpers } from '../int8.ts';
import { weightHelpers } from '../wgsl.ts';

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
    code: /* wgsl */ `${weightHelpers}${int8Helpers}
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
