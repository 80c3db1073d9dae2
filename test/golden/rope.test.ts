/** Llama 3.1's rule against the factors that a converted file carries, which the official formula made. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { openGguf } from '../../src/format/gguf.ts';
import { ropeTable } from '../../src/model/rope.ts';
import { nodeModelSource } from '../support/node-source.ts';

test('the rule llama3 and the factors of the file make the same frequencies', async () => {
  const path = fileURLToPath(new URL('../fixtures/families/llama3-rope/model.gguf', import.meta.url));
  const file = await openGguf(await nodeModelSource(path));
  try {
    const tensor = file.tensors.get('rope_freqs.weight');
    assert.ok(tensor !== undefined && tensor.format === 'F32');
    const bytes = new Uint8Array(tensor.bytes);
    await file.sources[tensor.source].readInto(tensor.offset, bytes);
    const shape = { pairing: 'adjacent', dimensions: 32, base: 500_000 } as const;
    const given = ropeTable({ ...shape, scaling: { kind: 'factors' } }, new Float32Array(bytes.buffer));
    const made = ropeTable({
      ...shape,
      // The values that the model's config was published with.
      scaling: { kind: 'llama3', factor: 8, lowFrequencyFactor: 1, highFrequencyFactor: 4, originalContext: 64 },
    });
    assert.equal(given.inverseFrequencies.length, 16);
    given.inverseFrequencies.forEach((frequency, pair) => {
      const off = Math.abs(made.inverseFrequencies[pair] / frequency - 1);
      assert.ok(off < 1e-6, `pair ${pair}: ${made.inverseFrequencies[pair]}, the file says ${frequency}`);
    });
  } finally {
    await file.close();
  }
});
