/** The routers of the design, by hand-made rows: what is selected, and with what weights. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { NonFiniteError } from '../../errors.ts';
import type { MoeSpec, RouterSpec } from '../../model/spec.ts';
import { moe, route } from './moe.ts';

const softmax: RouterSpec = { gating: 'softmax', selectionBias: false, normalise: false, scale: 1 };
const sigmoid: RouterSpec = { gating: 'sigmoid', selectionBias: true, normalise: false, scale: 1 };
const sigma = (x: number) => 1 / (1 + Math.exp(-x));

function near(found: ArrayLike<number>, expected: readonly number[]): void {
  assert.equal(found.length, expected.length);
  expected.forEach((value, i) => {
    assert.ok(Math.abs(found[i] - value) <= 1e-7, `${i}: found ${found[i]}, expected ${value}`);
  });
}

const logits = (...values: number[]) => Float32Array.from(values);

test('softmax: the greatest logits, best first, with their share among all experts', () => {
  const row = logits(1, 3, 2, 0);
  const total = [...row].reduce((sum, x) => sum + Math.exp(x), 0);
  const { experts, weights } = route(row, undefined, softmax, 2);
  assert.deepEqual([...experts], [1, 2]);
  near(weights, [Math.exp(3) / total, Math.exp(2) / total]);
});

test('a normalised softmax is the softmax over the selected; the scale comes last', () => {
  const { weights } = route(logits(1, 3, 2, 0), undefined, { ...softmax, normalise: true, scale: 2.5 }, 2);
  near(weights, [2.5 * sigma(1), 2.5 * sigma(-1)]);
});

test('ties go to the lower index, wherever they lie', () => {
  assert.deepEqual([...route(logits(5, 7, 7, 5, 7), undefined, softmax, 4).experts], [1, 2, 4, 0]);
  assert.deepEqual([...route(logits(0, 0, 0, 0), logits(1, 1, 1, 1), sigmoid, 2).experts], [0, 1]);
});

test('logits so far apart that their softmax vanishes are still ranked', () => {
  const { experts, weights } = route(logits(-3000, 0, -2000, -1000), undefined, softmax, 4);
  assert.deepEqual([...experts], [1, 3, 2, 0]);
  near(weights, [1, 0, 0, 0]);
});

test('the bias selects and never weighs', () => {
  const row = logits(2, 1, 0, -1);
  const { experts, weights } = route(row, logits(0, 0, 0, 0.9), sigmoid, 2);
  // σ(-1) + 0.9 = 1.17 is the greatest.
  assert.deepEqual([...experts], [3, 0]);
  near(weights, [sigma(-1), sigma(2)]);

  const biased = route(row, logits(0, 0, 0, 1), { ...softmax, selectionBias: true }, 2);
  const total = [...row].reduce((sum, x) => sum + Math.exp(x), 0);
  assert.deepEqual([...biased.experts], [3, 0]);
  near(biased.weights, [Math.exp(-1) / total, Math.exp(2) / total]);
});

test('sigmoids that all vanish are not divided by their sum', () => {
  const router = { ...sigmoid, normalise: true, scale: 1.5 };
  near(route(logits(-100, -200), logits(0, 0), router, 2).weights, [0, 0]);
  near(route(logits(0, 1), logits(0, 0), router, 2).weights, [
    (1.5 * sigma(1)) / (sigma(0) + sigma(1)),
    (1.5 * sigma(0)) / (sigma(0) + sigma(1)),
  ]);
});

test('groups ranked by their two best: a lone great expert does not save its group', () => {
  const router: RouterSpec = { ...sigmoid, groups: { count: 3, used: 1, rankedBy: 'twoBest' } };
  // Two best of σ + b by group: 1.9 + 0.1, 0.9 + 1.2, 1.0 + 0.9.
  const bias = logits(1.4, -0.4, 0.4, 0.7, 0.5, 0.4);
  const { experts } = route(new Float32Array(6), bias, router, 2);
  assert.deepEqual([...experts], [3, 2]);
});

test('groups ranked by their best: the lone great expert does, and brings its group along', () => {
  const router: RouterSpec = { ...softmax, groups: { count: 3, used: 1, rankedBy: 'best' } };
  assert.deepEqual([...route(logits(9, -9, 5, 5, 8, 8), undefined, router, 2).experts], [0, 1]);
  const two: RouterSpec = { ...softmax, groups: { count: 3, used: 2, rankedBy: 'best' } };
  assert.deepEqual([...route(logits(9, -9, 7, 7, 8, 8), undefined, two, 3).experts], [0, 4, 5]);
});

test('groups that tie go to the lower index', () => {
  const router: RouterSpec = { ...sigmoid, groups: { count: 2, used: 1, rankedBy: 'twoBest' } };
  assert.deepEqual([...route(new Float32Array(4), new Float32Array(4), router, 2).experts], [0, 1]);
});

test('an expert outside the kept groups is never selected, however low the bias makes those inside', () => {
  const router: RouterSpec = { ...sigmoid, groups: { count: 2, used: 1, rankedBy: 'twoBest' } };
  const { experts } = route(new Float32Array(4), logits(-5, -6, -7, -5.5), router, 2);
  assert.deepEqual([...experts], [0, 1]);
});

for (const bad of [NaN, Infinity, -Infinity]) {
  test(`a logit of ${bad} is an error that names the expert`, () => {
    for (const [router, bias] of [
      [softmax, undefined],
      [sigmoid, new Float32Array(3)],
    ] as const) {
      assert.throws(
        () => route(logits(0, bad, 0), bias, router, 1),
        (error) => {
          assert.ok(error instanceof NonFiniteError);
          assert.match(error.message, new RegExp(`expert 1 is ${bad}`));
          return true;
        },
      );
    }
  });
}

test('a bias that is not finite is an error too', () => {
  assert.throws(() => route(logits(0, 0), logits(0, NaN), sigmoid, 1), /bias for expert 1 is NaN/);
});

test('the softmax over the selected alone is the normalised softmax over all', () => {
  const row = logits(3, -1, 0.5, 7, 2, -20);
  const { experts, weights } = route(row, undefined, { ...softmax, normalise: true }, 3);
  const selected = [...experts].map((expert) => Math.exp(row[expert]));
  const sum = selected.reduce((total, value) => total + value);
  near(
    weights,
    selected.map((value) => value / sum),
  );
});

test('sigmoids too near to 1 to differ are still ranked', () => {
  const router: RouterSpec = { ...sigmoid, selectionBias: false };
  assert.deepEqual([...route(logits(40, 50, 60, 45), undefined, router, 4).experts], [2, 1, 3, 0]);
});

/** Two experts of one value each: expert e makes (e + 1)·silu(x)·x of the input x. */
const tiny: Record<string, Float32Array> = {
  router: logits(1, -1),
  gate: logits(1, 1),
  up: logits(1, 1),
  down: logits(1, 2),
  'router.bias': logits(0, 3),
  expertScale: logits(0.5, 2),
  'gate.bias': logits(0.5, -0.5),
  'up.bias': logits(1, 2),
  'down.bias': logits(-1, -2),
};
const base: MoeSpec = { experts: 2, used: 1, inner: 1, activation: 'silu', router: softmax };
const swiglu = (gate: number, up: number) => gate * sigma(gate) * up;
const made = (spec: MoeSpec, x: number, routerInput?: number) =>
  moe(logits(x), spec, (name) => tiny[name], undefined, routerInput === undefined ? undefined : logits(routerInput));

