/** What the kernels say of a format agrees with the format itself. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatOf } from '../../quant/index.ts';
import {
  acceptsWeight,
  cpuFormat,
  cpuFormats,
  encodedBlockBytes,
  GROUP_ROWS,
  groupBytes,
  groupsOf,
  packedSegments,
} from './formats.ts';

test('the segments of a block are all of its bytes, in whole units', () => {
  for (const { id, segments } of cpuFormats) {
    const bytes = segments.reduce((sum, [count]) => sum + count, 0);
    assert.equal(bytes, formatOf(id).blockBytes, id);
    for (const [count, unit] of segments) assert.ok(count > 0 && count % unit === 0 && [1, 2, 4].includes(unit), id);
    assert.ok(segments.length <= 5, `${id}: interleaving takes five segments at the most`);
  }
});

test('packed segments say the same in five numbers, and end with zeros', () => {
  for (const format of cpuFormats) {
    const packed = packedSegments(format);
    assert.equal(packed.length, 5);
    const read = packed.filter((word) => word !== 0).map((word) => [Math.floor(word / 256), word % 256]);
    assert.deepEqual(read, format.segments, format.id);
    assert.deepEqual(packed.slice(read.length), new Array(5 - read.length).fill(0));
  }
});

test('each format has a number of its own among those of its kind, from 0 on', () => {
  for (const kind of ['float', 'block'] as const) {
    const numbers = cpuFormats.filter((format) => format.kind === kind).map(({ number }) => number);
    assert.deepEqual(numbers, [...numbers.keys()], kind);
  }
  for (const { id, kind, activations } of cpuFormats) {
    assert.equal(kind === 'float', activations === 'f32', id);
    assert.equal(cpuFormat(id)?.id, id);
    // Blocks are cut where activations are: every 32 values.
    assert.equal(formatOf(id).blockLength % (kind === 'float' ? 1 : 32), 0, id);
  }
  assert.equal(cpuFormat('Q9_Z'), undefined);
});

test('activations of 32 values take their codes and four factors', () => {
  assert.deepEqual(encodedBlockBytes, { int8: 32 + 16, digits: 64 + 16, words: 64 + 16 });
});

test('a group is four rows; a row too few still takes a whole one', () => {
  assert.deepEqual([0, 1, 3, 4, 5, 8, 67].map(groupsOf), [0, 1, 1, 1, 2, 2, 17]);
  for (const { id } of cpuFormats) {
    const { blockLength, blockBytes } = formatOf(id);
    assert.equal(groupBytes(id, 3 * blockLength), GROUP_ROWS * 3 * blockBytes);
  }
});

test('a weight must be of a known format and of whole blocks', () => {
  assert.equal(acceptsWeight('w', 'Q4_K', 512), true);
  assert.equal(acceptsWeight('w', 'F16', 7), true);
  assert.match(String(acceptsWeight('w', 'Q4_K', 128)), /w: needs columns in multiples of 256 for Q4_K, found 128/);
  assert.match(String(acceptsWeight('w', 'Q9_Z', 256)), /w: needs one of F32, .*, found Q9_Z/);
});
