import assert from 'node:assert/strict';
import { after, before, suite, test } from 'node:test';
import { fakeModel, SAFE, VOCABULARY } from '../../test/support/fake-model.ts';
import { DisposedError, NonFiniteError, OutOfMemoryError, UsageError } from '../errors.ts';
import type { LoadedModel } from './model.ts';
import { argmax } from './top-k.ts';
import type { GenerateOptions, Part, Prompt, Session } from './types.ts';

type Finish = Extract<Part, { type: 'finish' }>;

/** Greedy, and nothing that ends or breaks. */
const plain: GenerateOptions = { ...SAFE, temperature: 0, maxTokens: 30 };

async function collect(
  parts: AsyncIterable<Part>,
): Promise<{ texts: Extract<Part, { type: 'text' }>[]; finish: Finish }> {
  const texts: Extract<Part, { type: 'text' }>[] = [];
  for await (const part of parts) {
    if (part.type === 'finish') return { texts, finish: part };
    texts.push(part);
  }
  throw new Error('no finish');
}

const answer = async (session: Session, prompt: Prompt, options: GenerateOptions = plain) =>
  (await collect(session.generate(prompt, options))).finish;

/** A prompt of letters. */
const letters = (length: number, shift = 0) => ({
  tokens: Array.from({ length }, (_, i) => 97 + ((i * 5 + shift) % 23)),
});

