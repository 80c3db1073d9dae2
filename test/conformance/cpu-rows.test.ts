/**
 * Law 4 on whole models, the tiny families and the bundled one: a step row's logits have the same bits alone, beside
 * 63 rows of other sequences and in a verify; a prompt's do not depend on the chunk; neither on where pages lie, on how
 * many threads and arenas there are, or on the build.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { PAGE_ROWS } from '../../src/backend/backend.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import { type DeviceModel, type DeviceOptions, withDevice } from '../support/device.ts';
import { families, familyFile } from '../support/families.ts';
import { BUNDLED } from '../support/models.ts';
import { PLAIN, RELAXED, SMALL_ARENAS, sameBits } from './support/compare.ts';

const CONTEXT = 192;
/** Of one sequence; 64 of them are open at once. */
const PAGES = CONTEXT / PAGE_ROWS;
const SEQUENCES = 64;

const models = [
  ...families.map((family) => ({ name: family, path: familyFile(family, 'model.gguf') })),
  { name: BUNDLED, path: fileURLToPath(new URL(`../../models/${BUNDLED}`, import.meta.url)) },
];

const options: DeviceOptions = { context: CONTEXT, sessions: SEQUENCES, batch: 160, threads: 2 };

interface Row {
  readonly sequence: number;
  readonly position: number;
}

/** What stands at a position of a sequence; no two sequences are alike. */
function tokenAt({ spec }: DeviceModel, { sequence, position }: Row): number {
  return (sequence * 7919 + position * 104729 + 17) % spec.vocabulary;
}

/** The pages of each sequence lie one after the other, or all over the cache. */
const tidy = (sequence: number) => Int32Array.from({ length: PAGES }, (_, page) => sequence * PAGES + page);
const scattered = (sequence: number) =>
  Int32Array.from({ length: PAGES }, (_, page) => ((sequence * PAGES + page) * 77 + 5) % (SEQUENCES * PAGES));

async function logitsOf(model: DeviceModel, mode: Mode, rows: readonly Row[], pages = tidy): Promise<Float32Array> {
  const open = [...new Set(rows.map(({ sequence }) => sequence))];
  const wanted = mode === 'step' || rows.length <= 64 ? rows.map((_, i) => i) : rows.map((_, i) => i).slice(-64);
  const logits = await model.executable.run({
    mode,
    tokens: Int32Array.from(rows, (row) => tokenAt(model, row)),
    positions: Int32Array.from(rows, ({ position }) => position),
    sequences: Int32Array.from(rows, ({ sequence }) => open.indexOf(sequence)),
    pageTables: open.map(pages),
    wanted: Int32Array.from(wanted),
  });
  return logits.slice();
}

const run = (sequence: number, first: number, count: number): Row[] =>
  Array.from({ length: count }, (_, i) => ({ sequence, position: first + i }));

/** A prompt in chunks; the logits of its last rows, those of the last chunk that has any. */
async function promptIn(model: DeviceModel, length: number, size: number, pages = tidy): Promise<Float32Array> {
  let last = new Float32Array(0) as Float32Array;
  for (let at = 0; at < length; at += size)
    last = await logitsOf(model, 'prompt', run(0, at, Math.min(size, length - at)), pages);
  return last;
}

