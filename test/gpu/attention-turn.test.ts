/**
 * Step attention that turns queries and keys itself: near the reference's norm, rotation and attention, and the same bits
 * as where a dispatch of its own turns them, with what it stores read by the steps after it.
 */

import { after, describe, test } from 'node:test';
import type { GpuRow } from '../../src/backend/gpu/row.ts';
import { gpuRows } from '../../src/backend/gpu/rows.ts';
import type { Operation, RotateOperation } from '../../src/model/graph.ts';
import { ropeAngles, ropeTable } from '../../src/model/rope.ts';
import {
  attentionOver,
  type Beyond,
  checkRuns,
  edges,
  inputsOf,
  options,
  otherPages,
  run,
  type Shape,
  stepOf,
  wholePrompts,
} from '../conformance/support/attention-cases.ts';
import { gaussians, random } from '../conformance/support/blocks.ts';
import { sameBits } from '../conformance/support/compare.ts';
import { bindWeights, bytesOf, f32Weight, onReference, type Tiny } from '../conformance/support/tiny-graph.ts';
import { emulatedAttention, suitePages } from '../support/emulated-attention.ts';
import { closeGpuTestDevice } from '../support/gpu.ts';

const CONTEXT = 256;
const epsilon = 1e-6;

after(closeGpuTestDevice);

const rowNamed = (name: string) => gpuRows.find((row) => row.name === name) as GpuRow;

interface Case {
  readonly shape: Shape;
  readonly normed: boolean;
  readonly rope?: RotateOperation['rope'];
  readonly beyond?: Beyond;
}

const unscaled = { kind: 'none' } as const;
/** Both pairings, whole heads and halves of them; heads in several tiles; nothing to do but to store; a window and sinks. */
const cases: readonly Case[] = [
  {
    shape: { heads: 5, kvHeads: 1, headDim: 32, valueDim: 16 },
    normed: true,
    rope: { pairing: 'half', dimensions: 32, base: 1e4, scaling: unscaled },
  },
  {
    shape: { heads: 20, kvHeads: 2, headDim: 32, valueDim: 32 },
    normed: true,
    rope: { pairing: 'half', dimensions: 16, base: 1e4, scaling: unscaled },
  },
  {
    shape: { heads: 4, kvHeads: 2, headDim: 16, valueDim: 32 },
    normed: false,
    rope: { pairing: 'adjacent', dimensions: 8, base: 1e4, scaling: unscaled },
  },
  { shape: { heads: 2, kvHeads: 1, headDim: 16, valueDim: 16 }, normed: false },
  {
    shape: { heads: 4, kvHeads: 2, headDim: 16, valueDim: 16 },
    normed: false,
    rope: { pairing: 'half', dimensions: 16, base: 1e4, scaling: unscaled },
    beyond: { reach: { kind: 'window', length: 9 }, sinks: 'sinks' },
  },
];

const weightsOf = ({ shape: { headDim } }: Case) =>
  Object.fromEntries(
    ['queryNorm', 'keyNorm'].map((name, seed) => [
      name,
      gaussians(headDim, random(seed)).map((x) => 1 + 0.2 * x) as Float32Array<ArrayBuffer>,
    ]),
  );

/** As the reference computes it: norms and rotations by themselves. */
function unfused(given: Case, tiny: Tiny): Tiny {
  const { shape, normed, rope } = given;
  const { headDim } = shape;
  const operations: Operation[] = [];
  const names = { query: 'query', key: 'key' };
  for (const name of ['query', 'key'] as const) {
    const base = { layer: 0, input: names[name] } as const;
    if (normed) {
      names[name] = `${name} normed`;
      operations.push({ ...base, kind: 'norm', weight: `${name}Norm`, epsilon, group: headDim, output: names[name] });
    }
    if (rope !== undefined) {
      const input = names[name];
      names[name] = `${name} rotated`;
      operations.push({ ...base, kind: 'rope', input, headDim, rope, output: names[name] });
    }
  }
  const all = tiny.graph.operations;
  const attend = { ...(all.at(-1) as Operation), ...names } as Operation;
  const widths = Object.fromEntries(
    operations.map(({ output }) => [output, tiny.graph.widths[output.split(' ')[0] as string] as number]),
  );
  const norms = Object.entries(weightsOf(given)).map(([name, values]) => [name, f32Weight(values, headDim)] as const);
  const tables = [...tiny.weights.values()].map(({ name, format, shape: own }) => {
    return [name, { format, shape: own, bytes: bytesOf(tiny, name) as Uint8Array<ArrayBuffer> }] as const;
  });
  return {
    ...tiny,
    graph: {
      ...tiny.graph,
      operations: [...all.slice(0, -1), ...operations, attend],
      widths: { ...tiny.graph.widths, ...widths },
    },
    ...bindWeights(Object.fromEntries([...tables, ...norms])),
  };
}

function anglesOf({ rope }: Case): Float32Array<ArrayBuffer> {
  if (rope === undefined) return new Float32Array(4);
  const pairs = rope.dimensions / 2;
  const angles = new Float32Array(CONTEXT * pairs * 2);
  for (let position = 0; position < CONTEXT; position++) {
    const offset = position * pairs * 2;
    ropeAngles(ropeTable(rope, undefined), position, { cos: angles, sin: angles.subarray(pairs), offset });
  }
  return angles;
}

describe('attention that turns queries and keys itself, written out', () => {
  for (const [seed, given] of cases.entries()) {
    const { shape, normed, rope } = given;
    const what = JSON.stringify(given);
    test(what, async () => {
      const inputs = inputsOf(shape, seed);
      const tiny = attentionOver(shape, inputs, given.beyond);
      const expected = await onReference(unfused(given, tiny), options('f16'), wholePrompts);
      const norm = (weight: string) => (normed ? { weight, epsilon, group: shape.headDim } : undefined);
      const rotate: RotateOperation = {
        kind: 'rotate',
        layer: 0,
        input: 'projected',
        queryNorm: norm('queryNorm'),
        keyNorm: norm('keyNorm'),
        rope,
        ...shape,
        output: 'turned',
      };
      const gpu = await emulatedAttention({
        rows: { prompt: rowNamed('attention-prompt-matrix-f16'), step: rowNamed('attention-step-matrix-f16') },
        tiny,
        inputs,
        shape,
        context: CONTEXT,
        pages: suitePages,
        turned: { rotate, row: rowNamed('rotate-f16'), weights: weightsOf(given), angles: anglesOf(given) },
      });
      const width = shape.heads * shape.valueDim;
      // Its batches and verifies have several rows of one sequence, and its single steps do not.
      const { alone } = await checkRuns({ run: gpu }, { expected, width, tolerance: 2e-3, what });
      // A sequence from its first row on: each step reads what those before it have stored, in pages that hold other things.
      for (let position = 0; position < 67; position++) {
        const row = await gpu(stepOf('step', run('long', position, position + 1), otherPages));
        if (!edges.includes(position)) continue;
        sameBits(row, alone.get(position) as Float32Array, `${what}: step row ${position} after steps`);
      }
    });
  }
});
