/** Greedy decoding below the engine: a model's tokens on one placement held against those of another. */

import assert from 'node:assert/strict';
import { openModelFile } from '../../src/format/open.ts';
import { readTokenizer } from '../../src/tokenizer/index.ts';
import { type DeviceModel, type DeviceOptions, openDevice, runTokens } from './device.ts';
import { closeGpuTestDevice, gpuTestDevice } from './gpu.ts';
import { nodeModelSource } from './node-source.ts';
import { argmax } from './reference.ts';

/** A run of 1 to 64 new tokens. */
export interface Greedy {
  readonly tokens: readonly number[];
  /** By token: what it was chosen from, [vocabulary]. */
  readonly logits: readonly Float32Array[];
}

/** What a model is held against. */
export interface Expected extends Greedy {
  readonly prompt: readonly number[];
  /** Tokens that end an answer. */
  readonly endings: ReadonlySet<number>;
  /** How much better the expected token may be where another one comes first: more is no tie. */
  readonly gap: number;
}

/** The first of each model stays until the end: kernels live as long as somebody uses them. */
const kept = new Map<string, DeviceModel>();

export async function closeKept(): Promise<void> {
  for (const { executable } of kept.values()) await executable.dispose();
  kept.clear();
  await closeGpuTestDevice();
}

/** @throws AssertionError for logits that are not finite */
export async function greedy(model: DeviceModel, prompt: readonly number[], count: number): Promise<Greedy> {
  const tokens: number[] = [];
  const logits: Float32Array[] = [];
  const { vocabulary } = model.spec;
  let found = await runTokens(model, prompt, 0, 'prompt');
  for (;;) {
    assert.ok(found.every(Number.isFinite), `token ${tokens.length}: logits that are not finite`);
    const last = found.slice(-vocabulary);
    logits.push(last);
    tokens.push(argmax(last));
    if (tokens.length === count) return { tokens, logits };
    found = await runTokens(model, tokens.slice(-1), prompt.length + tokens.length - 1, 'step');
  }
}

/** The CPU's answer to a prompt. */
export async function expectedAnswer(
  path: string,
  options: DeviceOptions,
  asked: { readonly prompt: readonly number[]; readonly count: number; readonly gap: number },
): Promise<Expected> {
  const { prompt, count, gap } = asked;
  const file = await openModelFile(await nodeModelSource(path));
  await file.close();
  const { endOfGeneration: endings } = readTokenizer(file.metadata, file.name);
  const model = await openDevice(path, { ...options, device: 'cpu' });
  try {
    return { ...(await greedy(model, prompt, count)), prompt, endings, gap };
  } finally {
    await model.executable.dispose();
  }
}

/**
 * Loads a model on the GPU of all tests, which {@link closeKept} closes, and decodes: its first token ends nothing, nor do all of the first four; all are the
 * expected ones, up to a difference that is all but a tie.
 * @returns undefined where all tokens are the same, else what is to be said of the first that is not
 */
export async function checkGreedy(
  path: string,
  options: DeviceOptions,
  { expected, count }: { readonly expected: Expected; readonly count: number },
): Promise<string | undefined> {
  const { prompt, endings, gap: most, tokens, logits } = expected;
  const model = await openDevice(path, { ...options, device: 'gpu' }, await gpuTestDevice());
  const stays = !kept.has(path);
  if (stays) kept.set(path, model);
  try {
    const found = await greedy(model, prompt, count);
    assert.ok(!endings.has(found.tokens[0] as number), 'the first token ends the answer');
    assert.ok(
      found.tokens.slice(0, 4).some((token) => !endings.has(token)),
      'the first four tokens end the answer',
    );
    const at = found.tokens.findIndex((token, index) => token !== tokens[index]);
    if (at < 0) return undefined;
    const [own, other] = [tokens[at] as number, found.tokens[at] as number];
    const gap = (logits[at]?.[own] as number) - (logits[at]?.[other] as number);
    assert.ok(gap <= most, `token ${at}: ${other} for ${own}, a gap of ${gap}, and ${most} at most`);
    return `parts from the CPU at token ${at} of ${count}, gap ${gap}`;
  } finally {
    if (!stays) await model.executable.dispose();
  }
}