/** The host draws the tokens, or the device does, ahead of the host. */
for (const architecture of ['fake', 'draws']) {
  suite(`a session of a model that ${architecture === 'draws' ? 'draws its tokens itself' : 'gives logits'}`, () => {
    let model: LoadedModel;
    before(async () => {
      model = await fakeModel({ architecture });
    });
    after(() => model.dispose());
    const fresh = async (prompt: Prompt, options: GenerateOptions = plain) => {
      const session = model.session();
      try {
        return await answer(session, prompt, options);
      } finally {
        await session.dispose();
      }
    };

    test('parts add up to the finish, which says how much was done', async () => {
      const session = model.session();
      const { texts, finish } = await collect(session.generate(letters(40), plain));
      assert.equal(texts.map(({ text }) => text).join(''), finish.text);
      assert.deepEqual(
        texts.flatMap(({ tokens }) => tokens),
        finish.tokens,
      );
      assert.equal(finish.reason, 'length');
      assert.equal(finish.tokens.length, 30);
      assert.equal(finish.text, String.fromCharCode(...finish.tokens));
      const { usage } = finish;
      assert.deepEqual([usage.promptTokens, usage.cachedTokens, usage.completionTokens], [40, 0, 30]);
      assert.ok(
        usage.prefillMs > 0 &&
          usage.decodeMs > 0 &&
          usage.prefillTokensPerSecond > 0 &&
          usage.decodeTokensPerSecond > 0,
      );
      // The last token drawn was never run.
      assert.deepEqual(session.tokens, [...letters(40).tokens, ...finish.tokens.slice(0, -1)]);
      await session.dispose();
    });

    test('messages go through the template, text is text', async () => {
      const asMessages = await fresh([{ role: 'user', content: 'hello' }]);
      const asText = await fresh({ text: 'user:hello\n' });
      const asTokens = await fresh({ tokens: model.tokenize('user:hello\n') });
      assert.deepEqual(asMessages.tokens, asText.tokens);
      assert.deepEqual(asMessages.tokens, asTokens.tokens);
    });

    test('what the cache holds is reused, and never changes the answer', async () => {
      const session = model.session();
      const first = await answer(session, letters(100));
      const longer = { tokens: [...letters(100).tokens, ...first.tokens, 98, 99] };
      const branch = { tokens: [...letters(70).tokens, 98, 99, 100] };
      const shorter = letters(50);
      for (const [prompt, cached] of [
        [longer, 129],
        [branch, 70],
        [shorter, 49],
        [shorter, 49],
        [letters(30, 3), 0],
      ] as const) {
        const again = await answer(session, prompt);
        assert.equal(again.usage.cachedTokens, cached);
        assert.deepEqual(again.tokens, (await fresh(prompt)).tokens);
      }
      await session.dispose();
    });

    test('with reuse of prompt rows only, generated rows are computed again', async () => {
      const session = model.session();
      const first = await answer(session, letters(100));
      const longer = { tokens: [...letters(100).tokens, ...first.tokens, 98] };
      const second = await answer(session, longer, { ...plain, reuse: 'prompt' });
      assert.equal(second.usage.cachedTokens, 100);
      const third = await answer(session, longer, { ...plain, reuse: 'prompt' });
      assert.equal(third.usage.cachedTokens, 130);
      await session.dispose();
    });

    test('stop strings end the answer before them, and the timeline after them', async () => {
      const whole = await fresh(letters(40));
      for (const length of [1, 3]) {
        const stop = whole.text.slice(12, 12 + length);
        const at = whole.text.indexOf(stop);
        const session = model.session();
        const { texts, finish } = await collect(
          session.generate(letters(40), { ...plain, stop: ['never there', stop] }),
        );
        assert.equal(finish.reason, 'stop');
        assert.equal(finish.text, whole.text.slice(0, at));
        assert.equal(texts.map(({ text }) => text).join(''), finish.text);
        assert.deepEqual(finish.tokens, whole.tokens.slice(0, at + length));
        assert.equal(finish.usage.completionTokens, at + length);
        const rows = [...letters(40).tokens, ...finish.tokens];
        assert.ok(session.tokens.length >= rows.length - 1 && session.tokens.length <= rows.length);
        assert.deepEqual(session.tokens, rows.slice(0, session.tokens.length));
        assert.deepEqual(
          (await answer(session, { tokens: [...rows, 97] })).tokens,
          (await fresh({ tokens: [...rows, 97] })).tokens,
        );
        await session.dispose();
      }
    });

    test('an end token ends the answer without text, unless it is told not to', async () => {
      const bias = { ...SAFE.logitBias, 0: 100 };
      const ended = await fresh(letters(10), { ...plain, logitBias: bias });
      assert.deepEqual([ended.reason, ended.text, ended.tokens], ['stop', '', [0]]);
      const going = await fresh(letters(10), { ...plain, logitBias: bias, ignoreEos: true, maxTokens: 5 });
      assert.deepEqual([going.reason, going.tokens], ['length', [0, 0, 0, 0, 0]]);
    });

    test('prompt and answer fill the context, then it ends with length', async () => {
      const finish = await fresh(letters(500), { ...plain, maxTokens: undefined });
      assert.equal(finish.reason, 'length');
      assert.equal(finish.tokens.length, 12);
    });

    test('a prompt that fills the context is refused with both numbers', async () => {
      await assert.rejects(
        fresh(letters(512)),
        (error) => error instanceof UsageError && /512 tokens/.test(error.message) && /holds 512/.test(error.message),
      );
      await assert.rejects(
        fresh(letters(600)),
        (error) => error instanceof UsageError && /600/.test(error.message) && /512/.test(error.message),
      );
    });

    test('maxTokens 0 reads the prompt and says length', async () => {
      const session = model.session();
      const finish = await answer(session, letters(20), { ...plain, maxTokens: 0 });
      assert.deepEqual([finish.reason, finish.text, finish.tokens.length], ['length', '', 0]);
      assert.equal(session.tokens.length, 20);
      await session.dispose();
    });

    test('the seed is reported, and gives the same answer again', async () => {
      const options: GenerateOptions = { ...SAFE, maxTokens: 40, temperature: 1.5 };
      const drawn = await fresh(letters(20), options);
      const again = await fresh(letters(20), { ...options, seed: drawn.usage.seed });
      const other = await fresh(letters(20), { ...options, seed: drawn.usage.seed + 1 });
      assert.deepEqual(again.tokens, drawn.tokens);
      assert.notDeepEqual(other.tokens, drawn.tokens);
    });

    test('many sessions at once answer as each would alone', async () => {
      const prompts = Array.from({ length: 8 }, (_, id) => letters(5 + id * 17, id));
      const together = await Promise.all(prompts.map((prompt) => fresh(prompt)));
      for (const [id, prompt] of prompts.entries())
        assert.deepEqual(together[id]?.tokens, (await fresh(prompt)).tokens);
    });

    test('leaving the loop early stops, and the session goes on from what was read', async () => {
      const session = model.session();
      let read = '';
      for await (const part of session.generate(letters(40), { ...plain, maxTokens: 300 })) {
        read += part.text;
        if (read.length >= 5) break;
      }
      const rows = [...letters(40).tokens, ...model.tokenize(read)];
      assert.ok(session.tokens.length >= rows.length - 1 && session.tokens.length <= rows.length);
      assert.deepEqual(session.tokens, rows.slice(0, session.tokens.length));
      const prompt = { tokens: [...rows, 97] };
      const next = await answer(session, prompt);
      assert.ok(next.usage.cachedTokens >= rows.length - 1);
      assert.deepEqual(next.tokens, (await fresh(prompt)).tokens);
      await session.dispose();
    });

    test('a signal ends with its reason, before or during, and the session can be used again', async () => {
      const session = model.session();
      await assert.rejects(
        answer(session, letters(10), { ...plain, signal: AbortSignal.abort(new Error('before')) }),
        /before/,
      );
      const controller = new AbortController();
      await assert.rejects(async () => {
        for await (const part of session.generate(letters(10), {
          ...plain,
          maxTokens: undefined,
          signal: controller.signal,
        })) {
          if (part.type === 'text') controller.abort(new Error('enough'));
        }
      }, /enough/);
      assert.deepEqual((await answer(session, letters(12))).tokens, (await fresh(letters(12))).tokens);
      await session.dispose();
    });

    test('a signal is heard during a prompt of slow chunks', async () => {
      const session = model.session();
      const controller = new AbortController();
      const running = answer(
        session,
        { tokens: Array.from({ length: 400 }, () => 123) },
        { ...plain, signal: controller.signal },
      );
      setTimeout(() => controller.abort(new Error('too slow')), 30);
      await assert.rejects(running, /too slow/);
      await answer(session, letters(5));
      // Only a part of the slow prompt was read, and none of it serves the new one.
      assert.equal(session.tokens.length, 5 + 29);
      await session.dispose();
    });

    test('one generation at a time', async () => {
      const session = model.session();
      const first = session.generate(letters(10), plain);
      await first.next();
      await assert.rejects(
        session.generate(letters(10), plain).next(),
        (error) => error instanceof UsageError && /already/.test(error.message),
      );
      await first.return?.();
      await answer(session, letters(10));
      await session.dispose();
    });

    test('a fault names its step, fails that answer alone, and the session goes on', async () => {
      const session = model.session();
      const other = answer(model.session(), letters(30, 1), { ...plain, maxTokens: 200 });
      await assert.rejects(
        answer(session, { tokens: [97, 120] }),
        (error) => error instanceof NonFiniteError && /step 0.*layer 2/.test(error.message),
      );
      assert.deepEqual((await answer(session, letters(12))).tokens, (await fresh(letters(12))).tokens);
      assert.deepEqual((await other).tokens, (await fresh(letters(30, 1), { ...plain, maxTokens: 200 })).tokens);
      await session.dispose();
    });

    test('bad options and prompts are refused by name', async () => {
      const session = model.session();
      const refused: readonly [GenerateOptions, RegExp][] = [
        [{ temperature: NaN }, /temperature: found NaN/],
        [{ temperature: -1 }, /temperature: found -1/],
        [{ temperature: '1' as never }, /temperature: found "1"/],
        [{ topP: 2 }, /topP: found 2/],
        [{ minP: -0.1 }, /minP/],
        [{ topK: 1.5 }, /topK: found 1.5/],
        [{ topK: -1 }, /topK/],
        [{ repeatPenalty: 0 }, /repeatPenalty/],
        [{ repeatPenalty: 1e-308 }, /repeatPenalty.*expected a number from 0\.000001/],
        [{ frequencyPenalty: -1e308 }, /frequencyPenalty/],
        [{ logitBias: { 0: 1e39 } }, /logitBias: found 1e\+39 for token 0, expected a number from -1000000/],
        [{ presencePenalty: Infinity }, /presencePenalty/],
        [{ penaltyWindow: -2 }, /penaltyWindow/],
        [{ seed: 2 ** 53 }, /seed/],
        [{ maxTokens: -1 }, /maxTokens: found -1/],
        [{ stop: '\n' as never }, /stop/],
        [{ stop: [''] }, /stop/],
        [{ stop: ['\ud800'] }, /stop/],
        [{ logitBias: { [VOCABULARY]: 1 } }, /logitBias: found token "128"/],
        [{ logitBias: { '03': 1 } as Record<string, number> }, /logitBias: found token "03"/],
        [{ logitBias: { 3: NaN } }, /logitBias: found NaN for token 3/],
        [{ logitBias: { 3: Infinity } }, /logitBias/],
        [{ signal: {} as never }, /signal/],
        [{ chatTemplateKwargs: [] as never }, /chatTemplateKwargs/],
        [{ maxtokens: 3 } as never, /no option "maxtokens"; it has .*maxTokens/],
        [{ constructor: 3 } as never, /no option "constructor"/],
      ];
      for (const [options, message] of refused) {
        await assert.rejects(
          answer(session, letters(3), options),
          (error) => error instanceof UsageError && message.test(error.message),
          message.source,
        );
      }
      const prompts: readonly [Prompt, RegExp][] = [
        [[], /empty/],
        [{ tokens: [] }, /empty/],
        [{ text: '' }, /empty/],
        [{ tokens: [1, VOCABULARY] }, /token 1 of the prompt: found 128/],
        [{ tokens: [-1] }, /token 0/],
        [{ tokens: [1.5] }, /token 0/],
        [{ tokens: new DataView(new ArrayBuffer(4)) as never }, /tokens: found an object, expected an array/],
        [[{ role: 'user' } as never], /message 0/],
        ['hello' as never, /the prompt: found "hello"/],
        [undefined as never, /the prompt/],
      ];
      for (const [prompt, message] of prompts) {
        await assert.rejects(
          answer(session, prompt),
          (error) => error instanceof UsageError && message.test(error.message),
          message.source,
        );
      }
      await session.dispose();
    });

    test('logits are those of every row', async () => {
      const tokens = letters(150).tokens;
      const logits = await model.logits(tokens);
      assert.equal(logits.length, 150 * VOCABULARY);
      for (const length of [1, 64, 65, 150]) {
        const row = logits.slice((length - 1) * VOCABULARY, length * VOCABULARY);
        const {
          tokens: [first],
        } = await fresh({ tokens: tokens.slice(0, length) }, { temperature: 0, maxTokens: 1, ignoreEos: true });
        assert.equal(argmax(row), first);
      }
      await assert.rejects(model.logits([]), UsageError);
      await assert.rejects(model.logits([VOCABULARY]), UsageError);
      await assert.rejects(model.logits(letters(513).tokens), UsageError);
      await assert.rejects(model.logits([120]), NonFiniteError);
    });
  });

  suite(`sessions share the cache, ${architecture}`, () => {
    test('one that rests gives its pages to one that works, and reads its prompt again', async () => {
      const model = await fakeModel({ architecture, pages: 8 });
      const [first, second] = [model.session(), model.session()];
      const before = await answer(first, letters(400));
      const other = await answer(second, letters(200));
      assert.equal(other.tokens.length, 30);
      const again = await answer(first, letters(400));
      assert.equal(again.usage.cachedTokens, 0);
      assert.deepEqual(again.tokens, before.tokens);
      // Nobody wanted its pages since, so now they are reused.
      assert.equal((await answer(first, letters(400))).usage.cachedTokens, 399);
      await model.dispose();
    });

    test('many that need more than there is, one after the other, are all answered', async () => {
      const model = await fakeModel({ architecture, pages: 8 });
      for (let i = 0; i < 12; i++) assert.equal((await answer(model.session(), letters(200, i))).tokens.length, 30);
      await model.dispose();
    });

    test('too many at work at once: those without room say so, and are answered later', async () => {
      const model = await fakeModel({ architecture, pages: 8 });
      const sessions = [model.session(), model.session()];
      const results = await Promise.allSettled(sessions.map((session) => answer(session, letters(400))));
      const failed = results.findIndex(({ status }) => status === 'rejected');
      assert.equal(results.filter(({ status }) => status === 'rejected').length, 1);
      const { reason } = results[failed] as PromiseRejectedResult;
      assert.ok(reason instanceof OutOfMemoryError && /let fewer work at once/.test(reason.message));
      assert.equal((await answer(sessions[failed] as Session, letters(400))).tokens.length, 30);
      await model.dispose();
    });
  });
}

