/**
 * The library as a whole, over real models: the bundled one on each device, and small ones of several families. What a
 * request gets never depends on who else is served, on chunks, or on what the cache still holds.
 */

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, suite, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import {
  type ByteSource,
  type GenerateOptions,
  load,
  type Model,
  type Part,
  type Prompt,
  planModel,
} from '../../src/index.ts';

const path = (name: string) => fileURLToPath(new URL(`../../${name}`, import.meta.url));
const bundled = path('models/lexicon-glm4moe-Q4_K_M.gguf');
const family = (name: string) => path(`test/fixtures/families/${name}/model.gguf`);

type Finish = Extract<Part, { type: 'finish' }>;

async function finishOf(parts: AsyncIterable<Part>): Promise<Finish> {
  for await (const part of parts) if (part.type === 'finish') return part;
  throw new Error('no finish');
}

async function fresh(model: Model, prompt: Prompt, options: GenerateOptions): Promise<Finish> {
  await using session = model.session();
  return await finishOf(session.generate(prompt, options));
}

const question = (text: string) => [{ role: 'user', content: text }];

for (const device of ['reference', 'cpu'] as const) {
  suite(`the bundled model on ${device}`, () => {
    let model: Model;
    // The reference takes its time.
    const few = device === 'cpu' ? 16 : 6;
    before(async () => {
      model = await load(bundled, { device, sessions: 4, context: 512 });
    });
    after(() => model.dispose());

    test('answers greedily as it was recorded to', async () => {
      const recorded = JSON.parse(
        await readFile(path('test/fixtures/references/lexicon-glm4moe-Q4_K_M.reference.json'), 'utf8'),
      );
      for (const { messages, greedy, answer, ids, text } of recorded.slice(0, device === 'cpu' ? 3 : 1)) {
        const finish = await fresh(model, messages, { temperature: 0 });
        assert.deepEqual(finish.tokens, greedy);
        assert.equal(finish.text, answer);
        assert.equal(finish.reason, 'stop');
        assert.equal(await model.applyTemplate(messages), text);
        assert.deepEqual(model.tokenize(text, { special: true }), ids);
      }
    });

    test('sessions at once answer as each would alone, drawn or greedy', async () => {
      const prompts = ['What is a glacier?', 'Define courage.', 'Hello', 'What does the word "harbor" mean?'];
      const options = (seed: number): GenerateOptions => ({ temperature: seed % 2, seed, maxTokens: few });
      const together = await Promise.all(prompts.map((text, seed) => fresh(model, question(text), options(seed))));
      for (const [seed, text] of prompts.entries()) {
        assert.deepEqual(together[seed]?.tokens, (await fresh(model, question(text), options(seed))).tokens, text);
      }
    });

    test('a second turn over reused prompt rows is the one of a fresh session', async () => {
      await using session = model.session();
      const first = await finishOf(session.generate(question('Define courage.'), { temperature: 0, maxTokens: few }));
      const talk = [
        ...question('Define courage.'),
        { role: 'assistant', content: first.text },
        { role: 'user', content: 'And fear?' },
      ];
      const second = await finishOf(session.generate(talk, { temperature: 0, maxTokens: few, reuse: 'prompt' }));
      assert.ok(second.usage.cachedTokens >= 10);
      assert.deepEqual(second.tokens, (await fresh(model, talk, { temperature: 0, maxTokens: few })).tokens);
      const third = await finishOf(session.generate(talk, { temperature: 0, maxTokens: few }));
      assert.equal(third.usage.cachedTokens, third.usage.promptTokens - 1);
      assert.deepEqual(third.tokens, second.tokens);
    });

    test('a stop string ends the text before it', async () => {
      const finish = await fresh(model, question('What is a glacier?'), { temperature: 0, stop: [' moving'] });
      assert.deepEqual([finish.reason, finish.text], ['stop', 'A glacier is a slowly']);
    });

    test('the seed decides', async () => {
      const options: GenerateOptions = {
        temperature: 3,
        topK: 0,
        topP: 1,
        minP: 0,
        maxTokens: few,
        seed: 11,
        ignoreEos: true,
      };
      const drawn = await fresh(model, question('Hello'), options);
      assert.deepEqual((await fresh(model, question('Hello'), options)).tokens, drawn.tokens);
      assert.notDeepEqual((await fresh(model, question('Hello'), { ...options, seed: 12 })).tokens, drawn.tokens);
    });
  });
}

