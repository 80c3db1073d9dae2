/**
 * Drafting through the library and the command: every source gives the text of plain decoding, in conversations too; plans say what
 * drafts and what it takes; what cannot draft is refused by name before a weight is read.
 */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { suite, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import {
  type GenerateOptions,
  type LoadOptions,
  load,
  type Model,
  type Part,
  planModel,
  Refusal,
  type SpeculationOption,
  UsageError,
} from '../../src/index.ts';
import { BUNDLED, largeModel, modelTest, TWIN } from '../support/models.ts';

const root = new URL('../../', import.meta.url);
const bundled = largeModel(BUNDLED) as string;
const family = (name: string) => fileURLToPath(new URL(`test/fixtures/families/${name}/model.gguf`, root));

type Finish = Extract<Part, { type: 'finish' }>;

async function finishOf(parts: AsyncIterable<Part>): Promise<Finish> {
  for await (const part of parts) if (part.type === 'finish') return part;
  throw new Error('no finish');
}

/** Two conversations at once, of three questions each: tokens of every answer. */
async function conversations(model: Model, options: GenerateOptions): Promise<(readonly number[])[][]> {
  const talk = async (seed: number, questions: readonly string[]) => {
    const session = model.session();
    const messages: { role: string; content: string }[] = [];
    const answers: (readonly number[])[] = [];
    for (const content of questions) {
      messages.push({ role: 'user', content });
      const { text, tokens } = await finishOf(session.generate(messages, { ...options, seed, maxTokens: 40 }));
      messages.push({ role: 'assistant', content: text });
      answers.push(tokens);
    }
    await session.dispose();
    return answers;
  };
  return Promise.all([
    talk(1, ['What is a glacier?', 'What is an oak?', 'What is a glacier?']),
    talk(2, ['Define justice.', 'Who are you?', 'Define justice.']),
  ]);
}

async function withModel<Result>(options: LoadOptions, use: (model: Model) => Promise<Result>): Promise<Result> {
  const faults: Error[] = [];
  const model = await load(bundled, {
    threads: 2,
    sessions: 2,
    ...options,
    onFault: (error) => void faults.push(error),
  });
  try {
    return await use(model);
  } finally {
    await model.dispose();
    assert.deepEqual(faults, []);
  }
}

suite('conversations', () => {
  const settings: readonly GenerateOptions[] = [{ temperature: 0 }, { temperature: 0.9, topK: 50, repeatPenalty: 1.1 }];
  const expected = withModel({}, async (model) => {
    assert.equal(await model.speculationStats(), undefined);
    const answers: (readonly number[])[][][] = [];
    for (const options of settings) answers.push(await conversations(model, options));
    return answers;
  });
  const sources: readonly (readonly [string, SpeculationOption])[] = [
    ['mtp', 'mtp:1'],
    ['mtp', 'mtp:3'],
    ['lookup', 'lookup'],
    ['draft', { draft: largeModel(TWIN) as string, tokens: 2 }],
  ];
  for (const [source, speculation] of sources) {
    modelTest(source === 'draft' ? TWIN : BUNDLED, `say the same with ${JSON.stringify(speculation)}`, async () => {
      await withModel({ speculation }, async (model) => {
        for (const [index, options] of settings.entries()) {
          assert.deepEqual(await conversations(model, options), (await expected)[index], JSON.stringify(options));
        }
        const stats = await model.speculationStats({ reset: true });
        assert.ok(stats !== undefined && stats.steps + stats.plainSteps > 0);
        assert.equal(stats.source, source);
        assert.equal(stats.checked.length, stats.drafts);
        assert.ok(stats.steps > 0 && stats.tokens >= stats.steps && stats.tokens <= stats.steps * (1 + stats.drafts));
        assert.ok(stats.accepted.every((accepted, at) => accepted <= (stats.checked[at] ?? 0)));
        assert.equal((await model.speculationStats())?.steps, 0);
        // How many experts rows have in common is known, too.
        assert.ok(((await model.expertStats())?.step.steps ?? 0) > 0);
        await assert.rejects(model.speculationStats({ reset: 1 as unknown as boolean }), UsageError);
      });
    });
  }
});

suite('plans', () => {
  test('say what drafts, and count it', async () => {
    const plain = await planModel(bundled, { device: 'cpu' });
    assert.equal(plain.plan.speculation, undefined);
    assert.ok(plain.plan.ignored.some(({ name }) => name.includes('nextn')));
    const { plan } = await planModel(bundled, { device: 'cpu', speculation: 'mtp:2' });
    assert.deepEqual(plan.speculation, { source: 'mtp', drafts: 2 });
    assert.ok(plan.bytes.weights > plain.plan.bytes.weights && plan.bytes.cache > plain.plan.bytes.cache);
    assert.equal(plan.bytesPerToken, plain.plan.bytesPerToken);
    assert.ok(!plan.ignored.some(({ name }) => name.includes('nextn')));
    assert.match(plan.explain(), /^drafts +2 tokens at a time by the model's own head \(MTP\), while that pays$/m);
    assert.match(plan.explain(), /^ {2}drafts \(MTP\)\n(?: {4}.*\n)* {4}concat/m);
    const lookup = await planModel(bundled, { device: 'cpu', speculation: 'lookup:5' });
    assert.deepEqual(lookup.plan.bytes, plain.plan.bytes);
    assert.match(lookup.plan.explain(), /^drafts +5 tokens at a time by looking up/m);
  });

  modelTest(TWIN, 'of a draft model count its bytes first, and hold both to the memory that there is', async (twin) => {
    const { plan } = await planModel(bundled, { device: 'cpu', speculation: { draft: twin } });
    const { speculation } = plan;
    assert.ok(speculation?.model !== undefined && speculation.model.bytes > 20e6);
    assert.match(plan.explain(), /by Lexicon .*\(qwen3moe\), which takes/);
    const enough = plan.bytes.total + speculation.model.bytes;
    const memory = { device: 'cpu', speculation: { draft: twin }, context: plan.context } as const;
    await planModel(bundled, { ...memory, memoryBytes: enough });
    await assert.rejects(planModel(bundled, { ...memory, memoryBytes: enough - 1 }), /does not fit/);
  });
});

suite('refused before a weight is read', () => {
  test('a file without a head that predicts ahead', async () => {
    for (const name of ['glm4moe', 'qwen3moe', 'llama']) {
      await assert.rejects(
        load(family(name), { device: 'cpu', speculation: 'mtp:1' }),
        (error: unknown) => error instanceof Refusal && /no layer that predicts further ahead/.test(error.message),
      );
    }
  });

  test('a draft model of another vocabulary', async () => {
    await assert.rejects(
      load(bundled, { device: 'cpu', speculation: { draft: family('llama') } }),
      (error: unknown) => error instanceof Refusal && /vocabulary has 512 tokens; expected 6144/.test(error.message),
    );
  });

  test('options that are none', async () => {
    for (const speculation of ['mtp', 'mtp:4', 'lookup:9', 'yes']) {
      await assert.rejects(load(bundled, { speculation: speculation as SpeculationOption }), UsageError);
    }
  });
});

test('conclave start --spec mtp:2 says the same, and --spec-stats what came of it', () => {
  const start = (...flags: string[]) => {
    const entry = fileURLToPath(new URL('src/cli/main.ts', root));
    return spawnSync(process.execPath, [entry, 'start', ...flags], { encoding: 'utf8', timeout: 60_000 });
  };
  const plain = start();
  const drafted = start('--spec', 'mtp:2', '--spec-stats');
  assert.equal(drafted.status, 0, drafted.stderr);
  assert.equal(drafted.stdout, plain.stdout);
  assert.match(
    drafted.stderr,
    /^drafts: mtp, up to 2 tokens; \d\.\d\d tokens a step in \d+ steps?, \d+ steps? without$/m,
  );
  assert.match(drafted.stderr, /^accepted: draft 1 \d+% of \d+, draft 2 \d+% of \d+$/m);
  assert.match(drafted.stderr, /^experts a step: \d+\.\d of each layer$/m);
  const json = start('--spec', 'mtp:2', '--spec-stats', '--json');
  const { speculation } = JSON.parse(json.stdout);
  assert.deepEqual([speculation.source, speculation.drafts, speculation.checked.length], ['mtp', 2, 2]);
  const none = start('--spec-stats');
  assert.deepEqual([none.status, none.stdout], [2, '']);
  assert.match(none.stderr, /nothing is drafted without --spec/);
});
