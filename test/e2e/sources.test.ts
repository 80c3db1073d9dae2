/** Loading from sources that somebody else made, and that do not behave; and from too many threads. */

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { test } from 'node:test';
import { type ByteSource, load, planModel, SourceError, UsageError } from '../../src/index.ts';

const path = new URL('../fixtures/bad/experts-ok.gguf', import.meta.url);
const bytes = new Uint8Array(await readFile(path));

function source(over: Partial<ByteSource> = {}): ByteSource {
  return {
    name: 'mine',
    size: bytes.length,
    async readInto(offset, target) {
      target.set(bytes.subarray(offset, offset + target.length));
    },
    async close() {},
    ...over,
  };
}

test('what is no byte source is told before it is read', async () => {
  for (const over of [{ size: -1 }, { size: Number.NaN }, { size: 1.5 }, { name: 5 }, { readInto: 1 }, { close: 1 }]) {
    const wrong = source(over as never);
    for (const input of [wrong, { file: wrong, fileName: 'mine' }]) {
      await assert.rejects(load(input), (error) => error instanceof UsageError && /a byte source/.test(error.message));
    }
  }
  await assert.rejects(load({ file: undefined } as never), UsageError);
});

test('a source that raises an error of its own while weights are read: a SourceError that says where', async () => {
  let reads = 0;
  const late = source({
    async readInto(offset, target) {
      if (reads++ > 0 && offset > bytes.length / 2) throw new TypeError('no longer here');
      target.set(bytes.subarray(offset, offset + target.length));
    },
  });
  await assert.rejects(
    load(late, { context: 64 }),
    (error) =>
      error instanceof SourceError && /^mine: reading bytes \d+ to \d+ failed: no longer here$/.test(error.message),
  );
});

test('an aborted load ends with the reason although a read is never answered, of the head and of weights', async () => {
  for (const answered of [0, 1, 6]) {
    let reads = 0;
    const controller = new AbortController();
    const stuck = source({
      readInto(offset, target) {
        if (reads++ >= answered) {
          controller.abort(new Error('enough'));
          return new Promise(() => {});
        }
        return source().readInto(offset, target);
      },
    });
    await assert.rejects(load(stuck, { context: 64, signal: controller.signal }), /enough/);
  }
});

test('an abort after the load is of no effect', async () => {
  const controller = new AbortController();
  const model = await load(source(), { context: 64, signal: controller.signal });
  controller.abort();
  assert.equal((await model.logits([1, 2])).length, 2 * model.info.vocabulary);
  await model.dispose();
});

test('a safetensors model chosen as Files answers as the same model in GGUF does', async () => {
  const at = new URL('../fixtures/families/', import.meta.url);
  const names = [
    'qwen3moe/model.safetensors',
    'qwen3moe/config.json',
    'qwen3moe/generation_config.json',
    'tokenizer.json',
    'tokenizer_config.json',
  ];
  const files = await Promise.all(
    names.map(async (name) => new File([await readFile(new URL(name, at))], name.split('/').at(-1) ?? '')),
  );
  const [chosen, gguf] = [
    await load(files, { context: 64, cache: 'f32' }),
    await load(new File([await readFile(new URL('qwen3moe/model.gguf', at))], 'model.gguf'), {
      context: 64,
      cache: 'f32',
    }),
  ];
  const ids = chosen.tokenize('a few words');
  assert.deepEqual(gguf.tokenize('a few words'), ids);
  assert.equal(
    await chosen.applyTemplate([{ role: 'user', content: 'x' }]),
    await gguf.applyTemplate([{ role: 'user', content: 'x' }]),
  );
  assert.deepEqual(await chosen.logits(ids), await gguf.logits(ids));
  assert.equal(chosen.info.parameters, gguf.info.parameters);
  await Promise.all([chosen.dispose(), gguf.dispose()]);
});

test('far more threads than cores are refused before one is started', async () => {
  const most = Math.max(64, 4 * availableParallelism());
  const refused = (error: unknown) =>
    error instanceof UsageError && error.message.includes(`found 1024`) && error.message.includes(`at most ${most}`);
  if (most < 1024) {
    await assert.rejects(load(source(), { threads: 1024 }), refused);
    await assert.rejects(planModel(source(), { threads: 1024 }), refused);
  }
  const { plan } = await planModel(source(), { threads: 64 });
  assert.equal(plan.threads, 64);
});
