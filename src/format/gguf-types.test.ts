import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formats } from '../quant/index.ts';
import { tensorTypes } from './gguf-types.ts';

test('the weight formats and the list of GGUF tensor types agree on numbers, names and block sizes', () => {
  const numbered = formats.filter((format) => format.ggufType !== undefined);
  assert.ok(numbered.length >= 17);
  for (const { id, ggufType, blockLength, blockBytes } of numbered) {
    assert.deepEqual(tensorTypes.get(ggufType ?? -1), { name: id, blockLength, blockBytes });
  }
});

test('no two types share a name, and a type has both block sizes or, when it was removed, neither', () => {
  const types = [...tensorTypes.values()];
  assert.equal(new Set(types.map(({ name }) => name)).size, types.length);
  assert.deepEqual(
    [...tensorTypes].filter(([, type]) => type.blockLength === undefined).map(([number]) => number),
    [4, 5, 31, 32, 33, 36, 37, 38],
  );
  for (const { blockLength, blockBytes } of types) {
    assert.equal(blockLength === undefined, blockBytes === undefined);
  }
});
