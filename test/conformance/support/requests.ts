/**
 * For every operation, requests at, inside and just outside each bound that the CPU's rows state. `accepted` are served by
 * the row they are listed for; `refused` are not, each with what its reason must say.
 */

import assert from 'node:assert/strict';
import type { KernelRequest, KernelRow, WeightShape } from '../../../src/backend/kernel.ts';
import type { AttentionOperation, MoeOperation, Operation, OperationKind } from '../../../src/model/graph.ts';
import type { MoeSpec } from '../../../src/model/spec.ts';
import { type FormatId, formatOf, formats } from '../../../src/quant/index.ts';

export interface Refused {
  readonly request: KernelRequest;
  readonly reason: RegExp;
}

export interface RowCase {
  readonly accepted: readonly KernelRequest[];
  readonly refused: readonly Refused[];
}

/** A request of both modes' largest runs is asked with each. */
export function requestFor(operation: Operation, given: Partial<KernelRequest> = {}): KernelRequest {
  return {
    operation,
    mode: 'step',
    rows: 64,
    weights: {},
    widths: {},
    cache: 'f16',
    features: new Set(['simd', 'threads', 'packed_4x8_integer_dot_product']),
    ...given,
  };
}

/** A format that is in no table, as a later version of a file may bring it. */
const UNKNOWN: FormatId = 'Q9_Z';

/** Operations with one matrix. */
type MatrixKind = 'embed' | 'linear' | 'head' | 'headLinear';

function matrixRequest(kind: MatrixKind, weight: WeightShape, given: Partial<KernelRequest> = {}): KernelRequest {
  const { shape } = weight;
  const [rows, columns] = [shape.at(-2) ?? 1, shape.at(-1) as number];
  const operation = {
    kind,
    weight: 'w',
    output: 'y',
    ...(kind === 'embed' ? { layer: -1 } : { layer: 0, input: 'x' }),
    ...(kind === 'headLinear' ? { heads: shape[0] } : {}),
  } as Operation;
  return requestFor(operation, {
    weights: { w: weight },
    widths: { x: columns, y: kind === 'embed' ? columns : rows },
    ...given,
  });
}

/** The format of a row that serves one: the only one of which it takes a matrix of whole blocks. */
export function formatOfRow(row: KernelRow): FormatId {
  const kind = row.operation as MatrixKind;
  const shape = kind === 'headLinear' ? [2, 4] : [4];
  const taken = formats.filter(
    ({ id, blockLength }) => row.accepts(matrixRequest(kind, { format: id, shape: [...shape, blockLength] })) === true,
  );
  assert.equal(taken.length, 1, `${row.name} takes ${taken.length} formats; its cases are written for one`);
  return taken[0]?.id as FormatId;
}

function matrixCase(row: KernelRow): RowCase {
  const kind = row.operation as MatrixKind;
  const format = formatOfRow(row);
  const { blockLength } = formatOf(format);
  const of = (shape: readonly number[], id = format) => matrixRequest(kind, { format: id, shape });
  const others = formats
    .filter(({ id }) => id !== format)
    .map(({ id, blockLength: columns }) => ({ request: of([4, columns], id), reason: /found/ }));
  // Values of one stand alone, so that there is no width they cannot have.
  const ragged = blockLength === 1 ? [] : [1, blockLength - 1, blockLength + 1, blockLength + blockLength / 2];
  const stacked =
    kind === 'embed' ? [] : [{ request: of([2, 4, blockLength]), reason: /needs a matrix, found \[2, 4, \d+\]/ }];
  return {
    accepted: [of([1, blockLength]), of([4, blockLength]), of([67, 5 * blockLength]), of([151936, 16 * blockLength])],
    refused: [
      ...others,
      { request: of([4, blockLength], UNKNOWN), reason: /found Q9_Z/ },
      ...ragged.map((columns) => ({
        request: of([4, columns]),
        reason: new RegExp(`multiples of ${blockLength} for ${format}, found ${columns}`),
      })),
      ...stacked,
    ],
  };
}

function headLinearCase(row: KernelRow): RowCase {
  const format = formatOfRow(row);
  const { blockLength } = formatOf(format);
  const of = (shape: readonly number[], id = format) => matrixRequest('headLinear', { format: id, shape });
  return {
    accepted: [of([1, 4, blockLength]), of([20, 512, 3 * blockLength]), of([128, 128, 2 * blockLength])],
    refused: [
      ...formats
        .filter(({ id }) => id !== format)
        .map(({ id, blockLength: columns }) => ({ request: of([2, 4, columns], id), reason: /found/ })),
      { request: of([2, 4, blockLength], UNKNOWN), reason: /found Q9_Z/ },
      { request: of([4, blockLength]), reason: /needs a matrix a head, found \[4, \d+\]/ },
      { request: of([2, 6, blockLength]), reason: /multiples of 4 wide, found 6/ },
      ...(blockLength === 1
        ? []
        : [{ request: of([2, 4, blockLength + 1]), reason: new RegExp(`multiples of ${blockLength} for ${format}`) }]),
    ],
  };
}

