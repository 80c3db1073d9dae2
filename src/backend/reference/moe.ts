/** The mixture of experts: which experts a row goes to and with what weights, and what they make of it. */

import { NonFiniteError } from '../../errors.ts';
import type { MoeSpec, RouterSpec } from '../../model/spec.ts';
import type { ExpertPart } from '../../model/weights.ts';
import { glu, linear, type Matrix, scale, softmax } from './operations.ts';

/** A row's experts, best first, and their weights. */
export interface Route {
  readonly experts: Int32Array;
  readonly weights: Float32Array;
}

/**
 * Routes one row.
 *
 * Scores are the softmax over all logits, or each logit's sigmoid. The selection takes the `used` greatest logits, or,
 * with a bias, the greatest score + bias; with groups, only from the best groups. Weights are the scores without the
 * bias, divided by their sum where the router normalises, times its scale. Ties go to the lower index.
 *
 * @param logits [experts] of the row
 * @param bias [experts], when `router.selectionBias`
 * @throws NonFiniteError `non_finite` when a logit or a biased score is not finite
 */
export function route(logits: Float32Array, bias: Float32Array | undefined, router: RouterSpec, used: number): Route {
  requireFinite(logits, 'logit');
  const scores = Float64Array.from(logits);
  if (router.gating === 'softmax') softmax(scores);
  else for (let expert = 0; expert < scores.length; expert++) scores[expert] = sigmoid(logits[expert]);

  // What the selection ranks. Without a bias these are the logits: the order is the same, and scores that vanish to 0, or
  // come so near to 1 that nothing is left between them, do not become ties. Groups of sigmoids are ranked by sums of scores.
  const byLogits = bias === undefined && (router.gating === 'softmax' || router.groups === undefined);
  const ranks = byLogits
    ? Float64Array.from(logits)
    : scores.map((score, expert) => score + (bias === undefined ? 0 : bias[expert]));
  requireFinite(ranks, 'score with its selection bias');
  const allowed = router.groups ? inBestGroups(ranks, router.groups) : () => true;
  const experts = greatest(ranks, used, allowed);

  const weights = Float64Array.from(experts, (expert) => scores[expert]);
  if (router.normalise) {
    const sum = weights.reduce((total, weight) => total + weight, 0);
    // Sigmoids may all vanish; a softmax's selected scores cannot all be 0, so one rule serves both.
    if (sum > 1e-20) for (let i = 0; i < used; i++) weights[i] /= sum;
  }
  return { experts, weights: Float32Array.from(weights, (weight) => weight * router.scale) };
}

/** Which experts are in a kept group: the `used` groups that are best by their best, or their two best, members. */
function inBestGroups(ranks: Float64Array, groups: NonNullable<RouterSpec['groups']>): (expert: number) => boolean {
  const size = ranks.length / groups.count;
  const members = groups.rankedBy === 'best' ? 1 : Math.min(2, size);
  const groupRanks = Float64Array.from({ length: groups.count }, (_, group) => {
    const own = ranks.subarray(group * size, (group + 1) * size);
    return greatest(own, members, () => true).reduce((sum, member) => sum + own[member], 0);
  });
  const kept = new Set(greatest(groupRanks, groups.used, () => true));
  return (expert) => kept.has(Math.floor(expert / size));
}

/** The indices of the `count` greatest allowed values, greatest first; of equal ones the lower index. */
function greatest(values: Float64Array, count: number, allowed: (index: number) => boolean): Int32Array {
  const order = Array.from(values.keys()).filter(allowed);
  // The sort is stable, so equal values stay in the order of their indices.
  order.sort((a, b) => values[b] - values[a]);
  return Int32Array.from(order.slice(0, count));
}

function requireFinite(values: ArrayLike<number>, what: string): void {
  for (let expert = 0; expert < values.length; expert++) {
    if (!Number.isFinite(values[expert])) {
      throw new NonFiniteError(`the router's ${what} for expert ${expert} is ${values[expert]}`, { data: { expert } });
    }
  }
}

