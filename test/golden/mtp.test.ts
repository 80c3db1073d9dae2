/**
 * What predicts further ahead is one more graph of the same operations: on the CPU it gives the reference's logits, in whatever
 * rows it is asked, beside runs of the model that it changes nothing of; and cut between devices it is with the last layers.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type Executable, PAGE_ROWS, type Step } from '../../src/backend/backend.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import { InternalError } from '../../src/errors.ts';
import { mtpOperations } from '../../src/model/graph.ts';
import { sameBits } from '../conformance/support/compare.ts';
import { type DeviceModel, type DeviceOptions, relativeRms, stepOf, withDevice } from '../support/device.ts';
import { BUNDLED, largeModel } from '../support/models.ts';
import { referenceModels } from '../support/references.ts';

/** int8 activations in every product, one after the other in the model's six layers. */
const MOST_RMS = 3e-2;

const path = largeModel(BUNDLED) as string;
const options: DeviceOptions = { context: 256, threads: 2, mtp: true };
const [, , answer] = referenceModels[0]?.answers ?? [];
assert.ok(answer !== undefined);
const tokens = [...answer.ids, ...answer.greedy];

const rowsAt = (all: readonly number[], first: number, sequence = 0) =>
  all.map((token, index) => ({ token, position: first + index, sequence }));

interface Ahead {
  /** [tokens − 1, hidden] What the model's own run gave. */
  readonly given: Float32Array;
  /** [tokens − 1, vocabulary], [tokens − 1, hidden] */
  readonly logits: Float32Array;
  readonly hidden: Float32Array;
}

function mtpOf(executable: Executable) {
  assert.ok(executable.mtp !== undefined, 'nothing predicts ahead');
  return executable.mtp;
}

/** The model over all tokens but the last, and what is predicted from each of its rows, in runs of `size` rows. */
async function ahead({ executable }: DeviceModel, mode: Mode, size = 64): Promise<Ahead> {
  const count = tokens.length - 1;
  await executable.run(stepOf('prompt', rowsAt(tokens.slice(0, count), 0), 256 / PAGE_ROWS));
  const mtp = mtpOf(executable);
  const given = mtp.given().slice();
  const width = given.length / count;
  const parts: { logits: Float32Array; hidden: Float32Array }[] = [];
  for (let first = 0; first < count; first += size) {
    const rows = Math.min(size, count - first);
    const step = stepOf(mode, rowsAt(tokens.slice(first + 1, first + 1 + rows), first), 256 / PAGE_ROWS);
    const made = await mtp.run({ ...step, incoming: given.subarray(first * width, (first + rows) * width) });
    parts.push({ logits: made.logits.slice(), hidden: made.hidden.slice() });
  }
  const joined = (of: 'logits' | 'hidden') => Float32Array.from(parts.flatMap((part) => [...part[of]]));
  return { given, logits: joined('logits'), hidden: joined('hidden') };
}

function argmaxes(logits: Float32Array, vocabulary: number): number[] {
  return Array.from({ length: logits.length / vocabulary }, (_, row) => {
    const own = logits.subarray(row * vocabulary, (row + 1) * vocabulary);
    return own.indexOf(Math.max(...own));
  });
}

