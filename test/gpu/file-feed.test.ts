/** A model whose experts come to the GPU out of its file, through the engine, and what happens when that file is changed. */

import assert from 'node:assert/strict';
import { appendFile, copyFile, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import '../support/gpu.ts';
import { SourceError } from '../../src/errors.ts';
import { load, type Model } from '../../src/index.ts';
import { familyFile } from '../support/families.ts';
import { i32Of, readSafetensors } from '../support/safetensors.ts';

async function greedy(model: Model, tokens: readonly number[], maxTokens: number): Promise<readonly number[]> {
  const session = model.session();
  try {
    for await (const part of session.generate({ tokens }, { temperature: 0, maxTokens, ignoreEos: true })) {
      if (part.type === 'finish') return part.tokens;
    }
    return assert.fail('generation ended without a finish');
  } finally {
    await session.dispose();
  }
}

test('the worker opens the file by itself; when it is changed, it is told once, and the answers stay', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'conclave-'));
  try {
    const path = join(folder, 'moe.gguf');
    await copyFile(familyFile('qwen3moe', 'model.gguf'), path);
    const expected = readSafetensors(familyFile('qwen3moe', 'expected.safetensors'));
    const tokens = [...i32Of(expected, 'tokens')];
    const answer = [...i32Of(expected, 'greedy')];
    const faults: Error[] = [];
    const model = await load(path, {
      device: 'gpu',
      gpuLayers: -1,
      expertCache: 'lfu:5',
      context: 64,
      batch: 32,
      cache: 'f32',
      threads: 1,
      onFault: (error) => faults.push(error),
    });
    try {
      assert.equal(model.plan.experts?.slots, 5);
      assert.deepEqual(await greedy(model, tokens, answer.length), answer);
      assert.equal(faults.length, 0, 'the file can be read');
      await appendFile(path, 'more');
      for (let turn = 0; turn < 2; turn++) assert.deepEqual(await greedy(model, tokens, answer.length), answer);
    } finally {
      await model.dispose();
    }
    assert.equal(faults.length, 1);
    const [fault] = faults;
    assert.ok(fault instanceof SourceError);
    assert.match(
      fault.message,
      /moe\.gguf: found \d+ bytes.*; from now on experts are copied to the GPU from memory, which is slower$/,
    );
  } finally {
    await rm(folder, { recursive: true });
  }
});
