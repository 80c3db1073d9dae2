/**
 * Layers for the mixture of experts: every router, mixes of formats, and kinds of shared expert. Rows whose choice of experts
 * hangs on a rounding are left out when the inputs are made; equal scores stay, since they go to the lower index everywhere.
 */

import assert from 'node:assert/strict';
import { cpuFormat } from '../../../src/backend/cpu/formats.ts';
import { route } from '../../../src/backend/reference/moe.ts';
import type { MoeOperation } from '../../../src/model/graph.ts';
import type { Activation, MoeSpec, RouterSpec } from '../../../src/model/spec.ts';
import type { FormatId } from '../../../src/quant/index.ts';
import { decoded, gaussians, kindOfRow, nastyRow, nastyRows, random, randomWeight } from './blocks.ts';
import { ROWS } from './compare.ts';
import { f32Weight, type Tiny, type TinyWeight, tinyGraph } from './tiny-graph.ts';

/** The matrices of a layer. */
export type Part = 'router' | 'gate' | 'up' | 'down' | 'shared.gate' | 'shared.up' | 'shared.down' | 'shared.router';

export interface MoeCase {
  readonly hidden: number;
  readonly moe: MoeSpec;
  /** By part; what is not named is F32. */
  readonly formats: Partial<Record<Part, FormatId>>;
  /** Added to the selection's scores. */
  readonly bias?: readonly number[];
  /** The router reads a value of its own, `r`, as wide as the input. */
  readonly routerInput?: true;
}

const softmax: RouterSpec = { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 };
const sigmoid: RouterSpec = { gating: 'sigmoid', selectionBias: true, normalise: true, scale: 2.5 };
const inputScaled: RouterSpec = { ...sigmoid, selectionBias: false, normalise: false, scale: 1, weighsInput: true };
const clamped: Activation = { kind: 'clampedSwiglu', alpha: 1.702, limit: 7 };
const q4kM: MoeCase['formats'] = { gate: 'Q4_K', up: 'Q4_K', down: 'Q6_K' };

export function spec(experts: number, used: number, inner: number, more: Partial<MoeSpec> = {}): MoeSpec {
  return { experts, used, inner, activation: 'silu', router: softmax, ...more };
}

function spread(count: number): number[] {
  return [...gaussians(count, random(count)).map((x) => 0.2 * x)];
}