function attentionRequest(change: Partial<AttentionOperation>, cache: 'f16' | 'f32'): KernelRequest {
  const operation: AttentionOperation = {
    kind: 'attention',
    layer: 0,
    query: 'q',
    key: 'k',
    value: 'v',
    output: 'y',
    heads: 8,
    kvHeads: 2,
    headDim: 64,
    valueDim: 64,
    scale: 0.125,
    ...change,
  };
  return requestFor(operation, { cache });
}

function attentionCase(row: KernelRow): RowCase {
  const caches = (['f16', 'f32'] as const).filter((cache) => row.accepts(attentionRequest({}, cache)) === true);
  assert.equal(caches.length, 1, `${row.name} takes ${caches.length} kinds of cache; its cases are written for one`);
  const cache = caches[0] as 'f16' | 'f32';
  const of = (change: Partial<AttentionOperation>) => attentionRequest(change, cache);
  return {
    accepted: [
      of({}),
      of({ headDim: 4, valueDim: 4 }),
      of({ headDim: 132, valueDim: 20 }),
      of({ headDim: 256, valueDim: 512 }),
      of({ heads: 32, kvHeads: 1 }),
      of({ heads: 64, kvHeads: 2 }),
      of({ heads: 1, kvHeads: 1 }),
      of({ heads: 96, kvHeads: 96 }),
      of({ heads: 33, kvHeads: 1 }),
      of({ heads: 128, kvHeads: 1, headDim: 576, valueDim: 512, value: undefined }),
    ],
    refused: [
      { request: attentionRequest({}, cache === 'f16' ? 'f32' : 'f16'), reason: /keeps a cache of/ },
      { request: of({ headDim: 2 }), reason: /multiples of 4, found 2 for keys/ },
      { request: of({ headDim: 65 }), reason: /multiples of 4, found 65 for keys/ },
      { request: of({ valueDim: 66 }), reason: /found 64 for keys and 66 for values/ },
      { request: of({ heads: 7, kvHeads: 2 }), reason: /multiples of key heads, found 7 and 2/ },
      { request: of({ heads: 2, kvHeads: 4 }), reason: /multiples of key heads, found 2 and 4/ },
    ],
  };
}

const moeSpec: MoeSpec = {
  experts: 4,
  used: 2,
  inner: 256,
  activation: 'silu',
  shared: { inner: 256, gated: true },
  router: { gating: 'softmax', selectionBias: true, normalise: true, scale: 1 },
};

function moeRequest(change: Readonly<Record<string, WeightShape>>, moe: Partial<MoeSpec> = {}): KernelRequest {
  const spec = { ...moeSpec, ...moe };
  const operation: MoeOperation = { kind: 'moe', layer: 0, input: 'x', prefix: 'm', moe: spec, output: 'y' };
  const block = (...shape: number[]): WeightShape => ({ format: 'Q4_K', shape });
  const weights = {
    'm.router': { format: 'F32', shape: [4, 256] },
    'm.selectionBias': { format: 'F32', shape: [4] },
    'm.gate': block(4, 256, 256),
    'm.up': block(4, 256, 256),
    'm.down': block(4, 256, 256),
    'm.shared.gate': block(256, 256),
    'm.shared.up': block(256, 256),
    'm.shared.down': block(256, 256),
    'm.shared.router': { format: 'F32', shape: [1, 256] },
    ...change,
  };
  return requestFor(operation, { weights, widths: { x: 256, y: 256 } });
}

function moeCase(): RowCase {
  const matrices = ['router', 'gate', 'up', 'down', 'shared.gate', 'shared.up', 'shared.down', 'shared.router'];
  const stacked = new Set(['gate', 'up', 'down']);
  const shape = (part: string, columns: number) => (stacked.has(part) ? [4, 256, columns] : [4, columns]);
  const each = (weight: (part: string) => WeightShape, reason: RegExp) =>
    matrices.map((part) => ({
      request: moeRequest({ [`m.${part}`]: weight(part) }),
      reason: new RegExp(`m.${part}.*${reason.source}`),
    }));
  return {
    accepted: [
      moeRequest({}),
      ...formats.flatMap(({ id }) =>
        matrices.map((part) => moeRequest({ [`m.${part}`]: { format: id, shape: shape(part, 256) } })),
      ),
      moeRequest({ 'm.down': { format: 'MXFP4', shape: [4, 256, 32] } }),
    ],
    refused: [
      ...each((part) => ({ format: UNKNOWN, shape: shape(part, 256) }), /found Q9_Z/),
      ...each((part) => ({ format: 'Q6_K', shape: shape(part, 128) }), /multiples of 256 for Q6_K, found 128/),
      ...each((part) => ({ format: 'MXFP4', shape: shape(part, 272) }), /multiples of 32 for MXFP4, found 272/),
      ...each(() => ({ format: 'F32', shape: [256] }), /needs a matrix, found \[256\]/),
    ],
  };
}

