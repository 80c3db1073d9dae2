import assert from 'node:assert/strict';
import { test } from 'node:test';
import { smallBytePairs } from '../../test/support/vocabularies.ts';
import { DisposedError, TemplateError, UsageError } from '../errors.ts';
import { meta } from '../format/gguf-writer.ts';
import type { MetadataValue } from '../format/model-file.ts';
import { nodePlatform } from '../platform/node.ts';
import type { PlatformWorker, WorkerEntry } from '../platform/platform.ts';
import { renderChat, type TemplateHost, templateHost } from './chat-template.ts';
import { readTokenizer } from './index.ts';

const messages = [{ role: 'user', content: 'hi' }];
const FOREVER = '{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}';

function withTemplate(template: string | undefined) {
  const more: Record<string, MetadataValue> =
    template === undefined ? {} : { 'tokenizer.chat_template': meta.string(template) };
  return readTokenizer(smallBytePairs({ control: ['<|a|>'], more }), 'model.gguf');
}

function chat(host: TemplateHost, template: string | undefined, more: object = {}) {
  return renderChat({ messages, ...more }, { host, tokenizer: withTemplate(template), where: 'model.gguf' });
}

/** The platform, and how many workers it made. */
function counting() {
  const workers: PlatformWorker[] = [];
  return {
    workers,
    spawnWorker(entry: WorkerEntry, data: unknown) {
      const worker = nodePlatform.spawnWorker(entry, data);
      workers.push(worker);
      return worker;
    },
  };
}

test('one worker renders again and again, in order', async () => {
  const platform = counting();
  const host = templateHost(platform);
  try {
    const all = await Promise.all(
      [1, 2, 3].map((n) => chat(host, `<|a|>${n}{{ messages[0].content }}{{ n }}`, { kwargs: { n } })),
    );
    assert.deepEqual(
      all.map(({ text }) => text),
      ['<|a|>1hi1', '<|a|>2hi2', '<|a|>3hi3'],
    );
    assert.equal(platform.workers.length, 1);
  } finally {
    await host.dispose();
  }
});

test('templates that raise, do not parse or fail are template errors that say so', async () => {
  const host = templateHost(nodePlatform);
  try {
    const cases = [
      ["{{ raise_exception('system role not supported') }}", /refuses these messages: system role not supported/],
      ['{% for m in %}', /template does not parse/],
      ['{{ messages | nosuch }}', /template failed/],
      [
        "<|a|>{{ messages[0].content.replace('|', '+').replace('<', '+').replace('>', '+') }}",
        /their text \(<\|a\|>\)/,
      ],
    ] as const;
    for (const [template, message] of cases) {
      await assert.rejects(chat(host, template, { messages: [{ role: 'user', content: '<|a|>' }] }), (error) => {
        assert.ok(error instanceof TemplateError);
        assert.match(error.message, message);
        assert.match(error.message, /^model\.gguf: the chat template/);
        return true;
      });
    }
  } finally {
    await host.dispose();
  }
});

test('a template that does not end is ended, and the next one renders in a new worker', async () => {
  const platform = counting();
  const host = templateHost(platform);
  try {
    const late = assert.rejects(
      chat(host, FOREVER),
      (error) => error instanceof TemplateError && /template was stopped: .*500 ms/.test(error.message),
    );
    const after = chat(host, 'fine');
    await late;
    assert.deepEqual(await after, { text: 'fine', content: [] });
    assert.equal(platform.workers.length, 2);
  } finally {
    await host.dispose();
  }
});

test('a file without a template: what to do instead', async () => {
  const host = templateHost(nodePlatform);
  await assert.rejects(
    chat(host, undefined),
    (error) => error instanceof TemplateError && /no chat template.*as text/.test(error.message),
  );
  await host.dispose();
});

test('messages that are not plain data are a usage error, and the worker goes on', async () => {
  const host = templateHost(nodePlatform);
  try {
    await assert.rejects(chat(host, 'x', { kwargs: { f: () => 1 } }), UsageError);
    assert.equal((await chat(host, 'y')).text, 'y');
  } finally {
    await host.dispose();
  }
});

test('a worker that dies is a template error, and the next render gets a new one', async () => {
  let spawned = 0;
  const host = templateHost({
    spawnWorker(entry, data) {
      spawned++;
      if (spawned > 1) return nodePlatform.spawnWorker(entry, data);
      return {
        postMessage() {},
        onMessage() {},
        onError: (handler) => void setTimeout(() => handler(new Error('out of memory')), 5),
        async terminate() {},
        ref() {},
        unref() {},
      };
    },
  });
  try {
    await assert.rejects(
      chat(host, 'x'),
      (error) => error instanceof TemplateError && /out of memory/.test(error.message),
    );
    assert.equal((await chat(host, 'y')).text, 'y');
  } finally {
    await host.dispose();
  }
});

test('after dispose, and while it waits, a render says that the host is gone', async () => {
  const host = templateHost(nodePlatform);
  const running = assert.rejects(chat(host, FOREVER), DisposedError);
  await new Promise((resolve) => setTimeout(resolve, 150));
  await host.dispose();
  await running;
  await assert.rejects(chat(host, 'x'), DisposedError);
});
