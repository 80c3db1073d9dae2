import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { random } from '../../test/conformance/support/blocks.ts';
import { nodeModelSource } from '../../test/support/node-source.ts';
import { SKEWED, traceSource } from '../../test/support/trace-source.ts';
import { CorruptFileError, InternalError } from '../errors.ts';
import { RoutingTrace } from './trace.ts';
import { TraceWriter } from './trace-writer.ts';

/** `used` distinct ids a row. */
function picks(next: () => number, rows: number, used: number, experts: number): number[] {
  return Array.from({ length: rows }, () => {
    const row = new Set<number>();
    while (row.size < used) row.add(Math.floor(experts * next()));
    return [...row];
  }).flat();
}

for (const [experts, bytes] of [
  [8, 1],
  [256, 1],
  [257, 2],
  [65_536, 2],
] as const) {
  test(`what is written of ${experts} experts is read again, ${bytes} bytes an id`, async () => {
    const next = random(experts);
    const shape = { layers: 3, experts, used: 2, model: 'a model', expertBytes: 1000 };
    const written: Uint8Array[] = [];
    const writer = new TraceWriter(shape, (part) => void written.push(part));
    const tokens = Array.from({ length: 9 }, () => Array.from({ length: 3 }, () => picks(next, 1, 2, experts)));
    tokens[0][1] = [experts - 1, 0];
    for (const [first, end] of [
      [0, 1],
      [1, 6],
      [6, 6],
      [6, 9],
    ]) {
      await writer.add(tokens.slice(first, end).flat(2));
    }
    assert.equal(writer.tokens, 9);
    const ids = new Uint8Array(await new Blob(written as Uint8Array<ArrayBuffer>[]).arrayBuffer());
    assert.equal(ids.length, 9 * 3 * 2 * bytes);

    const trace = await RoutingTrace.open(traceSource(writer.json(), ids));
    assert.deepEqual(trace.shape, { ...shape, tokens: 9 });
    const all = await trace.read(0, 9);
    const some = await trace.read(4, 3);
    for (const [token, layers] of tokens.entries()) {
      for (const [layer, used] of layers.entries()) {
        assert.deepEqual([...all.ids(token, layer)], used);
        if (token >= 4 && token < 7) assert.deepEqual([...some.ids(token, layer)], used);
      }
    }
    await assert.rejects(trace.read(8, 2), InternalError);
    await trace.close();
  });
}

test('blocks give all tokens in order, whatever a block holds', async () => {
  // 2^20 ids a block: two blocks and a rest.
  const [layers, used, tokens] = [64, 32, 1100];
  const next = random(1);
  const ids = new Uint8Array(tokens * layers * used);
  for (let row = 0; row < tokens * layers; row++) {
    const first = Math.floor(256 * next());
    for (let rank = 0; rank < used; rank++) ids[row * used + rank] = first + rank;
  }
  const shape = JSON.stringify({ layers, experts: 256, used, tokens });
  const trace = await RoutingTrace.open(traceSource(shape, ids));
  const sizes: number[] = [];
  for await (const block of trace.blocks()) {
    assert.equal(
      block.first,
      sizes.reduce((a, b) => a + b, 0),
    );
    sizes.push(block.tokens);
    for (let token = block.first; token < block.first + block.tokens; token++) {
      for (let layer = 0; layer < layers; layer++) {
        assert.equal(block.ids(token, layer)[0], ids[(token * layers + layer) * used]);
      }
    }
  }
  assert.deepEqual(sizes, [512, 512, 76]);
});

test('the fixture is read, unknown keys and all', async () => {
  const trace = await RoutingTrace.open(await nodeModelSource(`${SKEWED}/trace.json`));
  assert.deepEqual(
    { ...trace.shape },
    { layers: 48, experts: 128, used: 8, tokens: 2048, model: undefined, expertBytes: undefined },
  );
  const block = await trace.read(2047, 1);
  assert.equal(block.ids(2047, 47).length, 8);
  await trace.close();
});

