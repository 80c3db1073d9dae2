/**
 * The interactive chat: a line in, an answer out, the conversation kept. Ctrl-C drops what is typed or stops an answer, a
 * second one leaves; what was answered before it stays in the conversation.
 */

import { createInterface } from 'node:readline';
import type { ChatMessage, GenerateOptions, Model } from '../engine/types.ts';
import { ConclaveError } from '../errors.ts';
import { collect, describeUsage, dim, writeText } from './answer.ts';
import { type Context, write } from './context.ts';
import { describeError, type ExitCode, Interrupted } from './fail.ts';

export interface ChatRequest {
  readonly model: Model;
  readonly context: Context;
  readonly system?: string;
  /** Its signal is replaced for each answer. */
  readonly options: GenerateOptions;
}

const HELP = '/exit leaves · /clear forgets · Ctrl-C stops an answer · \\ continues a line';

/** Chats until the person leaves. Returns 0, or 130 when left by Ctrl-C. */
export async function chat({ model, context, system, options }: ChatRequest): Promise<ExitCode> {
  const { stdin, stderr } = context;
  const terminal = stdin.isTTY === true && stderr.isTTY === true;
  const reader = createInterface({ input: stdin, output: terminal ? stderr : undefined, terminal, prompt: '> ' });
  const lines = new LineQueue();
  reader.on('line', (line) => lines.push(line));
  reader.on('close', () => lines.close());

  let answering: AbortController | undefined;
  /** Whether the last thing that happened was a Ctrl-C. */
  let warned = false;
  let left = false;
  /** Lines of a message that goes on. */
  let said = '';
  const ask = (prompt: string) => {
    if (!terminal) return;
    reader.setPrompt(prompt);
    reader.prompt();
  };
  const interrupt = () => {
    if (terminal && answering === undefined && reader.line + said !== '') {
      said = '';
      reader.write(null, { ctrl: true, name: 'e' });
      reader.write(null, { ctrl: true, name: 'u' });
      stderr.write('\n');
      ask('> ');
      return;
    }
    if (warned) {
      left = true;
      answering?.abort(new Interrupted());
      reader.close();
      return;
    }
    warned = true;
    if (answering !== undefined) answering.abort(new Interrupted());
    else {
      stderr.write(`\n${dim('(Ctrl-C again, Ctrl-D or /exit leaves)', context)}\n`);
      ask('> ');
    }
  };
  // On a terminal readline reads Ctrl-C as a key; elsewhere it comes as a signal.
  reader.on('SIGINT', interrupt);
  const release = context.onInterrupt(interrupt);

  const start: readonly ChatMessage[] = system === undefined ? [] : [{ role: 'system', content: system }];
  let conversation = [...start];
  let session = model.session();
  try {
    if (terminal) await write(stderr, `${dim(HELP, context)}\n`);
    while (!left) {
      ask(said === '' ? '> ' : '… ');
      const line = await lines.next();
      if (line === undefined) {
        // Left by a key: the shell's prompt must not stand behind ours.
        if (terminal) await write(stderr, '\n');
        break;
      }
      warned = false;
      if (line.endsWith('\\')) {
        said += `${line.slice(0, -1)}\n`;
        continue;
      }
      const message = (said + line).trim();
      said = '';
      if (message === '') continue;
      if (message === '/exit' || message === '/quit') break;
      if (message === '/help') {
        await write(stderr, `${HELP}\n`);
        continue;
      }
      if (message === '/clear') {
        conversation = [...start];
        await session.dispose();
        session = model.session();
        continue;
      }
      answering = new AbortController();
      conversation.push({ role: 'user', content: message });
      let answer = '';
      try {
        const parts = session.generate(conversation, { ...options, signal: answering.signal });
        const { finish } = await collect(parts, async (text) => {
          answer += text;
          await writeText(text, context);
        });
        await write(context.stdout, '\n');
        await write(stderr, `${dim(describeUsage(finish), context)}\n`);
        conversation.push({ role: 'assistant', content: finish.text });
      } catch (error) {
        if (answer !== '') await write(context.stdout, '\n');
        if (error instanceof Interrupted) {
          conversation.push({ role: 'assistant', content: answer });
          if (!left) await write(stderr, `${dim('(stopped)', context)}\n`);
        } else if (error instanceof ConclaveError && (error.code === 'usage' || error.code === 'template')) {
          // The conversation goes on without the message that could not be answered: too long, or refused by a template.
          conversation.pop();
          await write(stderr, `${describeError(error, false)}\n`);
        } else throw error;
      } finally {
        answering = undefined;
      }
    }
  } finally {
    release();
    reader.close();
    await session.dispose();
  }
  return left ? 130 : 0;
}

/** Lines as they come, read one at a time; what is typed while an answer streams waits its turn. */
class LineQueue {
  readonly #lines: string[] = [];
  #waiting: ((line: string | undefined) => void) | undefined;
  #closed = false;

  push(line: string): void {
    if (this.#waiting === undefined) this.#lines.push(line);
    else this.#hand(line);
  }

  close(): void {
    this.#closed = true;
    if (this.#waiting !== undefined) this.#hand(undefined);
  }

  /** The next line; undefined at the end of the input. */
  next(): Promise<string | undefined> {
    const line = this.#lines.shift();
    if (line !== undefined || this.#closed) return Promise.resolve(line);
    return new Promise((resolve) => {
      this.#waiting = resolve;
    });
  }

  #hand(line: string | undefined): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.(line);
  }
}
