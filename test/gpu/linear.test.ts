/**
 * Laws 3 and 4 for matrix products on the GPU: every format against the reference, over widths and outputs that are no
 * multiple of what a kernel takes at once, and the bits of a row beside any neighbours.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { gpuFormats } from '../../src/backend/gpu/formats/index.ts';
import { spread, treeSum } from '../../src/backend/gpu/kernels/kernel-text.ts';
import { linearRows } from '../../src/backend/gpu/kernels/linear.ts';
import type { HeadOperation, LinearOperation } from '../../src/model/graph.ts';
import { type FormatId, formatOf } from '../../src/quant/index.ts';
import { gaussians, kindOfRow, nastyRows, random, randomWeight } from '../conformance/support/blocks.ts';
import { near, ROWS, sameBits } from '../conformance/support/compare.ts';
import { casesOf } from '../conformance/support/requests.ts';
import {
  f32Weight,
  onReference,
  rowsStep,
  type Tiny,
  type TinyWeight,
  tinyGraph,
  tinyPlan,
} from '../conformance/support/tiny-graph.ts';
import { checkGpuRows, onGpu } from './on-gpu.ts';

interface Shape {
  readonly format: FormatId;
  readonly rows: number;
  readonly columns: number;
  readonly bias?: boolean;
  readonly softcap?: number;
}

function product({ format, rows, columns, bias = false, softcap }: Shape, kind: 'linear' | 'head' = 'linear'): Tiny {
  const weights: Record<string, TinyWeight> = {
    w: { format, shape: [rows, columns], bytes: randomWeight(format, rows * columns, rows) },
  };
  if (bias) weights.bias = f32Weight(gaussians(rows, random(rows)) as Float32Array<ArrayBuffer>, rows);
  const head: HeadOperation = { kind: 'head', layer: 0, input: 'x', weight: 'w', output: 'y' };
  const linear: LinearOperation = { ...head, kind: 'linear', bias: bias ? 'bias' : undefined };
  return tinyGraph({
    rows: ROWS,
    inputs: { x: nastyRows(ROWS, columns, columns) },
    operations: [kind === 'head' ? (softcap === undefined ? head : { ...head, softcap }) : linear],
    widths: { y: rows },
    output: 'y',
    weights,
  });
}

function toleranceOf(name: string): number {
  return linearRows.find((row) => row.name === name)?.tolerance.relativeRms as number;
}

async function check(shape: Shape): Promise<void> {
  const tiny = product(shape);
  const id = shape.format.toLowerCase();
  assert.deepEqual(tinyPlan(tiny, { device: 'gpu' }).operations.at(-1)?.rows, {
    prompt: `linear-prompt-${id}`,
    step: `linear-step-${id}`,
  });
  const tolerance = toleranceOf(`linear-step-${id}`);
  assert.equal(tolerance, toleranceOf(`linear-prompt-${id}`));
  await checkGpuRows(tiny, {
    tolerance: () => tolerance,
    what: `${shape.format} [${shape.rows}, ${shape.columns}]`,
  });
}

/** A few blocks, and not as many as lanes take at once. */
function columnsOf(format: FormatId): number {
  const { blockLength } = formatOf(format);
  return blockLength === 256 ? 768 : 9 * Math.max(32, blockLength);
}

