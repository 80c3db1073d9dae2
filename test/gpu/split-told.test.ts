/**
 * What a model with split experts tells on the GPU: its routing is recorded and counted, and one that is given is followed to the
 * letter, by experts that a trace has chosen for the slots.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type LoadOptions, load, type Model } from '../../src/index.ts';
import '../support/gpu.ts';

const bundled = fileURLToPath(new URL('../../models/lexicon-glm4moe-Q4_K_M.gguf', import.meta.url));
/** Layers 1 to 4 have 16 experts, of which a row uses 4. */
const [layers, experts, used] = [4, 16, 4];
const PROMPT = [5, 300, 17, 1200, 44, 3, 900, 8, 61];
const ANSWER = 6;

async function generate(model: Model): Promise<readonly number[]> {
  const session = model.session();
  try {
    for await (const part of session.generate(
      { tokens: PROMPT },
      { temperature: 0, maxTokens: ANSWER, ignoreEos: true },
    )) {
      if (part.type === 'finish') return part.tokens;
    }
    return assert.fail('generation ended without a finish');
  } finally {
    await session.dispose();
  }
}

/** What is recorded and counted of a prompt and its answer. */
async function told(model: Model) {
  const ids: number[] = [];
  const recording = await model.recordRouting((rows) => void ids.push(...rows.ids));
  assert.deepEqual(recording.shape, { layers, experts, used });
  const answer = await generate(model);
  await recording.stop();
  const stats = await model.expertStats();
  assert.ok(stats !== undefined, 'split experts are counted without being asked for');
  assert.deepEqual(stats.notCounted, []);
  return { ids, answer, stats };
}

async function withModel<T>(options: LoadOptions, use: (model: Model) => Promise<T>): Promise<T> {
  const model = await load(bundled, { context: 64, batch: 16, recordRouting: true, ...options });
  try {
    return await use(model);
  } finally {
    await model.dispose();
  }
}

test('its own routing is the CPU’s, and every pick is counted once', async () => {
  const cpu = await withModel({ device: 'cpu', expertStats: true }, told);
  await withModel({ device: 'gpu', expertCache: 'lfu:40%' }, async (model) => {
    const { ids, answer, stats } = await told(model);
    assert.deepEqual(answer, cpu.answer);
    // Activations are rounded differently: where two experts are all but equal the other one may come.
    const same = ids.filter((id, at) => id === cpu.ids[at]).length / cpu.ids.length;
    assert.ok(ids.length === cpu.ids.length && same > 0.9, `${same} of the ids`);
    for (const [mode, rows] of [
      ['prompt', PROMPT.length],
      ['step', ANSWER - 1],
    ] as const) {
      const counted = stats[mode];
      assert.deepEqual([counted.rows, counted.layers.length], [rows, layers]);
      for (const layer of counted.layers) {
        assert.equal(layer.picks, rows * used);
        assert.equal(layer.hits + layer.passed + layer.misses, layer.picks);
        assert.equal(layer.steps, mode === 'prompt' ? 1 : rows);
        assert.ok(layer.wait.roundTripMs > 0);
        assert.equal(layer.passed > 0, layer.passes > 0);
        if (mode === 'step') assert.equal(layer.passed, 0);
      }
    }
    const [uploads, bytes] = [stats.prompt, stats.step]
      .flatMap((counted) => counted.layers)
      .reduce(([count, sum], layer) => [count + layer.uploads, sum + layer.uploadedBytes], [0, 0]);
    assert.ok(uploads > 0 && bytes > uploads * 100_000, `${uploads} uploads of ${bytes} bytes`);

    // The experts in slots as they run, the other kernels by themselves; and nothing of it is counted.
    const profile = await model.profile(PROMPT, { rows: 'step', repetitions: 1 });
    const slots = profile?.kernels?.filter(({ label }) => label === 'experts in slots');
    assert.deepEqual(
      slots?.map(({ dispatches }) => dispatches),
      [layers],
    );
    assert.ok((slots?.[0]?.ns ?? 0) > 0);
    assert.ok((profile?.kernels?.length ?? 0) > 5);
    assert.deepEqual(await model.expertStats(), stats);
  });
});

test('a routing that is given is followed to the letter, and what it uses most has the slots', async () => {
  // Seven tokens, so that it begins anew within the prompt; the experts of layer l that are used are 4·l … 4·l + 7.
  const tokens = 7;
  const ids = Uint16Array.from({ length: tokens * layers * used }, (_, at) => {
    const [rank, layer, token] = [at % used, Math.floor(at / used) % layers, Math.floor(at / (used * layers))];
    return (4 * layer + 2 * (token % 3) + rank) % experts;
  });
  const uses = Array.from({ length: layers }, () => new Float64Array(experts));
  ids.forEach((id, at) => {
    (uses[Math.floor(at / used) % layers] as Float64Array)[id]++;
  });
  const routing = { layers, experts, used, ids };
  const slots = 20;
  await withModel({ device: 'gpu', expertCache: `static:${slots}`, routing, expertUses: uses }, async (model) => {
    assert.equal(model.plan.experts?.first, 'most used');
    assert.equal(model.plan.experts?.slots, slots);
    const found = await told(model);
    const rows = PROMPT.length + ANSWER - 1;
    const given = (row: number, layer: number) => {
      const at = ((row % tokens) * layers + layer) * used;
      return [...ids.subarray(at, at + used)];
    };
    assert.deepEqual(
      found.ids,
      Array.from({ length: rows * layers }, (_, at) => given(Math.floor(at / layers), at % layers)).flat(),
    );
    // Slabs share the slots out by layers; within one the most used come first, in whatever order equal ones do.
    const slabs = model.plan.experts?.slabs ?? [];
    for (const slab of slabs) {
      const own = slab.layers.map((layer) => layer - 1);
      const hottest = own
        .flatMap((layer) => [...(uses[layer] as Float64Array)])
        .sort((a, b) => b - a)
        .slice(0, slab.slots);
      const least = hottest.at(-1) as number;
      const picks = (range: readonly [number, number]) =>
        own.flatMap((layer) =>
          Array.from({ length: range[1] - range[0] }, (_, row) => given(range[0] + row, layer)).flatMap((each) =>
            each.map((id) => (uses[layer] as Float64Array)[id] as number),
          ),
        );
      for (const [mode, range] of [
        ['prompt', [0, PROMPT.length]],
        ['step', [PROMPT.length, rows]],
      ] as const) {
        const hits = own.reduce((sum, layer) => sum + (found.stats[mode].layers[layer]?.hits ?? 0), 0);
        const all = picks(range);
        const [sure, possible] = [all.filter((count) => count > least), all.filter((count) => count >= least)];
        assert.ok(
          hits >= sure.length && hits <= possible.length,
          `${mode}: ${hits} of ${sure.length}–${possible.length}`,
        );
        assert.ok(sure.length > 0 && possible.length < all.length, 'some hit for sure, and some miss for sure');
      }
    }
  });
});