test('a bias of the router moves the choice and the weights', () => {
  // Logits 1 and -1 + 3.
  near(made({ ...base, router: { ...softmax, bias: true } }, 1), [sigma(1) * 2 * swiglu(1, 1)]);
});

test('a router with an input of its own does not look at the experts’', () => {
  near(made(base, 1, -1), [sigma(2) * 2 * swiglu(1, 1)]);
});

test('an expert’s scale multiplies its weight after they are divided by their sum', () => {
  near(made({ ...base, router: { ...softmax, normalise: true, expertScale: true } }, 1), [0.5 * swiglu(1, 1)]);
});

test('a weight on the input goes through the activation, and weighs nothing at the end', () => {
  const weight = sigma(1);
  const router: RouterSpec = { ...softmax, gating: 'sigmoid', weighsInput: true };
  near(made({ ...base, router }, 1), [swiglu(weight, weight)]);
});

test('biases of an expert stand behind each of its products', () => {
  near(made({ ...base, router: { ...softmax, normalise: true }, biases: true }, 1), [swiglu(1.5, 2) - 1]);
  near(made({ ...base, router: { ...softmax, normalise: true }, biases: true }, -1), [2 * swiglu(-1.5, 1) - 2]);
});

test('a layer is the weighted sum of its experts and the gated shared one', () => {
  const spec: MoeSpec = {
    experts: 2,
    used: 1,
    inner: 1,
    activation: 'silu',
    router: softmax,
    shared: { inner: 1, gated: true },
  };
  const silu = (x: number) => x * sigma(x);
  // Expert e: down_e · silu(gate_e·x) · (up_e·x) with hidden 2 and inner 1.
  const weights: Record<string, Float32Array> = {
    router: logits(1, 0, 0, 1),
    gate: logits(1, 0, 0, 2),
    up: logits(1, 1, 1, -1),
    down: logits(1, 2, 3, 4),
    'shared.gate': logits(1, 1),
    'shared.up': logits(2, 0),
    'shared.down': logits(1, -1),
    'shared.router': logits(0, 0.5),
  };
  const routes: number[][] = [];
  const output = moe(
    logits(3, 1, 1, 3),
    spec,
    (name) => weights[name],
    (t, { experts }) => routes.push([t, ...experts]),
  );
  assert.deepEqual(routes, [
    [0, 0],
    [1, 1],
  ]);
  const first = (weight: number, made: number, shared: number, gate: number) => ({
    made: weight * made,
    shared: gate * shared,
  });
  const row0 = first(sigma(2), silu(3) * 4, silu(4) * 6, sigma(0.5));
  const row1 = first(sigma(2), silu(6) * -2, silu(4) * 2, sigma(1.5));
  const expected = [
    row0.made + row0.shared,
    2 * row0.made - row0.shared,
    3 * row1.made + row1.shared,
    4 * row1.made - row1.shared,
  ];
  output.forEach((value, i) => {
    assert.ok(
      Math.abs(value - expected[i]) <= 4e-6 * Math.abs(expected[i]),
      `${i}: found ${value}, expected ${expected[i]}`,
    );
  });
});

test('an expert beyond the last gives its row as it is, weighted in its rank', () => {
  const spec: MoeSpec = { experts: 1, zeroExperts: 2, used: 2, inner: 1, activation: 'silu', router: softmax };
  const weights: Record<string, Float32Array> = {
    router: logits(1, 0, 0, 1, -9, -9),
    gate: logits(1, 0),
    up: logits(1, 1),
    down: logits(1, 2),
  };
  const routes: number[][] = [];
  const x = logits(1, 3);
  const output = moe(
    x,
    spec,
    (name) => weights[name],
    (_, { experts }) => routes.push([...experts]),
  );
  assert.deepEqual(routes, [[1, 0]]);
  const total = Math.exp(1) + Math.exp(3) + Math.exp(-36);
  const [own, zero] = [Math.exp(1) / total, Math.exp(3) / total];
  const made = sigma(1) * 4;
  const expected = [zero * 1 + own * made, zero * 3 + own * 2 * made];
  output.forEach((value, i) => {
    assert.ok(Math.abs(value - expected[i]) <= 4e-6 * expected[i], `${i}: found ${value}, expected ${expected[i]}`);
  });
});