describe('a step row has the same bits', () => {
  for (const { name, path } of models) {
    test(`${name}: alone and beside up to 63 rows of other sequences`, () =>
      withDevice(path, options, async (model) => {
        const { vocabulary } = model.spec;
        // Prompts of 1 to 150 rows, so that contexts end on both sides of page borders.
        const lengths = Array.from(
          { length: SEQUENCES },
          (_, sequence) => [1, 5, 63, 64, 65, 130][sequence % 6] as number,
        );
        for (const [sequence, length] of lengths.entries()) await logitsOf(model, 'prompt', run(sequence, 0, length));
        const rows = lengths.map((position, sequence): Row => ({ sequence, position }));
        const all = await logitsOf(model, 'step', rows);
        const rowOf = (index: number) => all.subarray(index * vocabulary, (index + 1) * vocabulary);
        for (const [index, row] of rows.entries()) {
          sameBits(await logitsOf(model, 'step', [row]), rowOf(index), `${name}: sequence ${index} alone`);
        }
        for (const count of [2, 3, 4, 5, 8, 31]) {
          const some = rows.slice(count, 2 * count);
          sameBits(
            await logitsOf(model, 'step', some),
            all.subarray(count * vocabulary, 2 * count * vocabulary),
            `${name}: ${count} rows`,
          );
        }
        // In another order, so that a row has another place.
        const turned = await logitsOf(model, 'step', rows.toReversed());
        rows.forEach((_, i) => {
          sameBits(
            turned.subarray(i * vocabulary, (i + 1) * vocabulary),
            rowOf(63 - i),
            `${name}: place ${i} of the batch turned round`,
          );
        });
      }));

    test(`${name}: alone and in a verify of up to 64 rows of one sequence`, () =>
      withDevice(path, options, async (model) => {
        const { vocabulary } = model.spec;
        const first = 40;
        await promptIn(model, first, 160);
        const alone: Float32Array[] = [];
        for (const row of run(0, first, 64)) alone.push(await logitsOf(model, 'step', [row]));
        for (const count of [64, 2, 5, 8, 33]) {
          // Pages that hold other keys and values first: a verify must not read what it has not written.
          await logitsOf(model, 'step', run(1, first, 64), () => tidy(0));
          await promptIn(model, first, 160);
          const verify = await logitsOf(model, 'step', run(0, first, count));
          for (let i = 0; i < count; i++) {
            sameBits(
              verify.subarray(i * vocabulary, (i + 1) * vocabulary),
              alone[i] as Float32Array,
              `${name}: row ${i} of ${count}`,
            );
          }
        }
      }));

    test(`${name}: a prompt's logits do not depend on its chunks or on where its pages lie`, () =>
      withDevice(path, options, async (model) => {
        const { vocabulary } = model.spec;
        const length = 151;
        const whole = await promptIn(model, length, length);
        for (const size of [1, 2, 7, 64]) {
          const found = await promptIn(model, length, size);
          const rows = found.length / vocabulary;
          assert.ok(rows >= 1);
          sameBits(found, whole.subarray(whole.length - rows * vocabulary), `${name}: chunks of ${size}`);
        }
        sameBits(
          await promptIn(model, length, 64, scattered),
          await promptIn(model, length, 64),
          `${name}: scattered pages`,
        );
        const step = await logitsOf(model, 'step', run(0, length, 3), scattered);
        await promptIn(model, length, 64);
        sameBits(await logitsOf(model, 'step', run(0, length, 3)), step, `${name}: a step over scattered pages`);
      }));
  }
});

describe('no bit depends on where it was computed', () => {
  const places: Readonly<Record<string, DeviceOptions>> = {
    'two threads': { threads: 2 },
    'three threads, plain SIMD': { threads: 3, features: PLAIN },
    'five threads, arenas of 64 KiB': { threads: 5, arenaBytes: SMALL_ARENAS },
    'arenas of 256 KiB': { threads: 1, arenaBytes: 2 ** 18 },
    'arenas of 8 MiB': { threads: 1, arenaBytes: 2 ** 23 },
  };
  for (const { name, path } of models.filter((model) =>
    ['qwen2moe', 'glm4moe', 'llama', BUNDLED].includes(model.name),
  )) {
    test(name, async () => {
      const compute = (more: DeviceOptions) =>
        withDevice(path, { ...options, sessions: 2, ...more }, async (model) => {
          const prompt = await promptIn(model, 131, 64);
          const step = await logitsOf(model, 'step', [...run(0, 131, 3), ...run(1, 0, 2)]);
          return { prompt, step, arenas: model.plan.arenas.length };
        });
      const expected = await compute({ threads: 1, features: RELAXED });
      assert.equal(expected.arenas, 1);
      for (const [place, more] of Object.entries(places)) {
        const found = await compute(more);
        if ((more.arenaBytes ?? Number.POSITIVE_INFINITY) <= 2 ** 18)
          assert.ok(found.arenas > 2, `${found.arenas} arenas`);
        sameBits(found.prompt, expected.prompt, `${place}: prompt`);
        sameBits(found.step, expected.step, `${place}: step`);
      }
    });
  }
});