export const moeCases: Readonly<Record<string, MoeCase>> = {
  'softmax, normalised': { hidden: 256, moe: spec(8, 2, 256), formats: q4kM },
  'softmax, not normalised, gated shared expert': {
    hidden: 256,
    moe: spec(60, 4, 96, { router: { ...softmax, normalise: false }, shared: { inner: 288, gated: true } }),
    formats: {
      gate: 'Q5_0',
      up: 'Q5_1',
      down: 'MXFP4',
      'shared.gate': 'Q8_0',
      'shared.up': 'IQ4_NL',
      'shared.down': 'Q4_0',
      'shared.router': 'BF16',
    },
  },
  'sigmoid, bias, scale, plain shared expert in another format': {
    hidden: 256,
    moe: spec(16, 4, 256, { router: sigmoid, shared: { inner: 67, gated: false } }),
    formats: {
      gate: 'Q4_K',
      up: 'Q6_K',
      down: 'Q8_0',
      'shared.gate': 'BF16',
      'shared.up': 'BF16',
      'shared.down': 'BF16',
    },
    bias: spread(16),
  },
  'NVFP4 routed with a BF16 shared expert, one of 64': {
    hidden: 192,
    moe: spec(64, 1, 64, { router: { ...softmax, normalise: false, scale: 1.5 }, shared: { inner: 65, gated: true } }),
    formats: {
      gate: 'NVFP4',
      up: 'NVFP4',
      down: 'NVFP4',
      'shared.gate': 'BF16',
      'shared.up': 'BF16',
      'shared.down': 'BF16',
    },
  },
  'NVFP4 in blocks of 32 with a scale for each whole matrix, and a shared expert without': {
    hidden: 160,
    moe: spec(6, 3, 96, { shared: { inner: 64, gated: true }, scaled: true }),
    formats: {
      gate: 'NVFP4_32',
      up: 'NVFP4_32',
      down: 'NVFP4_32',
      'shared.gate': 'BF16',
      'shared.up': 'BF16',
      'shared.down': 'BF16',
    },
  },
  'scales of whole matrices, and nothing rounded': {
    hidden: 64,
    moe: spec(60, 2, 67, { router: sigmoid, scaled: true }),
    formats: { gate: 'FP8_32', up: 'BF16' },
    bias: spread(60),
  },
  'softmax with a selection bias': {
    hidden: 64,
    moe: spec(8, 3, 33, { router: { ...softmax, selectionBias: true } }),
    formats: {},
    bias: spread(8),
  },
  'groups by their best': {
    hidden: 64,
    moe: spec(16, 4, 32, { router: { ...softmax, groups: { count: 4, used: 2, rankedBy: 'best' } } }),
    formats: { down: 'Q4_0' },
  },
  'groups by their two best': {
    hidden: 64,
    moe: spec(16, 4, 32, { router: { ...sigmoid, groups: { count: 4, used: 2, rankedBy: 'twoBest' } } }),
    formats: { up: 'Q4_1' },
    bias: spread(16),
  },
  'softmax groups by their two best': {
    hidden: 64,
    moe: spec(12, 2, 32, { router: { ...softmax, groups: { count: 3, used: 1, rankedBy: 'twoBest' } } }),
    formats: {},
  },
  'groups of one': {
    hidden: 32,
    moe: spec(4, 2, 32, {
      router: { ...sigmoid, normalise: false, groups: { count: 4, used: 3, rankedBy: 'twoBest' } },
    }),
    formats: {},
    bias: spread(4),
  },
  'sigmoid without a bias': {
    hidden: 100,
    moe: spec(5, 2, 20, { router: { ...sigmoid, selectionBias: false } }),
    formats: { gate: 'F16', up: 'BF16', down: 'F16' },
  },
  'one expert': { hidden: 32, moe: spec(1, 1, 32), formats: { gate: 'Q8_0', up: 'Q8_0', down: 'Q8_0' } },
  'all experts': { hidden: 64, moe: spec(4, 4, 64), formats: { gate: 'IQ4_NL', up: 'Q5_1', down: 'Q5_0' } },
  'experts that no row picks': {
    hidden: 64,
    moe: spec(8, 2, 64, { router: sigmoid }),
    formats: { gate: 'Q4_0' },
    bias: [9, -9, 9.1, -9, -9, 9.2, -9, -9],
  },
  'widths that fit nothing': {
    hidden: 37,
    moe: spec(7, 3, 67, { shared: { inner: 5, gated: true } }),
    formats: { router: 'BF16', gate: 'F16', up: 'F32', down: 'BF16', 'shared.down': 'F16' },
  },
  'f32 gate beside int8 up': { hidden: 256, moe: spec(6, 2, 256), formats: { gate: 'F32', up: 'Q6_K', down: 'Q4_K' } },
  'int8 gate beside BF16 up, and so the shared expert': {
    hidden: 256,
    moe: spec(6, 2, 256, { shared: { inner: 256, gated: false } }),
    formats: {
      gate: 'Q4_K',
      up: 'BF16',
      down: 'F16',
      'shared.gate': 'Q8_0',
      'shared.up': 'F16',
      'shared.down': 'Q5_K',
    },
  },
  'f32 gate and integer up in one arena, several units each': {
    hidden: 32,
    moe: spec(2, 1, 132),
    formats: { up: 'Q8_0', down: 'BF16' },
  },
  'integer gate and f32 up in one arena, several units each': {
    hidden: 32,
    moe: spec(2, 2, 132),
    formats: { gate: 'MXFP4', down: 'BF16' },
  },
  'a router with a bias': {
    hidden: 64,
    moe: spec(8, 2, 64, { router: { ...softmax, bias: true } }),
    formats: { gate: 'Q8_0', up: 'Q8_0', down: 'Q8_0' },
  },
  'a router with a bias, sigmoid and a selection bias': {
    hidden: 36,
    moe: spec(7, 3, 20, { router: { ...sigmoid, bias: true } }),
    formats: {},
    bias: spread(7),
  },
  'a router with an input of its own, scales of experts': {
    hidden: 64,
    moe: spec(8, 2, 32, { activation: 'geluTanh', router: { ...softmax, expertScale: true } }),
    formats: { router: 'BF16', gate: 'BF16', up: 'BF16', down: 'BF16' },
    routerInput: true,
  },
  'a router with an input of its own, encoded otherwise than the experts’': {
    hidden: 256,
    moe: spec(8, 2, 256, { router: softmax, shared: { inner: 64, gated: true } }),
    formats: { router: 'Q6_K', gate: 'F16', up: 'Q4_K', down: 'Q4_K' },
    routerInput: true,
  },
  'biases of experts, clamped SwiGLU': {
    hidden: 64,
    moe: spec(8, 2, 64, { activation: clamped, biases: true, router: { ...softmax, bias: true } }),
    formats: { gate: 'MXFP4', up: 'MXFP4', down: 'MXFP4' },
  },
  'biases of experts at widths that fit nothing': {
    hidden: 37,
    moe: spec(5, 2, 67, { biases: true, shared: { inner: 33, gated: false } }),
    formats: { gate: 'F16', down: 'BF16' },
  },
  'weights on the inputs of experts, one of 16': {
    hidden: 64,
    moe: spec(16, 1, 64, { router: inputScaled, shared: { inner: 64, gated: false } }),
    formats: { gate: 'Q8_0', up: 'Q4_0', down: 'Q8_0' },
  },
  'weights on the inputs of experts with biases, three of 6': {
    hidden: 36,
    moe: spec(6, 3, 35, { activation: 'geluTanh', biases: true, router: { ...inputScaled, expertScale: true } }),
    formats: {},
  },
  'GELU with a shared expert': {
    hidden: 256,
    moe: spec(6, 2, 256, { activation: 'geluTanh', shared: { inner: 256, gated: true } }),
    formats: { ...q4kM, 'shared.gate': 'Q4_K', 'shared.up': 'Q4_K', 'shared.down': 'Q6_K' },
  },
  'an int8 router': {
    hidden: 256,
    moe: spec(8, 2, 64, { shared: { inner: 64, gated: true } }),
    formats: { router: 'Q6_K', 'shared.router': 'Q4_K' },
  },
};