test('what the file says of sampling holds unless an option says else', async () => {
  const model = await fakeModel({ sampling: { temperature: 0 } });
  const drawn = await answer(model.session(), letters(20), { ...SAFE, maxTokens: 20 });
  const greedy = await answer(model.session(), letters(20), { ...plain, maxTokens: 20 });
  const hot = await answer(model.session(), letters(20), {
    ...SAFE,
    maxTokens: 20,
    temperature: 5,
    minP: 0,
    topK: 0,
    topP: 1,
  });
  assert.deepEqual(drawn.tokens, greedy.tokens);
  assert.notDeepEqual(hot.tokens, greedy.tokens);
  await model.dispose();
});

for (const architecture of ['fake', 'draws']) {
  suite(`dispose, ${architecture}`, () => {
    test('a disposed session says so; dispose during an answer ends it', async () => {
      const model = await fakeModel({ architecture });
      const session = model.session();
      const parts = session.generate(letters(10), { ...plain, maxTokens: undefined });
      await parts.next();
      const disposed = session.dispose();
      await assert.rejects(async () => {
        for await (const part of parts) assert.ok(part);
      }, DisposedError);
      await disposed;
      await session.dispose();
      assert.deepEqual(session.tokens, []);
      await assert.rejects(
        answer(session, letters(3)),
        /the session was used after .* make another with model\.session/,
      );
      assert.equal((await answer(model.session(), letters(3))).tokens.length, 30);
      await model.dispose();
    });

    test('a disposed model says so everywhere; dispose during an answer ends it', async () => {
      const model = await fakeModel({ architecture });
      const session = model.session();
      const parts = session.generate(letters(10), { ...plain, maxTokens: undefined });
      await parts.next();
      const logits = model.logits(letters(400).tokens);
      const rejected = assert.rejects(logits, DisposedError);
      await Promise.all([model.dispose(), model.dispose()]);
      await assert.rejects(async () => {
        for await (const part of parts) assert.ok(part);
      }, DisposedError);
      await rejected;
      await model[Symbol.asyncDispose]();
      await assert.rejects(answer(session, letters(3)), DisposedError);
      await assert.rejects(model.logits([1]), DisposedError);
      await assert.rejects(model.applyTemplate([]), DisposedError);
      for (const use of [() => model.session(), () => model.tokenize('a'), () => model.detokenize([97])])
        assert.throws(use, DisposedError);
      await session[Symbol.asyncDispose]();
    });
  });
}
