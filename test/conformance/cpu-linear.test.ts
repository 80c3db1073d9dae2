/**
 * Laws 3 and 4 for matrix products: every format of the CPU's table against the reference, over widths that are one
 * block, many blocks and no multiple of what a kernel takes at once, and outputs that are no multiple of a group.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cpuFormat, cpuFormats, type Encoding } from '../../src/backend/cpu/formats.ts';
import type { CpuRow } from '../../src/backend/cpu/row.ts';
import { cpuRows } from '../../src/backend/cpu/rows.ts';
import { linear } from '../../src/backend/reference/operations.ts';
import type { Operation } from '../../src/model/graph.ts';
import { type FormatId, formatOf } from '../../src/quant/index.ts';
import {
  decoded,
  extremeWeight,
  gaussians,
  kindOfRow,
  nastyRows,
  type RowKind,
  random,
  randomWeight,
} from './support/blocks.ts';
import {
  checkRows,
  checkSameBits,
  DOT,
  near,
  nearByKind,
  PLAIN,
  RELAXED,
  ROWS,
  SMALL_ARENAS,
  sameBits,
  type ToleranceOf,
  type Values,
} from './support/compare.ts';
import { formatOfRow } from './support/requests.ts';
import { rounded } from './support/rounded-moe.ts';
import {
  bytesOf,
  f32Weight,
  onCpu,
  onReference,
  type Running,
  rowsStep,
  type Tiny,
  type TinyWeight,
  tinyGraph,
  tinyPlan,
} from './support/tiny-graph.ts';

/** Around a group of 4 rows, a unit of 64, and none of them. */
const OUTPUTS = [1, 3, 5, 17, 67];

/** Activations that int8 holds without loss leave f32 sums only; where an offset is taken off, sums may cancel. */
const EXACT_TOLERANCE = 5e-6;

function toleranceOf(row: CpuRow): ToleranceOf {
  const stated = row.tolerance.relativeRms;
  const exact = (kind: RowKind) => kind.startsWith('exact');
  return (kind) => (exact(kind) ? Math.min(stated, EXACT_TOLERANCE) : stated);
}

function columnsOf(format: FormatId): readonly number[] {
  const { blockLength } = formatOf(format);
  if (blockLength === 1) return [1, 3, 8, 67, 300];
  return blockLength < 256 ? [blockLength, 3 * blockLength, 288 - (288 % blockLength) + blockLength] : [256, 768];
}

/** One input and a product for each of `OUTPUTS`, two of them with a bias. */
function products(format: FormatId, columns: number): Tiny & { readonly names: readonly string[] } {
  const weights: Record<string, TinyWeight> = {};
  const widths: Record<string, number> = {};
  const operations = OUTPUTS.map((rows): Operation => {
    const name = `product ${rows}`;
    weights[name] = { format, shape: [rows, columns], bytes: randomWeight(format, rows * columns, rows) };
    widths[name] = rows;
    const bias = rows % 5 === 2 ? `${name}.bias` : undefined;
    if (bias !== undefined) weights[bias] = f32Weight(gaussians(rows, random(rows)) as Float32Array<ArrayBuffer>, rows);
    return { kind: 'linear', layer: 0, input: 'x', weight: name, bias, output: name };
  });
  const inputs = { x: nastyRows(ROWS, columns, columns) };
  const output = `product ${OUTPUTS.at(-1)}`;
  return { ...tinyGraph({ rows: ROWS, inputs, operations, widths, output, weights }), names: Object.keys(widths) };
}

/** Far closer than rounding allows: to the reference over activations that are rounded as the format's kernels round them. */
function checkRounded(tiny: Tiny, format: FormatId, columns: number, found: Values): void {
  const input = rounded(decoded('F32', bytesOf(tiny, 'table x')), cpuFormat(format)?.activations as Encoding);
  const expected: Record<string, Float32Array> = {};
  for (const rows of OUTPUTS) {
    const name = `product ${rows}`;
    const matrix = { data: decoded(format, bytesOf(tiny, name)), offset: 0, rows, columns };
    const bias = tiny.weights.has(`${name}.bias`) ? decoded('F32', bytesOf(tiny, `${name}.bias`)) : undefined;
    expected[name] = linear(input, matrix, bias);
  }
  nearByKind(found, expected, {
    rows: ROWS,
    tolerance: () => EXACT_TOLERANCE,
    what: `${format}, over rounded activations`,
  });
}

