/** Routing as the library tells it: what is recorded and what is counted is what the reference routes, on each device that tells. */

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { before, suite, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { main } from '../../src/cli/commands.ts';
import { openTrace } from '../../src/cli/trace-input.ts';
import { type ExpertStatistics, type LoadOptions, load, planModel, Refusal, UsageError } from '../../src/index.ts';
import { world } from '../support/cli-world.ts';
import { runRows, withReference } from '../support/reference.ts';

const path = (name: string) => fileURLToPath(new URL(`../../${name}`, import.meta.url));
const bundled = path('models/lexicon-glm4moe-Q4_K_M.gguf');
/** Its first layer is dense, four have 16 experts of which a row uses 4. */
const layers = [1, 2, 3, 4];
const used = 4;
const ANSWER = 5;

interface Told {
  readonly ids: readonly number[];
  readonly prompt: readonly number[];
  readonly answer: readonly number[];
  readonly stats: ExpertStatistics;
}

/** A prompt and its greedy answer. */
async function told(options: LoadOptions): Promise<Told> {
  const model = await load(bundled, { context: 256, recordRouting: true, expertStats: true, ...options });
  try {
    const prompt = model.tokenize(await model.applyTemplate([{ role: 'user', content: 'What is a glacier?' }]), {
      special: true,
    });
    const ids: number[] = [];
    const recording = await model.recordRouting((rows) => {
      assert.equal(rows.ids.length, rows.rows * rows.layers * rows.used);
      ids.push(...rows.ids);
    });
    assert.deepEqual(recording.shape, { layers: 4, experts: 16, used });
    const session = model.session();
    const generate = async (maxTokens: number): Promise<readonly number[]> => {
      for await (const part of session.generate({ tokens: prompt }, { temperature: 0, maxTokens, ignoreEos: true })) {
        if (part.type === 'finish') return part.tokens;
      }
      return [];
    };
    const answer = await generate(ANSWER);
    await recording.stop();
    const before = ids.length;
    const stats = await model.expertStats({ reset: true });
    assert.ok(stats !== undefined);
    await generate(2);
    assert.equal(ids.length, before, 'nothing is handed on after the end');
    // The prompt is in the cache, but for its last token.
    assert.equal((await model.expertStats())?.prompt.rows, 1, 'a reset forgets');
    return { ids, prompt, answer, stats };
  } finally {
    await model.dispose();
  }
}

/** The same rows on the reference by itself: [rows, layers, used]. */
function routesOf(prompt: readonly number[], answer: readonly number[]): Promise<number[]> {
  return withReference(bundled, async (model) => {
    const ids: number[] = [];
    const run = async (tokens: readonly number[], start: number) => {
      await runRows(model, tokens, start, start === 0 ? 'prompt' : 'step');
      for (let row = 0; row < tokens.length; row++) {
        for (const layer of layers) ids.push(...(model.executable.routes(layer)[row]?.experts ?? []));
      }
    };
    await run(prompt, 0);
    for (const [index, token] of answer.entries()) await run([token], prompt.length + index);
    return ids;
  });
}

/** Picks of a layer by expert, of recorded rows. */
function picksOf(ids: readonly number[], layer: number): number[] {
  const picks = new Array<number>(16).fill(0);
  ids.forEach((id, at) => {
    if (Math.floor(at / used) % layers.length === layer) (picks[id] as number)++;
  });
  return picks;
}

suite('the bundled model', () => {
  let reference: Told;
  let expected: readonly number[];
  before(async () => {
    reference = await told({ device: 'reference' });
    // The answer's last token is drawn, and not run.
    expected = await routesOf(reference.prompt, reference.answer.slice(0, -1));
  });

  test('on the reference every row of prompt and answer is recorded as it is routed', () => {
    assert.equal(expected.length, (reference.prompt.length + ANSWER - 1) * layers.length * used);
    assert.deepEqual(reference.ids, expected);
  });

  test('on the CPU as well, whether a run has many rows or one', async () => {
    const whole = await told({ device: 'cpu' });
    assert.deepEqual(whole.answer, reference.answer);
    // Activations have 8 bits there: where two experts are all but equal the other one may come, or an order turn round.
    const same = whole.ids.filter((id, at) => id === expected[at]).length / expected.length;
    assert.ok(whole.ids.length === expected.length && same > 0.9, `${same} of the ids`);
    for (const options of [{ batch: 1 }, { batch: 5, threads: 1 }]) {
      assert.deepEqual((await told({ device: 'cpu', ...options })).ids, whole.ids, JSON.stringify(options));
    }
  });

  test('what is counted is what is recorded, prompt and answer apart', async () => {
    const { ids, stats, prompt } = await told({ device: 'cpu', batch: 8 });
    const { length } = prompt;
    assert.deepEqual(stats.notCounted, []);
    assert.deepEqual([stats.prompt.steps, stats.prompt.rows], [Math.ceil(length / 8), length]);
    assert.deepEqual([stats.step.steps, stats.step.rows], [ANSWER - 1, ANSWER - 1]);
    const border = length * layers.length * used;
    for (const [mode, own] of [
      ['prompt', ids.slice(0, border)],
      ['step', ids.slice(border)],
    ] as const) {
      for (const [index, layer] of layers.entries()) {
        const counted = stats[mode].layers[index];
        const picks = picksOf(own, index);
        const all = own.length / layers.length;
        assert.deepEqual([counted?.layer, counted?.picks], [layer, all]);
        assert.equal(counted?.load, (Math.max(...picks) * 16) / all);
        assert.equal(counted?.hits, 0, 'no layer has slots');
        if (mode === 'step') assert.equal(counted?.uniqueExperts, all, 'a row uses each expert once');
      }
    }
  });

  test('conclave trace writes just that, and conclave replay, --expert-uses and --routing read it', async () => {
    const root = mkdtempSync(join(tmpdir(), 'conclave-trace-'));
    const conclave = async (...argv: readonly string[]) => {
      const { context, out, err } = world({ load, planModel });
      return { code: await main(argv, context), out: out(), err: err() };
    };
    try {
      const path = join(root, 'trace');
      const flags = ['-p', 'What is a glacier?', '--temp', '0', '-n', '5', '-c', '256', '--device', 'reference'];
      const traced = await conclave('trace', ...flags, '-o', path, '--json');
      assert.equal(traced.code, 0, traced.err);
      const { tokens, expertBytes, model } = JSON.parse(traced.out);
      assert.equal(tokens * layers.length * used, expected.length);
      assert.ok(expertBytes > 1000 && model.startsWith('Lexicon'));
      const trace = await openTrace(path);
      assert.deepEqual([...(await trace.read(0, tokens)).all], expected);
      await trace.close();

      const replayed = await conclave('replay', path, '--expert-cache', 'lfu:50%', '--json');
      assert.equal(replayed.code, 0, replayed.err);
      assert.equal(JSON.parse(replayed.out).shape.tokens, tokens);
      // They get as far as to what they are of use for.
      for (const refused of [
        await conclave('plan', '--expert-uses', path),
        await conclave('bench', '--routing', path, '-p', '4', '-n', '2'),
      ]) {
        assert.equal(refused.code, 2);
        assert.match(refused.err, /of use only where experts are split between GPU and CPU/);
      }
    } finally {
      rmSync(root, { recursive: true });
    }
  });

  test('what throws while rows are handed on is thrown at the end, and holds nothing up', async () => {
    const model = await load(bundled, { context: 256 });
    try {
      const recording = await model.recordRouting(() => {
        throw new RangeError('the disk is full');
      });
      await using session = model.session();
      for await (const part of session.generate({ tokens: [1, 2, 3] }, { temperature: 0, maxTokens: 3 })) void part;
      await assert.rejects(recording.stop(), /the disk is full/);
      assert.equal(await model.expertStats(), undefined, 'nobody asked for statistics');
    } finally {
      await model.dispose();
    }
  });
});

test('what cannot be told is refused before a weight is read', async () => {
  const dense = path('test/fixtures/families/llama/model.gguf');
  await assert.rejects(
    load(dense, { expertStats: true }),
    (error) => error instanceof UsageError && /nothing to count: it has no experts/.test(error.message),
  );
  await assert.rejects(
    load(dense, { recordRouting: true }),
    (error) => error instanceof Refusal && /cannot be recorded: it has no experts/.test(error.message),
  );
  const ids = new Uint16Array(layers.length * used).map((_, at) => at % used);
  const routing = { layers: layers.length, experts: 16, used, ids };
  for (const [options, message] of [
    [{ routing }, /routing \(--routing\) is of use only where experts are split/],
    [{ routing: { ...routing, experts: 3 } }, /routing: found an object, expected \{ layers, experts, used, ids \}/],
    [{ routing: { ...routing, ids: new Uint16Array(ids.length) } }, /of experts, each once in a layer$/],
    [{ routing: { ...routing, experts: 2 ** 40 } }, /routing: found an object, expected/],
    [{ expertUses: [[1, 2]] }, /found 1 layers of 2 experts, expected 4 layers of 16 experts/],
    [{ expertUses: layers.map(() => new Float64Array(16)) }, /of use only where experts are split/],
    [{ expertUses: [[-1]] }, /expertUses: found an array of 1, expected arrays of counts/],
  ] as const) {
    await assert.rejects(
      load(bundled, options),
      (error) => error instanceof UsageError && message.test(error.message),
      message.source,
    );
  }
});