test('chunks of any size give the same answer', async () => {
  for (const name of ['qwen3moe', 'llama']) {
    const tokens = Array.from({ length: 100 }, (_, i) => (i * 37 + 11) % 500);
    const answers: (readonly number[])[] = [];
    for (const batch of [7, 33, 512]) {
      await using model = await load(family(name), { device: 'cpu', batch, context: 160 });
      answers.push((await fresh(model, { tokens }, { temperature: 0, maxTokens: 24, ignoreEos: true })).tokens);
    }
    assert.deepEqual(answers[1], answers[0], name);
    assert.deepEqual(answers[2], answers[0], name);
  }
});

test('a context that fills up ends with length', async () => {
  await using model = await load(family('qwen3'), { device: 'reference', context: 40 });
  const finish = await fresh(
    model,
    { tokens: Array.from({ length: 30 }, (_, i) => i + 5) },
    { temperature: 0, ignoreEos: true },
  );
  assert.deepEqual([finish.reason, finish.tokens.length], ['length', 10]);
});

test('a plan is made without reading a weight, and closes what it opened', async () => {
  const bytes = await readFile(bundled);
  let read = 0;
  let closed = 0;
  const source: ByteSource = {
    name: 'bundled.gguf',
    size: bytes.length,
    async readInto(offset, target) {
      read += target.length;
      target.set(bytes.subarray(offset, offset + target.length));
    },
    async close() {
      closed++;
    },
  };
  const { plan, info } = await planModel(source);
  assert.ok(read < bytes.length / 4, `${read} bytes read`);
  assert.equal(closed, 1);
  assert.equal(info.architecture, 'glm4moe');
  assert.match(plan.explain(), /glm4moe/);
  assert.deepEqual(JSON.parse(JSON.stringify(plan)).architecture, 'glm4moe');
});

test('loading tells its progress up to the end, from a Blob too', async () => {
  const seen: { readonly bytesDone: number; readonly bytesTotal: number }[] = [];
  const blob = new Blob([await readFile(family('qwen3moe'))]);
  await using model = await load(blob, { onProgress: (progress) => seen.push(progress) });
  const last = seen.at(-1);
  assert.ok(last !== undefined && last.bytesDone === last.bytesTotal && last.bytesTotal > 0);
  assert.ok(seen.every(({ bytesDone }, i) => i === 0 || bytesDone >= seen[i - 1]!.bytesDone));
  assert.equal(model.plan.device, 'cpu');
});

test('an aborted load ends with the reason and leaves nothing open', async () => {
  const bytes = await readFile(bundled);
  const controller = new AbortController();
  let closed = false;
  const source: ByteSource = {
    name: 'slow.gguf',
    size: bytes.length,
    async readInto(offset, target) {
      assert.equal(closed, false);
      if (offset > bytes.length / 2) controller.abort(new Error('changed my mind'));
      target.set(bytes.subarray(offset, offset + target.length));
    },
    async close() {
      closed = true;
    },
  };
  await assert.rejects(load(source, { signal: controller.signal }), /changed my mind/);
  assert.equal(closed, true);
});

test('bad options of load are refused by name', async () => {
  for (const [options, message] of [
    [{ context: 0 }, /context: found 0/],
    [{ threads: 1.5 }, /threads: found 1.5/],
    [{ device: 'npu' }, /device: found "npu", expected 'auto'.* or 'reference'/],
    [{ device: 'gpu:x' }, /device: found "gpu:x", expected 'auto'/],
    [{ gpuLayers: -2 }, /gpuLayers: found -2, expected a whole number from 0 on, -1 or 'auto'/],
    [{ gpuLayers: 'all' }, /gpuLayers: found "all"/],
    [{ gpuMemoryBytes: 0 }, /gpuMemoryBytes: found 0/],
    [{ device: 'cpu', gpuLayers: 1 }, /gpuLayers \(-g\) puts 1 layer on a GPU/],
    [{ gpuMemoryBytes: 1e9 }, /only where layers run on a GPU/],
    [{ contextLength: 5 }, /no option "contextLength"/],
  ] as const) {
    await assert.rejects(
      load(bundled, options as never),
      (error) => error instanceof Error && message.test(error.message),
    );
  }
});