/** A layer's weights as f32, by the names under its prefix: `router`, `gate`, `shared.up` … */
export type MoeWeights = (name: string) => Float32Array;

/**
 * y = Σ w_i·E_i(x) + g·S(x) for each row, or Σ E_i(w_i·x) + g·S(x), added up in f32 in rank order, the shared expert last.
 * Input, the router's own and output [T, hidden]. `onRoute` learns each row's choice.
 */
export function moe(
  input: Float32Array,
  spec: MoeSpec,
  weights: MoeWeights,
  onRoute?: (t: number, route: Route) => void,
  routerInput: Float32Array = input,
): Float32Array {
  const { experts, zeroExperts = 0, shared, router, used } = spec;
  const choices = experts + zeroExperts;
  const hidden = weights('router').length / choices;
  const bias = router.selectionBias ? weights('selectionBias') : undefined;
  const scales = router.expertScale ? weights('expertScale') : undefined;
  const outputScale = spec.scaled === true ? weights('outputScale') : undefined;
  const output = new Float32Array(input.length);
  for (let t = 0; t < input.length / hidden; t++) {
    const x = input.subarray(t * hidden, (t + 1) * hidden);
    const y = output.subarray(t * hidden, (t + 1) * hidden);
    const logits = linear(
      routerInput.subarray(t * hidden, (t + 1) * hidden),
      matrixOf(weights('router'), 0, choices, hidden),
      router.bias ? weights('router.bias') : undefined,
    );
    const chosen = scaled(route(logits, bias, router, used), scales);
    onRoute?.(t, chosen);
    chosen.experts.forEach((expert, rank) => {
      const weight = chosen.weights[rank];
      const made = outputScale?.[expert] ?? 1;
      // Those beyond the last give the row as it is.
      if (expert >= experts) accumulate(y, x, weight);
      else if (router.weighsInput) accumulate(y, expertOutput(scale(x, weight), spec, weights, expert), made);
      else accumulate(y, expertOutput(x, spec, weights, expert), Math.fround(weight * made));
    });
    if (shared === undefined) continue;
    const sharedWeights: MoeWeights = (name) => weights(`shared.${name}`);
    const made = expertOutput(x, { inner: shared.inner, activation: spec.activation }, sharedWeights, 0);
    const own = shared.gated ? linear(x, matrixOf(weights('shared.router'), 0, 1, hidden))[0] : undefined;
    accumulate(y, made, own === undefined ? 1 : Math.fround(sigmoid(own)));
  }
  return output;
}

/** A choice whose weights are multiplied with each expert's own scale. */
function scaled({ experts, weights }: Route, scales: Float32Array | undefined): Route {
  return {
    experts,
    weights: scales === undefined ? weights : weights.map((weight, i) => weight * (scales[experts[i]] ?? 1)),
  };
}

/**
 * E_e(x) of one row: down · (act(gate · x) ⊙ up · x), with the expert's biases behind each product; both [hidden]. Of scaled
 * experts without the scale of the output.
 */
export function expertOutput(
  x: Float32Array,
  { inner, activation, biases, scaled }: Pick<MoeSpec, 'inner' | 'activation' | 'biases' | 'scaled'>,
  weights: MoeWeights,
  expert: number,
): Float32Array {
  const times = (input: Float32Array, part: ExpertPart, rows: number) =>
    linear(
      input,
      matrixOf(weights(part), expert, rows, input.length),
      biases ? weights(`${part}.bias`).subarray(expert * rows, (expert + 1) * rows) : undefined,
    );
  const made = times(x, 'gate', inner);
  const gate = scaled === true ? scale(made, weights('gateScale')[expert]) : made;
  return times(glu(gate, times(x, 'up', inner), activation), 'down', x.length);
}

/** One of a stack of matrices. */
function matrixOf(data: Float32Array, index: number, rows: number, columns: number): Matrix {
  return { data, offset: index * rows * columns, rows, columns };
}

function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x));
}

/** y += weight · made, rounded to f32 at each step. */
function accumulate(y: Float32Array, made: Float32Array, weight: number): void {
  for (let i = 0; i < y.length; i++) y[i] += weight * made[i];
}
