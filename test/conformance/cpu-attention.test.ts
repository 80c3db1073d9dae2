/**
 * Laws 3 and 4 for attention on the CPU: both kinds of cache against the reference over head widths, sharing of key heads,
 * page borders and scattered pages, windows, chunks, sinks and temperature; and no bit of a row depends on chunks, on neighbours or on where its pages lie.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cpuRows } from '../../src/backend/cpu/rows.ts';
import type { CacheType } from '../../src/backend/kernel.ts';
import { NonFiniteError } from '../../src/errors.ts';
import {
  attentionOver,
  type Beyond,
  beyondPlain,
  checkRuns,
  chunkedPrompt,
  type Inputs,
  inputsOf,
  jointShapes,
  options,
  roundedToF16,
  run,
  type Shape,
  sequenceNames,
  stepOf,
  wholePrompts,
} from './support/attention-cases.ts';
import { near, PLAIN, ROWS, SMALL_ARENAS, sameBits } from './support/compare.ts';
import { onCpu, onReference, type Tiny, tinyPlan } from './support/tiny-graph.ts';

/** Query heads a key head: 1 to 128, up to 32 of them a unit; widths around the 16 and 64 bytes that loops take. */
const shapes: readonly Shape[] = [
  { heads: 1, kvHeads: 1, headDim: 4, valueDim: 4 },
  { heads: 5, kvHeads: 1, headDim: 20, valueDim: 12 },
  { heads: 32, kvHeads: 1, headDim: 64, valueDim: 64 },
  { heads: 8, kvHeads: 2, headDim: 128, valueDim: 128 },
  { heads: 6, kvHeads: 6, headDim: 132, valueDim: 20 },
  { heads: 12, kvHeads: 4, headDim: 64, valueDim: 132 },
  { heads: 62, kvHeads: 2, headDim: 4, valueDim: 8 },
  { heads: 66, kvHeads: 2, headDim: 8, valueDim: 4 },
  ...jointShapes,
];

async function checkAttention(
  shape: Shape,
  inputs: Inputs,
  cache: CacheType,
  tolerance: number,
  beyond: Beyond = {},
): Promise<void> {
  const tiny = attentionOver(shape, inputs, beyond);
  const expected = await onReference(tiny, options(cache), wholePrompts);
  const width = shape.heads * shape.valueDim;
  const what = JSON.stringify({ ...shape, ...beyond });
  assert.equal(tinyPlan(tiny, options(cache)).operations.at(-1)?.rows.step, `attention-${cache}`);
  await onCpu(tiny, options(cache), (cpu) => checkRuns(cpu, { expected, width, tolerance, what }));
  await checkPlacement(tiny, cache, what);
}

/** Chunks, the places of pages, arenas, threads and the build change no bit. */
async function checkPlacement(tiny: Tiny, cache: CacheType, what: string): Promise<void> {
  const base = await onCpu(tiny, options(cache), wholePrompts);
  await onCpu(tiny, options(cache, { arenaBytes: SMALL_ARENAS, features: PLAIN, threads: 3 }), async (cpu) => {
    const found = await wholePrompts(cpu);
    for (const name of sequenceNames) sameBits(found[name], base[name], `${what}: ${name}, elsewhere`);
    sameBits(await chunkedPrompt(cpu, base.long.length / ROWS), base.long, `${what}: chunks, in other pages`);
  });
}

for (const row of cpuRows.filter(({ operation }) => operation === 'attention')) {
  const cache = (['f16', 'f32'] as const).find((type) => row.name === `attention-${type}`) as CacheType;
  describe(row.name, () => {
    for (const [index, shape] of shapes.entries()) {
      const { heads, kvHeads, headDim, valueDim, joint } = shape;
      const values = joint ? ', values in keys' : '';
      test(`${heads} heads of ${headDim} on ${kvHeads} of ${headDim} and ${valueDim}${values}`, async () => {
        const inputs = inputsOf(shape, index);
        await checkAttention(shape, inputs, cache, row.tolerance.relativeRms);
      });
    }

    for (const [name, beyond] of Object.entries(beyondPlain)) {
      test(`${name}: heads that share, in wide and in narrow heads`, async () => {
        for (const at of [1, 5]) {
          const shape = shapes[at] as Shape;
          await checkAttention(shape, inputsOf(shape, at), cache, row.tolerance.relativeRms, beyond);
        }
      });
    }

    test('values in keys: windows, sinks and temperature as beside them, where units take some of the heads', async () => {
      const beyond = beyondPlain['sinks, chunks and a temperature'] as Beyond;
      for (const [index, shape] of jointShapes.entries()) {
        await checkAttention(shape, inputsOf(shape, index), cache, row.tolerance.relativeRms, beyond);
      }
    });

    test('loses nothing but what its cache rounds', async () => {
      const shape = shapes[1] as Shape;
      const inputs = inputsOf(shape, 9);
      const held = { ...inputs, key: roundedToF16(inputs.key), value: roundedToF16(inputs.value) };
      await checkAttention(shape, held, cache, 1e-6);
    });

    test('survives scores that would overflow an exponential, and scores that are all alike', async () => {
      const shape: Shape = { heads: 2, kvHeads: 1, headDim: 4, valueDim: 4 };
      const inputs = inputsOf(shape, 3);
      const key = inputs.key.map((x) => Math.fround(100 * x));
      for (const [query, tolerance] of [
        [inputs.query.map((x) => 20 * x), 2e-2],
        [new Float32Array(inputs.query.length), row.tolerance.relativeRms],
      ] as const) {
        const tiny = attentionOver(shape, {
          query: query as Float32Array<ArrayBuffer>,
          key: key as Float32Array<ArrayBuffer>,
          value: inputs.value,
        });
        const expected = await onReference(tiny, options(cache), wholePrompts);
        const found = await onCpu(tiny, options(cache), wholePrompts);
        near(found.long, expected.long, tolerance, 'scores in the thousands');
      }
    });
  });
}

test('what an earlier sequence left in a page is never seen', async () => {
  const shape: Shape = { heads: 4, kvHeads: 2, headDim: 20, valueDim: 20 };
  const inputs = inputsOf(shape, 5);
  // Token 198 brings NaN: where it is not attended to, it must not be felt.
  inputs.key.fill(Number.NaN, 198 * 40, 199 * 40);
  inputs.value.fill(Number.NaN, 198 * 40, 199 * 40);
  const tiny = attentionOver(shape, inputs);
  for (const cache of ['f16', 'f32'] as const) {
    const clean = await onCpu(tiny, options(cache), (cpu) => cpu.run(stepOf('prompt', run('long', 0, 70))));
    await onCpu(tiny, options(cache), async (cpu) => {
      const spoiled = stepOf('prompt', run('long', 0, 128));
      await assert.rejects(cpu.run({ ...spoiled, tokens: spoiled.tokens.map(() => 198) }), NonFiniteError);
      sameBits(await cpu.run(stepOf('prompt', run('long', 0, 70))), clean, `${cache}: over pages full of NaN`);
    });
  }
});
