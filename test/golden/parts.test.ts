/**
 * A model cut between two devices is the same model: on every family and at every border, official logits and greedy
 * tokens. The reference and the CPU stand on both sides of the cut; the GPU's are in `test/gpu/layers.test.ts`.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { prepareParts } from '../../src/backend/parts.ts';
import { openModelFile } from '../../src/format/open.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import type { Cut } from '../../src/plan/place.ts';
import { sameBits } from '../conformance/support/compare.ts';
import { backendOf, type DeviceModel, planFor, relativeRms, runTokens, withDevice } from '../support/device.ts';
import { families, familyFile, slackOf } from '../support/families.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { argmax } from '../support/reference.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

/** As for a whole model on the CPU. */
const MOST_DISTANCE = 2e-5;
const MOST_RMS = 2e-6;

const options = { context: 64, cache: 'f32', threads: 1 } as const;

function checkLogits(found: Float32Array, expected: Float32Array, slack: number): void {
  assert.equal(found.length, expected.length);
  const distance = found.reduce((worst, x, i) => Math.max(worst, Math.abs(x - (expected[i] as number))), 0);
  assert.ok(distance <= slack * MOST_DISTANCE, `logits are off by ${distance}`);
  const error = relativeRms(found, expected);
  assert.ok(error <= slack * MOST_RMS, `logits have a relative RMS of ${error}`);
}

async function layersOfFile(family: string): Promise<number> {
  const file = await openModelFile(await nodeModelSource(familyFile(family, 'model.gguf')));
  await file.close();
  return readModel(file).spec.layers.length;
}

async function checkModel(model: DeviceModel, family: string): Promise<void> {
  const expected = readSafetensors(familyFile(family, 'expected.safetensors'));
  const tokens = i32Of(expected, 'tokens');
  const { vocabulary } = model.spec;
  const logits = await runTokens(model, tokens, 0, 'prompt');
  const slack = slackOf(family);
  checkLogits(logits, f32Of(expected, 'logits'), slack);
  // A prompt in two pieces, the rest step by step.
  const half = tokens.length >> 1;
  const chunk = await runTokens(model, tokens.subarray(0, half), 0, 'prompt');
  sameBits(chunk, logits.subarray(0, half * vocabulary), 'half of the prompt');
  const steps = new Float32Array((tokens.length - half) * vocabulary);
  for (let at = half; at < tokens.length; at++) {
    steps.set(await runTokens(model, [tokens[at] as number], at, 'step'), (at - half) * vocabulary);
  }
  checkLogits(steps, f32Of(expected, 'logits').subarray(half * vocabulary), slack);
  const greedy = [argmax(logits.subarray(-vocabulary))];
  while (greedy.length < 16) {
    const position = tokens.length + greedy.length - 1;
    greedy.push(argmax(await runTokens(model, greedy.slice(-1), position, 'step')));
  }
  assert.deepEqual(greedy, [...i32Of(expected, 'greedy')]);
}

for (const family of families) {
  test(`${family}: the same model at every border, whichever device comes first`, async () => {
    const layers = await layersOfFile(family);
    for (let border = 1; border < layers; border++) {
      for (const [first, second] of [
        ['reference', 'cpu'],
        ['cpu', 'reference'],
      ] as const) {
        const cuts: readonly Cut[] = [
          { device: first, end: border },
          { device: second, end: layers },
        ];
        await withDevice(familyFile(family, 'model.gguf'), { ...options, cuts }, (model) => checkModel(model, family));
      }
    }
  });
}

describe('parts of a model', () => {
  const path = familyFile('glm4moe', 'model.gguf');
  const cuts: readonly Cut[] = [
    { device: 'cpu', end: 1 },
    { device: 'reference', end: 3 },
  ];

  test('a value is asked of the part that made it', async () => {
    const tokens = i32Of(readSafetensors(familyFile('glm4moe', 'expected.safetensors')), 'tokens');
    const hidden = (given: Parameters<typeof withDevice>[1]) =>
      withDevice(path, given, async (model) => {
        await runTokens(model, tokens, 0, 'prompt');
        const values = await model.executable.value?.(model.graph.hidden[1] as string);
        assert.ok(values !== undefined);
        return values.slice();
      });
    // The rows that are handed on, which both have.
    const [whole, cut] = [await hidden({ ...options, device: 'reference' }), await hidden({ ...options, cuts })];
    const error = relativeRms(cut, whole);
    assert.ok(error <= MOST_RMS, `the first layer's rows have a relative RMS of ${error}`);
  });

  test('tell of a run as one: its beginning, every layer with experts, its end', async () => {
    const tokens = i32Of(readSafetensors(familyFile('glm4moe', 'expected.safetensors')), 'tokens').subarray(0, 5);
    const told = (given: Parameters<typeof withDevice>[1]) =>
      withDevice(path, given, async (model) => {
        const events: unknown[] = [];
        model.executable.watch?.({
          began: (mode, rows) => events.push([mode, rows]),
          routed: (layer, ids) => events.push([layer, ...Array.from(ids)]),
          waited: () => events.push('waited'),
          brought: () => events.push('brought'),
          foreseen: () => events.push('foreseen'),
          pinned: () => events.push('pinned'),
          ended: () => events.push('ended'),
        });
        await runTokens(model, tokens, 0, 'prompt');
        await runTokens(model, [tokens[0] as number], 5, 'step');
        model.executable.watch?.(undefined);
        await runTokens(model, [tokens[0] as number], 6, 'step');
        return events;
      });
    const whole = await told({ ...options, device: 'reference' });
    const layers = (await layersOfFile('glm4moe')) - 1;
    assert.equal(whole.length, 2 * (layers + 2), 'the first layer is dense; nothing is told to nobody');
    for (const border of [1, 2]) {
      for (const order of [
        ['cpu', 'reference'],
        ['reference', 'cpu'],
      ] as const) {
        const own = order.map((device, index): Cut => ({ device, end: index === 0 ? border : 3 }));
        assert.deepEqual(await told({ ...options, cuts: own }), whole, order.join());
      }
    }
  });

  test('are loaded one after the other, with one progress, and given back when a later one fails', async () => {
    const file = await openModelFile(await nodeModelSource(path));
    try {
      const { spec, weights } = readModel(file);
      const graph = buildGraph(spec);
      const plan = planFor({ spec, graph, weights }, { ...options, cuts });
      const seen: { bytesDone: number; bytesTotal: number }[] = [];
      const request = { plan, spec, graph, weights, sources: file.sources };
      const executable = await prepareParts({ ...request, onProgress: (progress) => seen.push(progress) }, (device) =>
        backendOf({ device }),
      );
      assert.ok(seen.every(({ bytesDone }, index) => index === 0 || bytesDone >= (seen[index - 1]?.bytesDone ?? 0)));
      const last = seen.at(-1);
      assert.equal(last?.bytesDone, last?.bytesTotal);
      assert.ok(executable.bytes > 0);
      await executable.dispose();

      let disposed = 0;
      const failing = prepareParts(request, (device) => ({
        device,
        rows: [],
        async prepare() {
          if (device === 'reference') throw new RangeError('no room');
          return {
            bytes: 0,
            run: async () => new Float32Array(0),
            async dispose() {
              disposed++;
            },
          };
        },
      }));
      await assert.rejects(failing, /no room/);
      assert.equal(disposed, 1);
    } finally {
      await file.close();
    }
  });
});