describe('linear on the GPU', () => {
  for (const [index, { id }] of gpuFormats.entries()) {
    test(`${id}`, () => check({ format: id, rows: 67, columns: columnsOf(id), bias: index % 2 === 0 }));
  }

  const shapes: readonly Shape[] = [
    { format: 'F32', rows: 1, columns: 1 },
    { format: 'F16', rows: 3, columns: 67, bias: true },
    // Around the tiles of 64 rows, and columns beyond what is staged at once for one row.
    { format: 'BF16', rows: 64, columns: 4164 },
    { format: 'Q8_0', rows: 130, columns: 4128 },
    // So many rows that a thread takes two.
    { format: 'Q4_0', rows: 8201, columns: 32 },
  ];
  for (const shape of shapes) {
    test(`${shape.format} [${shape.rows}, ${shape.columns}]`, () => check(shape));
  }

  test('a row has the same bits however many step rows are beside it', async () => {
    const rows = 35;
    const tiny = product({ format: 'Q6_K', rows, columns: 512 });
    await onGpu(tiny, {}, async ({ run }) => {
      const all = await run(rowsStep('step', 0, 64));
      for (const count of [1, 2, 3, 4, 5, 8, 9, 16, 63, 64]) {
        const first = 64 - count;
        const some = await run(rowsStep('step', first, count));
        sameBits(some, all.subarray(first * rows), `${count} rows`);
      }
    });
  });

  test('a prompt has the same bits in any chunks', async () => {
    const rows = 35;
    const tiny = product({ format: 'Q4_K', rows, columns: 512 });
    await onGpu(tiny, {}, async ({ run }) => {
      const all = await run(rowsStep('prompt', 0, ROWS));
      for (const size of [1, 63, 64, 65, 128]) {
        for (let first = ROWS - 2 * size < 0 ? ROWS - size : ROWS - 2 * size; first < ROWS; first += size) {
          const some = await run(rowsStep('prompt', first, size));
          sameBits(some, all.subarray(first * rows, (first + size) * rows), `rows ${first} + ${size}`);
        }
      }
    });
  });
});

// A backend returns logits of the whole vocabulary: as many as a tiny graph has tokens.
describe('head on the GPU', () => {
  for (const shape of [
    { format: 'Q6_K', rows: ROWS, columns: 512 },
    { format: 'F16', rows: ROWS, columns: 100 },
    { format: 'BF16', rows: ROWS, columns: 100, softcap: 3 },
  ] as const satisfies readonly Shape[]) {
    test(`${shape.format}: the rows that are wanted, in both modes alike${'softcap' in shape ? ', capped' : ''}`, async () => {
      const { format, rows } = shape;
      const tiny = product(shape, 'head');
      const name = `head-${format.toLowerCase()}`;
      assert.deepEqual(tinyPlan(tiny, { device: 'gpu' }).operations.at(-1)?.rows, { prompt: name, step: name });
      const asked = [
        { mode: 'step', count: 64, wanted: Array.from({ length: 64 }, (_, i) => i) },
        { mode: 'step', count: 1, wanted: [0] },
        { mode: 'step', count: 9, wanted: [1, 3, 8] },
        { mode: 'prompt', count: ROWS, wanted: [3, 8, 64, 65, 127, 128, 198, 199] },
        { mode: 'prompt', count: ROWS, wanted: [8] },
        { mode: 'prompt', count: ROWS, wanted: [] },
      ] as const;
      await onReference(tiny, {}, (reference) =>
        onGpu(tiny, {}, async (gpu) => {
          const seen = new Map<number, Float32Array>();
          for (const { mode, count, wanted } of asked) {
            const step = rowsStep(mode, 0, count, wanted);
            const [found, expected] = [await gpu.logits(step), await reference.logits(step)];
            assert.equal(found.length, wanted.length * rows);
            wanted.forEach((t, i) => {
              const logits = found.subarray(i * rows, (i + 1) * rows);
              const what = `${format}, ${mode} row ${t} (${kindOfRow(t)})`;
              near(logits, expected.subarray(i * rows, (i + 1) * rows), toleranceOf(name), what);
              const before = seen.get(t);
              if (before !== undefined) sameBits(logits, before, what);
              seen.set(t, logits);
            });
          }
          assert.ok(seen.size > 64);
        }),
      );
    });
  }
});

describe('the rows of the table', () => {
  for (const row of linearRows) {
    test(`${row.name} takes what it states and names what it does not`, () => {
      const { accepted, refused } = casesOf(row);
      for (const request of accepted) assert.equal(row.accepts(request), true);
      for (const { request, reason } of refused) assert.match(String(row.accepts(request)), reason);
    });
  }
});

test('more workgroups than one dimension takes are spread over two', () => {
  for (const count of [0, 1, 32768, 32769, 65536, 1_000_000]) {
    const [x, y] = spread(count);
    assert.ok(x <= 65535 && y <= 65535 && x * y >= count && (count === 0 || x * (y - 1) < count), `${count}`);
  }
  assert.equal(treeSum(['a', 'b', 'c', 'd']), '((a + b) + (c + d))');
});
