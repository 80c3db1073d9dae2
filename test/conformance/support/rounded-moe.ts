/**
 * The reference's mixture of experts over activations that are rounded to integers wherever a kernel rounds them. What is
 * left between it and the kernel is the order of f32 sums, and a value here and there that was half way between two codes.
 */

import type { Encoding } from '../../../src/backend/cpu/formats.ts';
import { route } from '../../../src/backend/reference/moe.ts';
import { glu, linear } from '../../../src/backend/reference/operations.ts';
import type { MoeSpec } from '../../../src/model/spec.ts';
import { roundHalfEven } from '../../../src/quant/scalars.ts';

/**
 * Blocks of 32 with one scale each: the largest magnitude becomes ±127. Of 16 bits there are 254ths of that unit beside the
 * nearest whole number.
 */
export function rounded(values: Float32Array, encoding: Encoding): Float32Array {
  if (encoding === 'f32') return values;
  const result = new Float32Array(values.length);
  for (let at = 0; at < values.length; at += 32) {
    const block = values.subarray(at, at + 32);
    const top = block.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    const inverse = top === 0 ? 0 : Math.fround(127 / top);
    block.forEach((x, i) => {
      const scaled = Math.fround(x * inverse);
      const whole = roundHalfEven(scaled);
      const rest = encoding === 'int8' ? 0 : roundHalfEven(Math.fround((scaled - whole) * 254)) / 254;
      result[at + i] = (whole + rest) * (top / 127);
    });
  }
  return result;
}

/**
 * @param input [T, hidden]
 * @param weights by part (`gate`, `shared.up` …), decoded
 * @param encoding what a part's activations are rounded to
 */
export function roundedMoe(
  input: Float32Array,
  moe: MoeSpec,
  weights: (part: string) => Float32Array,
  encoding: (part: string) => Encoding,
  routerInput: Float32Array = input,
): Float32Array {
  const { experts, zeroExperts = 0, shared, router, used } = moe;
  const choices = experts + zeroExperts;
  const hidden = weights('router').length / choices;
  const times = (x: Float32Array, part: string, rows: number) =>
    product(x, { weights, encoding, part, rows, index: 0 });
  const expertOf = (x: Float32Array, prefix: string, expert: number, of: RoundedExpert, factor = 1) =>
    roundedExpert(x, of, { weights, encoding, prefix, expert, factor });
  const output = new Float32Array(input.length);
  for (let t = 0; t < input.length / hidden; t++) {
    const x = input.subarray(t * hidden, (t + 1) * hidden);
    const y = output.subarray(t * hidden, (t + 1) * hidden);
    const add = (made: Float32Array, weight: number) => {
      for (let i = 0; i < hidden; i++) y[i] += weight * (made[i] as number);
    };
    const bias = router.selectionBias ? weights('selectionBias') : undefined;
    const logits = times(routerInput.subarray(t * hidden, (t + 1) * hidden), 'router', choices);
    if (router.bias) for (const [expert, own] of weights('router.bias').entries()) logits[expert] += own;
    const chosen = route(logits, bias, router, used);
    chosen.experts.forEach((expert, rank) => {
      const scale = router.expertScale ? (weights('expertScale')[expert] ?? 1) : 1;
      const weight = (chosen.weights[rank] as number) * scale;
      const made = moe.scaled ? (weights('outputScale')[expert] ?? 1) : 1;
      if (expert >= experts) add(x, weight);
      else if (router.weighsInput) add(expertOf(x, '', expert, moe, weight), made);
      else add(expertOf(x, '', expert, moe), made === 1 ? weight : Math.fround(weight * made));
    });
    if (shared === undefined) continue;
    const gate = shared.gated ? 1 / (1 + Math.exp(-(times(x, 'shared.router', 1)[0] as number))) : 1;
    add(expertOf(x, 'shared.', 0, { inner: shared.inner, activation: moe.activation }), Math.fround(gate));
  }
  return output;
}

interface Rounding {
  /** By part (`gate`, `shared.up` …), decoded. */
  readonly weights: (part: string) => Float32Array;
  /** What a part's activations are rounded to. */
  readonly encoding: (part: string) => Encoding;
}

type RoundedExpert = Pick<MoeSpec, 'inner' | 'activation' | 'biases' | 'scaled'>;

/**
 * E_e(x) of one row, of the experts whose parts' names begin with `prefix`.
 * @param factor what gate's and up's products are multiplied with before their biases are added
 */
export function roundedExpert(
  x: Float32Array,
  { inner, activation, biases, scaled }: RoundedExpert,
  {
    prefix,
    expert,
    factor = 1,
    ...by
  }: Rounding & { readonly prefix: string; readonly expert: number; readonly factor?: number },
): Float32Array {
  const times = (input: Float32Array, name: string, rows: number, scale: number) => {
    const part = `${prefix}${name}`;
    const made = product(input, { ...by, part, rows, index: expert });
    const bias = biases ? by.weights(`${part}.bias`) : undefined;
    return made.map((value, row) => value * scale + (bias?.[expert * rows + row] ?? 0));
  };
  const own = scaled ? (by.weights('gateScale')[expert] as number) : 1;
  const gated = glu(times(x, 'gate', inner, factor * own), times(x, 'up', inner, factor), activation);
  return times(gated, 'down', x.length, 1);
}

function product(
  x: Float32Array,
  {
    weights,
    encoding,
    part,
    rows,
    index,
  }: Rounding & { readonly part: string; readonly rows: number; readonly index: number },
): Float32Array {
  const columns = x.length;
  return linear(rounded(x, encoding(part)), { data: weights(part), offset: index * rows * columns, rows, columns });
}