/** With experts that give a row as it is, for layers whose experts are not computed apart. */
export const zeroExpertCases: Readonly<Record<string, MoeCase>> = {
  'softmax with a bias, experts and others that give a row as it is': {
    hidden: 64,
    moe: spec(8, 3, 32, { zeroExperts: 4, router: { ...softmax, selectionBias: true, normalise: false, scale: 6 } }),
    formats: { router: 'BF16' },
    bias: spread(12),
  },
  'mostly experts that give a row as it is, beside a shared one': {
    hidden: 64,
    moe: spec(3, 4, 32, { zeroExperts: 9, router: sigmoid, shared: { inner: 64, gated: true } }),
    formats: { gate: 'Q8_0', up: 'Q8_0', down: 'Q8_0' },
    bias: spread(12),
  },
};

export function moeWeights({ hidden, moe, formats, bias }: MoeCase, seed = 100): Record<string, TinyWeight> {
  const { experts, zeroExperts = 0, inner, shared } = moe;
  const shapes: [Part, readonly number[]][] = [
    ['router', [experts + zeroExperts, hidden]],
    ['gate', [experts, inner, hidden]],
    ['up', [experts, inner, hidden]],
    ['down', [experts, hidden, inner]],
  ];
  if (shared !== undefined) {
    shapes.push(
      ['shared.gate', [shared.inner, hidden]],
      ['shared.up', [shared.inner, hidden]],
      ['shared.down', [hidden, shared.inner]],
    );
    if (shared.gated) shapes.push(['shared.router', [1, hidden]]);
  }
  const weights: Record<string, TinyWeight> = {};
  for (const [index, [part, shape]] of shapes.entries()) {
    const format = formats[part] ?? 'F32';
    weights[`m.${part}`] = {
      format,
      shape,
      bytes: randomWeight(
        format,
        shape.reduce((a, b) => a * b, 1),
        seed + index,
      ),
    };
  }
  const choices = experts + zeroExperts;
  if (moe.router.selectionBias) weights['m.selectionBias'] = f32Weight(Float32Array.from(bias ?? []), choices);
  const vector = (part: string, length: number, index: number) => {
    weights[`m.${part}`] = f32Weight(gaussians(length, random(seed + index)) as Float32Array<ArrayBuffer>, length);
  };
  if (moe.router.bias) vector('router.bias', choices, 20);
  if (moe.router.expertScale) vector('expertScale', experts, 21);
  if (moe.biases) {
    vector('gate.bias', experts * inner, 22);
    vector('up.bias', experts * inner, 23);
    vector('down.bias', experts * hidden, 24);
  }
  if (moe.scaled === true) {
    // No two alike, over a wide range, one of them negative.
    const scales = (factor: number) =>
      Float32Array.from({ length: experts }, (_, e) => (e === 1 ? -1 : 1) * factor ** (e % 5));
    weights['m.gateScale'] = f32Weight(scales(0.3), experts);
    weights['m.outputScale'] = f32Weight(scales(0.07), experts);
  }
  return weights;
}

