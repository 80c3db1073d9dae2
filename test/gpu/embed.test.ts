/** Embedding lookup on the GPU: every format against the reference decoder, bit for bit, over widths, rows and tokens. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { Binding } from '../../src/backend/gpu/builder.ts';
import { Builder } from '../../src/backend/gpu/builder.ts';
import { gpuFormat } from '../../src/backend/gpu/formats/index.ts';
import { planeWords, toPlanes } from '../../src/backend/gpu/formats.ts';
import { embedRows } from '../../src/backend/gpu/kernels/embed.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import type { EmbedOperation } from '../../src/model/graph.ts';
import { type FormatId, formatOf, formats } from '../../src/quant/index.ts';
import { sameBits } from '../conformance/support/compare.ts';
import { requestFor } from '../conformance/support/requests.ts';
import { f32Weight, tinyGraph } from '../conformance/support/tiny-graph.ts';
import { closeGpuTestDevice, runOnGpu, type TestBinding } from '../support/gpu.ts';

after(closeGpuTestDevice);

const VOCABULARY = 5;
const plain: EmbedOperation = { kind: 'embed', layer: -1, weight: 'w', output: 'y' };

/** Bytes whose scales are finite and not subnormal in any format, and not the same in two rows. */
function someBytes(format: FormatId, columns: number): Uint8Array<ArrayBuffer> {
  const { blockLength, blockBytes } = formatOf(format);
  return Uint8Array.from(
    { length: VOCABULARY * (columns / blockLength) * blockBytes },
    (_, i) => (((i * 73) ^ (i >> 5)) & 0x3b) | 0x40,
  );
}

async function embed(format: FormatId, columns: number, tokens: readonly number[], mode: Mode, scale?: number) {
  const operation: EmbedOperation = scale === undefined ? plain : { ...plain, scale };
  const bytes = someBytes(format, columns);
  const { spec, graph, weights } = tinyGraph({
    rows: 1,
    inputs: { x: new Float32Array(1) },
    operations: [operation],
    widths: { y: columns },
    output: 'y',
    weights: { w: { format, shape: [VOCABULARY, columns], bytes }, other: f32Weight(new Float32Array(1), 1, 1) },
  });
  const builder = new Builder({
    graph,
    spec,
    weights,
    promptRows: 8,
    wanted: 4,
    context: 64,
    cacheType: 'f16',
    features: new Set(),
  });
  const row = embedRows.find(
    (candidate) =>
      candidate.accepts(requestFor(operation, { weights: { w: { format, shape: [VOCABULARY, columns] } } })) === true,
  );
  assert.ok(row, `no row takes ${format}`);
  row.emit(operation, builder, mode);
  const [dispatch, ...more] = builder.dispatches[mode];
  assert.ok(dispatch !== undefined && more.length === 0);

  const known = gpuFormat(format);
  assert.ok(known);
  const planes = new Uint8Array(VOCABULARY * planeWords(known, columns).rowWords * 4);
  toPlanes(known, columns, bytes, planes);
  const step = new Uint32Array(builder.step.words).fill(0xffffffff);
  step[builder.step.rows] = tokens.length;
  step.set(tokens, builder.step.tokens);
  const bind = (binding: Binding): TestBinding => {
    if (binding.kind === 'weight') return { read: planes };
    return binding.kind === 'step' ? { read: step } : { write: builder.bytes.get('y') as number };
  };
  // One row more than the run has: it must stay as it was.
  const [out] = await runOnGpu(
    dispatch.code,
    dispatch.bindings.map(bind),
    dispatch.workgroups({ rows: tokens.length + 1, wanted: 0, visible: 1 }),
  );
  const table = new Float32Array(VOCABULARY * columns);
  const { blockLength, decode } = formatOf(format);
  decode(bytes, 0, table, 0, table.length / blockLength);
  const expected = new Float32Array((builder.bytes.get('y') as number) / 4);
  tokens.forEach((token, t) => {
    const at = Math.min(token, VOCABULARY - 1);
    const row = table.subarray(at * columns, (at + 1) * columns);
    expected.set(scale === undefined ? row : row.map((value) => value * Math.fround(scale)), t * columns);
  });
  return { found: new Float32Array(out as ArrayBuffer), expected };
}

test('every format, as the reference decodes it', async () => {
  for (const { id, blockLength } of formats) {
    const { found, expected } = await embed(id, 3 * Math.max(32, blockLength), [4, 0, 2], 'step');
    sameBits(found, expected, id);
  }
});

test('rows wider than a workgroup, and of any width', async () => {
  for (const [id, columns] of [
    ['Q8_0', 32 * 67],
    ['F16', 2052],
    ['F32', 30],
    ['BF16', 1],
    ['F16', 61],
  ] as const) {
    const { found, expected } = await embed(id, columns, [3, 3, 1, 0], 'prompt');
    sameBits(found, expected, `${id} of ${columns} columns`);
  }
});

test('embeddings are multiplied with their scale, in fours and one by one', async () => {
  for (const columns of [64, 61]) {
    const { found, expected } = await embed('F16', columns, [4, 0, 2], 'step', Math.sqrt(columns));
    sameBits(found, expected, `${columns} columns`);
  }
});

test('a token beyond the vocabulary reads nothing outside the weight', async () => {
  const { found, expected } = await embed('Q4_0', 64, [4, 5, 0xffffffff], 'step');
  sameBits(found, expected, 'the last row');
});