describe('a damaged or hostile trace is a named error', () => {
  const good = { layers: 2, experts: 4, used: 2, tokens: 3 };
  const ids = Uint8Array.from([0, 1, 2, 3, 3, 2, 1, 0, 0, 2, 1, 3]);
  const cases: readonly (readonly [string, unknown, Uint8Array, RegExp])[] = [
    ['one byte too few', good, ids.subarray(1), /trace\.bin: has 11 bytes, and trace\.json makes it 12/],
    ['one byte too many', good, Uint8Array.from([...ids, 0]), /has 13 bytes/],
    ['no ids', good, new Uint8Array(0), /has 0 bytes/],
    ['another shape', { ...good, tokens: 4 }, ids, /makes it 16/],
    ['two bytes', { ...good, experts: 300 }, ids, /bytes: found nothing, expected 2, as 300 experts take/],
    ['two bytes said', { ...good, experts: 300, bytes: 2 }, ids, /makes it 24/],
    ['one byte said to be two', { ...good, bytes: 2 }, ids, /bytes: found 2, expected 1/],
    ['another type', { ...good, dtype: 'uint32' }, ids, /dtype: found "uint32", expected "uint8"/],
    ['another order', { ...good, order: 'layer, token, rank' }, ids, /order: found "layer, token, rank"/],
    ...(['layers', 'experts', 'used', 'tokens'] as const).flatMap((key) =>
      [undefined, null, 0, -1, 1.5, '3', 1e300, 2 ** 53, Number.MAX_SAFE_INTEGER].map(
        (value) =>
          [
            `${key} ${value}`,
            { ...good, [key]: value },
            ids,
            new RegExp(`trace\\.json: ${key}: found |trace\\.bin: has 12 bytes`),
          ] as const,
      ),
    ),
    [
      'more experts in all than any model',
      { layers: 17, experts: 65_536, used: 1, tokens: 1, bytes: 2 },
      new Uint8Array(34),
      /layers: found 17, expected a whole number from 1 to 16/,
    ],
    ['more used than there are', { ...good, used: 5 }, ids, /used: found 5, expected a whole number from 1 to 4/],
    ['a model that is no text', { ...good, model: 3 }, ids, /model: found 3, expected a text/],
    ['no bytes an expert', { ...good, expertBytes: 0 }, ids, /expertBytes: found 0/],
    ['a list', [], ids, /it is no JSON object/],
    ['a number', 7, ids, /it is no JSON object/],
  ];
  for (const [name, shape, bytes, message] of cases) {
    test(name, async () => {
      await assert.rejects(
        RoutingTrace.open(traceSource(JSON.stringify(shape), bytes)),
        (error) =>
          error instanceof CorruptFileError && message.test(error.message) && !error.message.includes('undefined'),
      );
    });
  }

  for (const [name, text, message] of [
    ['no JSON', '{"layers": 2', /not a trace's shape/],
    ['a key that stands twice', '{"layers": 2, "layers": 2}', /"layers" stands twice/],
    ['no UTF-8', Uint8Array.from([0x7b, 0xff, 0x7d]), /not UTF-8/],
    ['more than a shape', new Uint8Array(2 ** 20 + 1), /has 1048577 bytes, and a trace's shape takes at most 1048576/],
  ] as const) {
    test(name, async () => {
      await assert.rejects(RoutingTrace.open(traceSource(text, ids)), { name: 'CorruptFileError', message });
    });
  }

  for (const [name, at, id, message] of [
    ['an expert that there is not', 5, 4, /at token 1, layer 0, rank 1 stands expert 4, and there are 0 to 3/],
    ['an expert twice in a row', 11, 1, /at token 2, layer 1, rank 1 stands expert 1 a second time/],
  ] as const) {
    test(name, async () => {
      const trace = await RoutingTrace.open(traceSource(JSON.stringify(good), ids.with(at, id)));
      const all = async () => {
        for await (const block of trace.blocks()) assert.ok(block.tokens > 0);
      };
      await assert.rejects(all(), { name: 'CorruptFileError', message });
    });
  }
});

test('a writer refuses what is not of its shape', async () => {
  const writer = new TraceWriter({ layers: 2, experts: 4, used: 2 }, () => {});
  for (const ids of [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3, 0, 1], [0, 1, 2, 4], [0, 1, 2, -1], [0, 1, 2, Number.NaN]]) {
    await assert.rejects(writer.add(ids), InternalError, ids.join());
  }
});