/** Whether a row's experts stay the same when logits and scores move as far as arithmetic may move them. */
function isSettled(
  x: Float32Array,
  { router, routerBias }: { readonly router: Float32Array; readonly routerBias: Float32Array | undefined },
  { moe, formats, bias }: MoeCase,
  next: () => number,
): boolean {
  const { used } = moe;
  const experts = moe.experts + (moe.zeroExperts ?? 0);
  const logits = Float32Array.from({ length: experts }, (_, e) => routerBias?.[e] ?? 0);
  for (let e = 0; e < experts; e++)
    for (let i = 0; i < x.length; i++) logits[e] += (x[i] as number) * (router[e * x.length + i] as number);
  if (logits.every((logit) => logit === 0)) return true;
  const size = Math.sqrt(logits.reduce((sum, logit) => sum + logit * logit, 0) / experts);
  const slack = (cpuFormat(formats.router ?? 'F32')?.activations === 'f32' ? 1e-4 : 0.05) * size;
  // Without a bias logits are ranked, but for groups of sigmoids.
  const byScore = (moe.router.gating === 'sigmoid' && moe.router.groups !== undefined) || moe.router.selectionBias;
  const choice = (distance: number) => {
    const moved = logits.map((logit) => logit + slack * distance * (2 * next() - 1));
    const scores = Float32Array.from(
      { length: experts },
      (_, e) => (bias?.[e] ?? 0) + 1e-5 * distance * (2 * next() - 1),
    );
    return [...route(moved, byScore ? scores : undefined, moe.router, used).experts].sort((a, b) => a - b).join();
  };
  const settled = choice(0);
  return Array.from({ length: 8 }, () => choice(1)).every((other) => other === settled);
}

export function moeGraph(given: MoeCase): Tiny {
  const { hidden, moe } = given;
  const weights = moeWeights(given);
  const { format, bytes } = weights['m.router'] as TinyWeight;
  const own = weights['m.router.bias'];
  const routerBias = own && decoded(own.format, own.bytes);
  const router = { router: decoded(format, bytes), routerBias };
  const next = random(hidden + moe.experts);
  const x = new Float32Array(ROWS * hidden);
  let unsettled = 0;
  for (let t = 0; t < ROWS; t++) {
    const tries = Array.from({ length: 40 }, () => 0);
    const found = tries.some(() => {
      const candidate = nastyRow(kindOfRow(t), hidden, next);
      x.set(candidate, t * hidden);
      return isSettled(candidate, router, given, next);
    });
    if (found) continue;
    x.fill(0, t * hidden, (t + 1) * hidden);
    unsettled++;
  }
  // Saturated sigmoids are all alike: no huge or tiny row is ever settled there.
  assert.ok(unsettled <= (ROWS * 2) / 8, `${unsettled} of ${ROWS} rows had to be left out`);
  const { routerInput } = given;
  // Rows that choose are settled; what the experts then read may be anything.
  const inputs: Record<string, Float32Array<ArrayBuffer>> = routerInput
    ? { x: nastyRows(ROWS, hidden, hidden), r: x }
    : { x };
  const moeOperation: MoeOperation = { kind: 'moe', layer: 0, input: 'x', prefix: 'm', moe, output: 'y' };
  return tinyGraph({
    rows: ROWS,
    inputs,
    operations: [routerInput ? { ...moeOperation, routerInput: 'r' } : moeOperation],
    widths: { y: hidden },
    output: 'y',
    weights,
  });
}
