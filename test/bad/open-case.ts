/** What the bad-files suite does with a file: load it as a person's program would, then talk to it. */

import { statSync } from 'node:fs';
import { join } from 'node:path';
import { load, type Model } from '../../src/index.ts';

/** Loads the model at `path`: a file, or a folder with the index of its shards. */
export async function openCase(path: string): Promise<Model> {
  return load(statSync(path).isDirectory() ? join(path, 'model.safetensors.index.json') : path);
}

/** Asks for four tokens in answer to a message, and returns those that came before it ended or failed. */
export async function useCase(model: Model): Promise<{ readonly tokens: readonly number[]; readonly error?: unknown }> {
  const session = model.session();
  const tokens: number[] = [];
  try {
    const messages = [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'the' },
    ];
    for await (const part of session.generate(messages, { maxTokens: 4, temperature: 0 })) {
      if (part.type === 'text') tokens.push(...part.tokens);
    }
    return { tokens };
  } catch (error) {
    return { tokens, error };
  } finally {
    await session.dispose();
  }
}
