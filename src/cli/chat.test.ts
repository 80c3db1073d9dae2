/** The chat at a terminal: what keys do before a message is sent. Conversations are tested in `run.test.ts`. */

import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import type { ChatMessage, Model, Part, Prompt } from '../engine/types.ts';
import { chat } from './chat.ts';
import type { Context } from './context.ts';

/** Keys are handled as they come; the chat answers what it is asked in between. */
const settled = () => new Promise((resolve) => setTimeout(resolve, 20));

/** Types `keys` one after the other; gives the messages asked, the exit code and what the terminal was sent. */
async function typed(...keys: readonly string[]) {
  const asked: string[] = [];
  async function* generate(prompt: Prompt): AsyncGenerator<Part> {
    asked.push((prompt as readonly ChatMessage[]).at(-1)?.content ?? '');
    const usage = {
      promptTokens: 1,
      cachedTokens: 0,
      completionTokens: 1,
      prefillMs: 1,
      decodeMs: 1,
      prefillTokensPerSecond: 1,
      decodeTokensPerSecond: 1,
      seed: 1,
    };
    yield { type: 'text', text: 'fine', tokens: [1] };
    yield { type: 'finish', reason: 'stop', text: 'fine', tokens: [1], usage };
  }
  const model = { session: () => ({ generate, dispose: async () => {} }) } as unknown as Model;
  const stdin = Object.assign(new PassThrough(), { isTTY: true });
  const stdout = new PassThrough().resume();
  const stderr = Object.assign(new PassThrough(), { isTTY: true, columns: 80 });
  let shown = '';
  stderr.on('data', (chunk: Buffer) => {
    shown += chunk;
  });
  const context = { stdin, stdout, stderr, onInterrupt: () => () => {} } as unknown as Context;
  const left = chat({ model, context, options: {} });
  for (const key of keys) {
    stdin.write(key);
    await settled();
  }
  return { code: await left, asked, shown };
}

test('Ctrl-C drops the line that is being typed, and does not count as a first one', async () => {
  const { code, asked } = await typed('half a li', '\x1b[D', '\x03', 'whole\r', 'x', '\x03', '/exit\r');
  assert.deepEqual(asked, ['whole']);
  assert.equal(code, 0);
});

test('Ctrl-C drops a message that goes on over several lines', async () => {
  const { code, asked } = await typed('first\\\r', '\x03', 'second\r', '\x04');
  assert.deepEqual(asked, ['second']);
  assert.equal(code, 0);
});

test('on an empty line the first Ctrl-C says how to leave, the second one leaves', async () => {
  const { code, asked, shown } = await typed('\x03', '\x03');
  assert.deepEqual(asked, []);
  assert.match(shown, /Ctrl-C again, Ctrl-D or \/exit leaves/);
  assert.equal(code, 130);
});

test('a message in between makes the next Ctrl-C a first one again', async () => {
  const { code, asked } = await typed('\x03', 'hello\r', '\x03', '\x04');
  assert.deepEqual(asked, ['hello']);
  assert.equal(code, 0);
});
