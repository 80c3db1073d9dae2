/**
 * Drafting where layers are on a GPU: what predicts further ahead is the reference's there, too, and the text is that of plain
 * decoding, with all of the model there, with the last layers or some experts on the CPU, and with tokens that the device draws.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { PAGE_ROWS } from '../../src/backend/backend.ts';
import { LookupDrafts } from '../../src/engine/speculate/lookup.ts';
import { type DeviceModel, type DeviceOptions, relativeRms, stepOf, withDevice } from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { withLayerAhead } from '../support/layer-ahead.ts';
import { BUNDLED, modelTest } from '../support/models.ts';
import { referenceModels } from '../support/references.ts';
import { decode, mtpOf } from '../support/speculation.ts';

after(closeGpuTestDevice);

/** A tiny model in f32 arithmetic. What its head drafts seldom comes true. */
const path = familyFile('glm4moe', 'model.gguf');
const options: DeviceOptions = { context: 128, batch: 64, threads: 1, cache: 'f32', mtp: true, alter: withLayerAhead };
const prompt = Array.from({ length: 20 }, (_, index) => (index * 37 + 11) % 512);
const next = [3, 141];

/** As of whole models: f32 sums in another order. */
const MOST_RMS = 1e-4;

/** What is predicted behind a prompt, and from there on once more: [1, vocabulary] each, and the rows that it goes on from. */
async function aheadOf({ executable, spec }: DeviceModel) {
  const { mtp } = executable;
  assert.ok(mtp !== undefined);
  const { hidden: width } = spec;
  const pages = 128 / PAGE_ROWS;
  const last = prompt.length - 1;
  const rows = (tokens: readonly number[], first: number) =>
    tokens.map((token, index) => ({ token, position: first + index }));
  const whole = stepOf('prompt', rows(prompt, 0), pages);
  const logits = (await executable.run({ ...whole, wanted: Int32Array.of(last) })).slice();
  const given = mtp.given().slice();
  const before = stepOf('prompt', rows(prompt.slice(1), 0), pages);
  await mtp.run({ ...before, wanted: new Int32Array(0), incoming: given.subarray(0, last * width) });
  // Two rows of one sequence in a step, then one that goes on from what it was given back.
  const two = stepOf('step', rows([prompt[last] as number, next[0] as number], last - 1), pages);
  const first = await mtp.run({ ...two, incoming: given.subarray((last - 1) * width) });
  const [one, hidden] = [first.logits.slice(), first.hidden.slice()];
  const further = stepOf('step', rows(next.slice(1), prompt.length), pages);
  const second = await mtp.run({ ...further, incoming: hidden.subarray(width) });
  assert.deepEqual(mtp.given(), given, 'what it goes on from stays');
  return { logits, given, one, hidden, two: second.logits.slice() };
}

test('what predicts further ahead on the GPU is what it is on the reference', async () => {
  const expected = await withDevice(path, { ...options, device: 'reference' }, aheadOf);
  const gpu = await gpuTestDevice();
  const found = await withDevice(path, { ...options, device: 'gpu' }, aheadOf, gpu);
  for (const name of ['logits', 'given', 'one', 'hidden', 'two'] as const) {
    const error = relativeRms(found[name], expected[name]);
    assert.ok(error <= MOST_RMS, `${name}: a relative RMS of ${error}`);
  }
});

for (const [what, where, maxTokens] of [
  ['all of it on the GPU', { device: 'gpu' }, 16],
  ['the last layers on the CPU', { gpuLayers: 1 }, 20],
  // Each layer stops for the CPU, which on a software GPU takes long.
  ['experts on both', { gpuLayers: -1, expertCache: 'static:50%' }, 6],
] as const) {
  test(`${what}: the text is that of plain decoding, by whatever it is drafted`, async () => {
    const gpu = await gpuTestDevice();
    await withDevice(
      path,
      { ...options, ...where },
      async (model) => {
        const prompts = [prompt, [...next, ...next, 7, ...next]];
        for (const sampling of [{}, { temperature: 0.8, repeatPenalty: 1.2 }]) {
          const asked = { maxTokens, sampling };
          const plain = await decode(model, prompts, asked);
          const drafted = await decode(model, prompts, { ...asked, source: mtpOf(model) });
          assert.deepEqual(drafted.answers, plain.answers);
          assert.ok((drafted.stats?.steps ?? 0) >= 4);
          const looked = await decode(model, prompts, { ...asked, source: new LookupDrafts(), drafts: 3 });
          assert.deepEqual(looked.answers, plain.answers);
        }
      },
      gpu,
    );
  });
}

modelTest(BUNDLED, "the bundled model's head foresees on the GPU what it foresees elsewhere", async (bundled) => {
  const [, glacier] = referenceModels[0]?.answers ?? [];
  assert.ok(glacier !== undefined);
  const gpu = await gpuTestDevice();
  await withDevice(
    bundled,
    { device: 'gpu', context: 128, batch: 64, mtp: true },
    async (model) => {
      const maxTokens = 8;
      const { answers, stats } = await decode(model, [glacier.ids], { maxTokens, source: mtpOf(model) });
      assert.deepEqual(answers, [glacier.greedy.slice(0, maxTokens)]);
      assert.ok(stats !== undefined && stats.tokens / stats.steps >= 2, JSON.stringify(stats));
    },
    gpu,
  );
});