function expertsRequest(change: Readonly<Record<string, WeightShape>>, moe: Partial<MoeSpec> = {}): KernelRequest {
  const spec = { ...moeSpec, ...moe };
  const norm = { weight: 'n', epsilon: 1e-6 };
  const operation: Operation = { kind: 'experts', layer: 0, input: 'x', norm, prefix: 'm', moe: spec, output: 'y' };
  const block = (...shape: number[]): WeightShape => ({ format: 'Q4_K', shape });
  const weights = {
    n: { format: 'F32', shape: [256] },
    'm.gate': block(4, 256, 256),
    'm.up': block(4, 256, 256),
    'm.down': block(4, 256, 256),
    ...change,
  };
  return requestFor(operation, { weights, widths: { x: 256, y: 256 } });
}

function expertsCase(): RowCase {
  const parts = ['gate', 'up', 'down'].map((part) => `m.${part}`);
  const each = (weight: WeightShape, reason: RegExp) =>
    parts.map((part) => ({
      request: expertsRequest({ [part]: weight }),
      reason: new RegExp(`${part}.*${reason.source}`),
    }));
  return {
    accepted: [
      expertsRequest({}),
      ...formats.flatMap(({ id }) =>
        parts.map((part) => expertsRequest({ [part]: { format: id, shape: [4, 256, 256] } })),
      ),
      expertsRequest({ 'm.down': { format: 'MXFP4', shape: [4, 256, 32] } }),
    ],
    refused: [
      ...each({ format: UNKNOWN, shape: [4, 256, 256] }, /found Q9_Z/),
      ...each({ format: 'Q6_K', shape: [4, 256, 128] }, /multiples of 256 for Q6_K, found 128/),
      ...each({ format: 'MXFP4', shape: [4, 256, 272] }, /multiples of 32 for MXFP4, found 272/),
      ...each({ format: 'F32', shape: [256] }, /needs a matrix, found \[256\]/),
    ],
  };
}

const anything = (operation: Operation, widths: KernelRequest['widths']) => (): RowCase => ({
  accepted: [requestFor(operation, { widths }), requestFor(operation, { widths, cache: 'f32' })],
  refused: [],
});

/** By operation; a kind of operation without an entry has no cases, and the suite says so. */
const cases: Readonly<Partial<Record<OperationKind, (row: KernelRow) => RowCase>>> = {
  embed: matrixCase,
  linear: matrixCase,
  head: matrixCase,
  headLinear: headLinearCase,
  attention: attentionCase,
  moe: moeCase,
  experts: expertsCase,
  norm: anything(
    { kind: 'norm', layer: 0, input: 'x', weight: 'w', epsilon: 1e-6, group: 3, output: 'y' },
    { x: 3, y: 3 },
  ),
  rope: anything(
    {
      kind: 'rope',
      layer: 0,
      input: 'x',
      headDim: 6,
      output: 'y',
      rope: { pairing: 'half', dimensions: 2, base: 10000, scaling: { kind: 'none' } },
    },
    { x: 6, y: 6 },
  ),
  incoming: anything({ kind: 'incoming', layer: 3, output: 'y' }, { y: 67 }),
  add: anything({ kind: 'add', layer: 0, left: 'a', right: 'b', output: 'y' }, { a: 1, b: 1, y: 1 }),
  concat: anything({ kind: 'concat', layer: 0, left: 'a', right: 'b', output: 'y' }, { a: 1, b: 2, y: 3 }),
  glu: anything({ kind: 'glu', layer: 0, gate: 'a', up: 'b', activation: 'silu', output: 'y' }, { a: 1, b: 1, y: 1 }),
  gate: anything(
    { kind: 'gate', layer: 0, input: 'x', gate: 'g', activation: 'softplus', output: 'y' },
    { x: 6, g: 2, y: 6 },
  ),
  scale: anything({ kind: 'scale', layer: 0, input: 'x', factor: 3, weight: 'w', output: 'y' }, { x: 5, y: 5 }),
};

export function casesOf(row: KernelRow): RowCase {
  const make = cases[row.operation];
  assert.ok(
    make !== undefined,
    `${row.name}: no cases for ${row.operation}; add them here, and runs of it beside the others`,
  );
  return make(row);
}