describe('what predicts further ahead', () => {
  test('on the CPU is what it is on the reference', async () => {
    const expected = await withDevice(path, { ...options, device: 'reference' }, (model) => ahead(model, 'prompt'));
    await withDevice(path, options, async (model) => {
      const found = await ahead(model, 'prompt');
      for (const name of ['given', 'logits', 'hidden'] as const) {
        const error = relativeRms(found[name], expected[name]);
        assert.ok(error <= MOST_RMS, `${name}: a relative RMS of ${error}`);
      }
      // And it is worth something: most of the recorded answer's tokens are foreseen from two tokens before.
      const { vocabulary } = model.spec;
      const first = answer.ids.length - 1;
      const guesses = argmaxes(expected.logits, vocabulary).slice(first, tokens.length - 2);
      const right = guesses.filter((guess, index) => guess === tokens[first + 2 + index]).length;
      assert.ok(right / guesses.length > 0.6, `${right} of ${guesses.length} tokens are foreseen`);
    });
  });

  test('a row has the same bits in runs of any size, of one row too', async () => {
    await withDevice(path, options, async (model) => {
      for (const mode of ['prompt', 'step'] as const) {
        const whole = await ahead(model, mode);
        for (const size of [1, 2, 3, 7]) {
          const parts = await ahead(model, mode, size);
          for (const name of ['logits', 'hidden'] as const) sameBits(parts[name], whole[name], `${mode}, ${size} rows`);
        }
      }
    });
  });

  test('changes nothing of the model: its logits stay, and so do those of runs after it', async () => {
    const alone = await withDevice(path, { ...options, mtp: false }, async ({ executable }) => {
      assert.equal(executable.mtp, undefined);
      await executable.run(stepOf('prompt', rowsAt(answer.ids, 0), 256 / PAGE_ROWS));
      return (await executable.run(stepOf('step', rowsAt(answer.greedy.slice(0, 3), answer.ids.length), 4))).slice();
    });
    await withDevice(path, options, async ({ executable }) => {
      await executable.run(stepOf('prompt', rowsAt(answer.ids, 0), 256 / PAGE_ROWS));
      const mtp = mtpOf(executable);
      const incoming = mtp.given().slice();
      await mtp.run({
        ...stepOf('prompt', rowsAt([...answer.ids.slice(1), answer.greedy[0] as number], 0), 4),
        incoming,
      });
      const logits = await executable.run(stepOf('step', rowsAt(answer.greedy.slice(0, 3), answer.ids.length), 4));
      sameBits(logits, alone, 'after a draft');
      const given = mtp.given();
      const kept = given.slice();
      const one = stepOf('step', rowsAt(answer.greedy.slice(1, 2), answer.ids.length), 4);
      await mtp.run({ ...one, incoming: kept.subarray(0, kept.length / 3) });
      sameBits(logits, alone, 'while drafts are made');
      sameBits(given, kept, 'what it goes on from');
    });
  });

  test('sequences do not meet', async () => {
    await withDevice(path, { ...options, sessions: 2 }, async ({ executable }) => {
      const prompts = [tokens.slice(0, 9), tokens.slice(3, 15)];
      const mtp = mtpOf(executable);
      const wanted = { wanted: Int32Array.of(0, 1) };
      const lasts: { readonly token: number; readonly position: number; readonly incoming: Float32Array }[] = [];
      const alone: Float32Array[] = [];
      for (const [sequence, prompt] of prompts.entries()) {
        const before = stepOf('prompt', rowsAt(prompt.slice(0, -1), 0, sequence), 4);
        const own = { ...before, pageTables: [pagesOf(sequence)] };
        await executable.run(own);
        const given = mtp.given().slice();
        const width = given.length / (prompt.length - 1);
        await mtp.run({ ...own, tokens: Int32Array.from(prompt.slice(1)), incoming: given });
        const incoming = given.slice(-width);
        const last = { token: prompt.at(-1) as number, position: prompt.length - 1, incoming };
        const step = stepOf('step', [{ ...last, sequence }], 4);
        const made = await mtp.run({ ...step, pageTables: [pagesOf(sequence)], incoming });
        lasts.push(last);
        alone.push(made.logits.slice());
      }
      const both: Step = {
        ...stepOf(
          'step',
          lasts.map((last, sequence) => ({ ...last, sequence })),
          4,
        ),
        ...wanted,
        pageTables: [pagesOf(0), pagesOf(1)],
        incoming: Float32Array.from(lasts.flatMap(({ incoming }) => [...incoming])),
      };
      sameBits((await mtp.run(both)).logits, Float32Array.from(alone.flatMap((logits) => [...logits])), 'two at once');
    });
  });

  test('is with the last layers where these are on another device', async () => {
    const whole = await withDevice(path, { ...options, device: 'reference' }, (model) => ahead(model, 'prompt'));
    const cuts = [
      { device: 'cpu', end: 2 },
      { device: 'reference', end: 5 },
    ] as const;
    await withDevice(path, { ...options, cuts }, async (model) => {
      const operations = model.plan.operations.filter(({ mtp }) => mtp === true);
      assert.equal(operations.length, mtpOperations(model.graph).length);
      assert.ok(operations.every(({ device }) => device === 'reference'));
      const found = await ahead(model, 'prompt');
      const error = relativeRms(found.logits, whole.logits);
      assert.ok(error <= MOST_RMS, `a relative RMS of ${error}`);
    });
  });

  test('needs the rows that it goes on from', async () => {
    await withDevice(path, options, async ({ executable }) => {
      const mtp = mtpOf(executable);
      const step = stepOf('step', rowsAt(tokens.slice(0, 1), 0), 4);
      await executable.run(step);
      await assert.rejects(mtp.run(step), InternalError);
      await assert.rejects(mtp.run({ ...step, incoming: new Float32Array(3) }), InternalError);
    });
  });
});

/** Four pages of a sequence's own. */
function pagesOf(sequence: number): Int32Array {
  return Int32Array.from({ length: 4 }, (_, page) => sequence * 4 + page);
}
