/** Damage done to whole files at random: whatever comes out is a model or a named error, and it comes out at once. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { CorruptFileError, Refusal } from '../../src/errors.ts';
import { openModelFile } from '../../src/format/open.ts';
import { loneSource } from '../support/memory-source.ts';

const folder = new URL('../fixtures/bad/', import.meta.url);
const gguf = new Uint8Array(readFileSync(new URL('base.gguf', folder)));
/** Where the tensor data of base.gguf begins: damage behind it is damage to weights, which nobody can see. */
const GGUF_HEADER_BYTES = 5856;
const safetensors = new Uint8Array(readFileSync(new URL('outside.safetensors', folder)));

/** Values that break arithmetic: borders of the number types, of what a double can hold, and signs. */
const extremes = [0n, 1n, 2n ** 31n, 2n ** 32n - 1n, 2n ** 32n, 2n ** 53n, 2n ** 63n, 2n ** 64n - 32n, 2n ** 64n - 1n];

/** mulberry32, so that a failure can be repeated. */
function random(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * limit);
  };
}

type Outcome = 'opened' | 'corrupt' | 'refused';

async function outcome(bytes: Uint8Array, what: string): Promise<Outcome> {
  try {
    const model = await openModelFile(loneSource(bytes, 'damaged'));
    for (const { name, shape, offset, bytes: size } of model.tensors.values()) {
      assert.ok(offset >= 0 && size >= 0 && offset + size <= bytes.length, `${what}: ${name} is outside the file`);
      assert.ok(shape.every(Number.isSafeInteger), `${what}: ${name} has shape ${shape}`);
    }
    return 'opened';
  } catch (error) {
    assert.ok(error instanceof CorruptFileError || error instanceof Refusal, `${what}: ${(error as Error).stack}`);
    assert.match(error.message, /^damaged: /, what);
    return error instanceof Refusal ? 'refused' : 'corrupt';
  }
}

/** Runs `rounds` kinds of damage and counts what comes of them. */
async function run(rounds: number, damage: (round: number) => readonly [bytes: Uint8Array, what: string]) {
  const counts = { opened: 0, corrupt: 0, refused: 0 };
  for (let round = 0; round < rounds; round++) {
    const [bytes, what] = damage(round);
    counts[await outcome(bytes, what)]++;
  }
  return counts;
}

test('every cut of a GGUF file is corrupt', async () => {
  const cuts = [...Array(GGUF_HEADER_BYTES).keys(), gguf.length - 4096, gguf.length - 1];
  const counts = await run(cuts.length, (round) => [gguf.subarray(0, cuts[round]), `cut at ${cuts[round]}`]);
  assert.deepEqual(counts, { opened: 0, corrupt: cuts.length, refused: 0 });
  assert.equal(await outcome(gguf, 'the whole file'), 'opened');
});

test('changed bytes in the head of a GGUF file give a model or a named error', async () => {
  const draw = random(1);
  const counts = await run(3000, (round) => {
    const bytes = gguf.slice();
    const changes = Array.from({ length: 1 + draw(4) }, () => [draw(GGUF_HEADER_BYTES), draw(256)] as const);
    for (const [at, value] of changes) bytes[at] = value;
    return [bytes, `round ${round}: ${JSON.stringify(changes)}`];
  });
  // All three happen: the damage is neither always seen by the first check nor never.
  assert.ok(counts.opened > 100 && counts.corrupt > 100 && counts.refused > 10, JSON.stringify(counts));
});

test('extreme numbers anywhere in the head of a GGUF file give a model or a named error', async () => {
  const draw = random(2);
  const counts = await run(3000, (round) => {
    const bytes = gguf.slice();
    const at = draw(GGUF_HEADER_BYTES - 8);
    const value = extremes[round % extremes.length];
    new DataView(bytes.buffer).setBigUint64(at, value, true);
    return [bytes, `round ${round}: ${value} at ${at}`];
  });
  assert.ok(counts.opened > 100 && counts.corrupt > 100, JSON.stringify(counts));
});

test('pieces taken out of, doubled in and moved within a GGUF file give a model or a named error', async () => {
  const draw = random(3);
  await run(500, (round) => {
    const from = draw(GGUF_HEADER_BYTES);
    const piece = gguf.subarray(from, from + 1 + draw(200));
    const to = draw(GGUF_HEADER_BYTES);
    const skip = draw(2) * piece.length;
    const bytes = new Uint8Array(gguf.length + piece.length - skip);
    bytes.set(gguf.subarray(0, to));
    bytes.set(piece, to);
    bytes.set(gguf.subarray(to + skip), to + piece.length);
    return [bytes, `round ${round}: ${piece.length} bytes from ${from} to ${to}, ${skip} left out`];
  });
});

test('every cut and changed bytes of a safetensors file give a model or a named error', async () => {
  const cuts = await run(safetensors.length, (at) => [safetensors.subarray(0, at), `cut at ${at}`]);
  assert.deepEqual(cuts, { opened: 0, corrupt: safetensors.length, refused: 0 });
  const draw = random(4);
  const header = safetensors.length - 64;
  const counts = await run(3000, (round) => {
    const bytes = safetensors.slice();
    const at = draw(header);
    bytes[at] = draw(2) === 0 ? draw(256) : '{}[]",:0123456789-.eE\\ '.charCodeAt(draw(23));
    return [bytes, `round ${round}: byte ${at} became ${bytes[at]}`];
  });
  assert.ok(counts.opened > 100 && counts.corrupt > 100 && counts.refused > 10, JSON.stringify(counts));
});
