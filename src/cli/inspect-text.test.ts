/** What is said of a model names all that its layers do beyond the plain form. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { header } from '../../test/support/headers.ts';
import { readModel } from '../model/read-model.ts';
import { describeInspection } from './inspect-text.ts';

/** The text of a family's fixture, its lines joined where they were wrapped. */
async function described(family: string): Promise<string> {
  const { spec, ignored } = readModel(await header(family));
  const text = describeInspection({
    file: 'model.gguf',
    container: 'gguf',
    version: 3,
    sources: [],
    metadata: {},
    tensors: [],
    formats: [],
    model: { spec, ignored },
    faults: [],
    runs: true,
    damaged: false,
  });
  return text.replace(/\s+/g, ' ');
}

for (const [family, ...said] of [
  ['gpt-oss', 'yarn scaling, a window of 8 positions, sinks', 'clampedSwiglu, with biases, softmax router, normalised'],
  ['gemma3', 'embedding × 8', 'geluTanh', 'a window of 8 positions'],
  ['gemma4-moe', 'logits capped at 30', 'scales of experts', 'a dense block of 96 beside them'],
  [
    'llama4',
    'chunks of 8,192 positions',
    'no rotation, a temperature by position',
    'sigmoid router that weighs inputs',
  ],
  ['laguna', 'a softplus gate for each head'],
] as const) {
  test(family, async () => {
    const text = await described(family);
    for (const part of said) assert.ok(text.includes(part), `${part}\n${text}`);
  });
}

test('what a plain model does not do is not said', async () => {
  const text = await described('qwen3moe');
  for (const part of ['window', 'sinks', 'capped', 'multiplied', 'biases', 'gate for', 'undefined', '[object']) {
    assert.ok(!text.includes(part), part);
  }
});
