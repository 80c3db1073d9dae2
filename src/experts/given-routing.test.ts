import assert from 'node:assert/strict';
import { test } from 'node:test';
import { nodeModelSource } from '../../test/support/node-source.ts';
import { SKEWED, traceSource } from '../../test/support/trace-source.ts';
import { InternalError } from '../errors.ts';
import { GivenIds, idsOf, usesOf } from './given-routing.ts';
import { RoutingTrace } from './trace.ts';

test('rows of runs take one token after the other, and over again from the end', () => {
  // Three tokens of two layers, two experts each.
  const given = new GivenIds(Uint16Array.of(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), [3, 5], 2);
  given.advance(2);
  assert.deepEqual([...given.ids(3)], [0, 1, 4, 5]);
  assert.deepEqual([...given.ids(5)], [2, 3, 6, 7]);
  assert.deepEqual([...given.ids(3)], [0, 1, 4, 5], 'asked twice');
  given.advance(1);
  assert.deepEqual([...given.ids(5)], [10, 11]);
  given.advance(1);
  assert.deepEqual([...given.ids(3)], [0, 1]);
  given.advance(7);
  assert.deepEqual([...given.ids(3)], [4, 5, 8, 9, 0, 1, 4, 5, 8, 9, 0, 1, 4, 5]);
  given.advance(1);
  assert.deepEqual([...given.ids(3)], [8, 9]);
  assert.throws(() => given.ids(4), InternalError);
});

test('a routing that is not whole tokens of the layers is an internal error', () => {
  for (const ids of [new Uint16Array(0), new Uint16Array(3)]) {
    assert.throws(() => new GivenIds(ids, [0], 2), InternalError);
  }
});

test('of a trace its ids are read, of a very long one those of its first tokens, and every use is counted', async () => {
  const trace = await RoutingTrace.open(await nodeModelSource(`${SKEWED}/trace.json`));
  const ids = await idsOf(trace);
  assert.equal(ids.length, 2048 * 48 * 8);
  assert.deepEqual(await idsOf(trace, 2 * 48 * 8 + 1), ids.slice(0, 2 * 48 * 8));
  assert.equal((await idsOf(trace, 1)).length, 48 * 8, 'one at the least');
  const uses = await usesOf(trace);
  await trace.close();
  const expected = Array.from({ length: 48 }, () => new Float64Array(128));
  ids.forEach((id, at) => {
    (expected[Math.floor(at / 8) % 48] as Float64Array)[id]++;
  });
  assert.deepEqual(uses, expected);
});

test('ids of two bytes are read as well', async () => {
  const shape = JSON.stringify({ layers: 1, experts: 300, used: 2, tokens: 2, bytes: 2 });
  const trace = await RoutingTrace.open(traceSource(shape, Uint8Array.of(43, 1, 0, 0, 1, 0, 2, 1)));
  assert.deepEqual(await idsOf(trace), Uint16Array.of(299, 0, 1, 258));
});