describe('linear', () => {
  for (const row of cpuRows.filter(({ operation }) => operation === 'linear')) {
    const format = formatOfRow(row);
    for (const columns of columnsOf(format)) {
      test(`${row.name}: ${columns} columns`, async () => {
        const tiny = products(format, columns);
        const { names } = tiny;
        const plan = tinyPlan(tiny);
        assert.ok(
          plan.operations.every(
            ({ kind, rows }) => kind !== 'linear' || (rows.step === row.name && rows.prompt === row.name),
          ),
        );
        const what = `${format} × ${columns}`;
        const values = await checkRows(tiny, {
          names,
          tolerance: toleranceOf(row),
          options: { features: RELAXED },
          what,
        });
        if (cpuFormat(format)?.kind === 'block') checkRounded(tiny, format, columns, values);
        await checkSameBits(tiny, values, { features: PLAIN }, `${what}, plain SIMD`);
        await checkSameBits(tiny, values, { features: DOT }, `${what}, products with a sum`);
        await checkSameBits(tiny, values, { features: RELAXED, arenaBytes: SMALL_ARENAS }, `${what}, arenas of 64 KiB`);
      });
    }
  }
});

describe('linear, at the ends of the integers that it sums up', () => {
  /** 1 and -1 in every way that meets in one sum of bytes. */
  const signs = [() => 1, () => -1, (i: number) => (i & 1 ? 1 : -1), (i: number) => (i & 2 ? 1 : -1)];
  for (const { id } of cpuFormats.filter((format) => format.kind === 'block')) {
    test(`${id}: the least and the greatest codes times the greatest activations`, async () => {
      const [outputs, columns] = [9, 2 * Math.max(256, formatOf(id).blockLength)];
      const x = Float32Array.from({ length: signs.length * columns }, (_, i) =>
        (signs[Math.floor(i / columns)] as (i: number) => number)(i % columns),
      );
      const tiny = tinyGraph({
        rows: signs.length,
        inputs: { x },
        operations: [{ kind: 'linear', layer: 0, input: 'x', weight: 'w', output: 'y' }],
        widths: { y: outputs },
        output: 'y',
        weights: { w: { format: id, shape: [outputs, columns], bytes: extremeWeight(id, [outputs, columns]) } },
      });
      const of = async ({ executable }: Running) => {
        await executable.run(rowsStep('step', 0, signs.length));
        return executable.value?.('y') as Float32Array;
      };
      const expected = await onReference(tiny, {}, of);
      for (const features of [DOT, RELAXED, PLAIN]) {
        const found = await onCpu(tiny, { features }, of);
        near(found, expected, EXACT_TOLERANCE, `${id}, ${[...features].join(' ')}`);
      }
    });
  }
});

describe('head', () => {
  for (const row of cpuRows.filter(({ operation }) => operation === 'head')) {
    test(`${row.name}: the rows that are wanted, and no others`, async () => {
      const format = formatOfRow(row);
      const columns = columnsOf(format).at(-1) as number;
      const weight = { format, shape: [67, columns], bytes: randomWeight(format, 67 * columns, 1) };
      const operations: Operation[] = [{ kind: 'head', layer: 0, input: 'x', weight: 'head', output: 'logits' }];
      const inputs = { x: nastyRows(ROWS, columns, 2) };
      const tiny = tinyGraph({
        rows: ROWS,
        inputs,
        operations,
        widths: { logits: 67 },
        output: 'logits',
        weights: { head: weight },
      });
      assert.deepEqual(tinyPlan(tiny).operations.at(-1)?.rows, { prompt: row.name, step: row.name });
      const every = Array.from({ length: 64 }, (_, i) => i);
      const scattered = [3, 64, 65, 127, 128, 199];
      const asked = [
        { mode: 'step', rows: 64, wanted: every },
        { mode: 'step', rows: 64, wanted: [0] },
        { mode: 'step', rows: 1, wanted: [0] },
        { mode: 'step', rows: 9, wanted: [1, 3, 8] },
        { mode: 'prompt', rows: ROWS, wanted: scattered },
        { mode: 'prompt', rows: ROWS, wanted: [199] },
        { mode: 'prompt', rows: ROWS, wanted: [] },
      ] as const;
      await onReference(tiny, {}, (reference) =>
        onCpu(tiny, { arenaBytes: SMALL_ARENAS }, async (cpu) => {
          const alone = new Map<string, Float32Array>();
          for (const { mode, rows, wanted } of asked) {
            const step = rowsStep(mode, 0, rows, wanted);
            const [found, expected] = [await cpu.logits(step), await reference.logits(step)];
            assert.equal(found.length, wanted.length * 67);
            wanted.forEach((t, i) => {
              const logits = found.subarray(i * 67, (i + 1) * 67);
              const what = `${format}, ${mode} row ${t} of ${rows}`;
              const tolerance = toleranceOf(row)(kindOfRow(t));
              // One row alone strays a little further than many do on average.
              near(
                logits,
                expected.subarray(i * 67, (i + 1) * 67),
                tolerance < 1e-5 ? tolerance : 1.5 * tolerance,
                what,
              );
              const before = alone.get(`${mode} ${t}`);
              if (before !== undefined) sameBits(logits, before, what);
              alone.set(`${mode} ${t}`, logits);
            });
          }
        }),
      );
    });
  }
});
