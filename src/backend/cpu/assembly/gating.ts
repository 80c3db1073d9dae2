// How two values become one, element by element: gate and up of a feed-forward block, attention and its gate; and caps.

import { sigmoid } from './activations';
import { exp1, exp4, silu4 } from './lanes';

/** output = silu(gate) ⊙ up, `count` f32; `output` may be `gate`. */
export function siluMul(gate: usize, up: usize, output: usize, count: i32): void {
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const at = <usize>i << 2;
    v128.store(output + at, f32x4.mul(silu4(v128.load(gate + at)), v128.load(up + at)));
  }
  for (; i < count; i++) {
    const at = <usize>i << 2;
    const g = f32x4.splat(f32.load(gate + at));
    f32.store(output + at, f32x4.extract_lane(silu4(g), 0) * f32.load(up + at));
  }
}

/** GELU by its tanh, which is x·σ(2u), u = √(2/π)·(x + 0.044715·x³). */
// @ts-ignore: decorator
@inline
function gelu4(x: v128): v128 {
  const cubed = f32x4.mul(f32x4.mul(x, x), f32x4.mul(x, f32x4.splat(0.044715)));
  // -2·√(2/π)
  const power = f32x4.mul(f32x4.add(x, cubed), f32x4.splat(-1.5957691216057308));
  return f32x4.div(x, f32x4.add(f32x4.splat(1.0), exp4(power)));
}

/** output = gelu(gate) ⊙ up, `count` f32; `output` may be `gate`. */
export function geluMul(gate: usize, up: usize, output: usize, count: i32): void {
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const at = <usize>i << 2;
    v128.store(output + at, f32x4.mul(gelu4(v128.load(gate + at)), v128.load(up + at)));
  }
  for (; i < count; i++) {
    const at = <usize>i << 2;
    const g = f32x4.splat(f32.load(gate + at));
    f32.store(output + at, f32x4.extract_lane(gelu4(g), 0) * f32.load(up + at));
  }
}

/** g·σ(alpha·g)·(u + 1), g no more than `limit` and u within ±`limit`. */
// @ts-ignore: decorator
@inline
function clampedSwiglu4(gate: v128, up: v128, alpha: v128, limit: v128): v128 {
  const g = f32x4.min(gate, limit);
  const u = f32x4.max(f32x4.min(up, limit), f32x4.neg(limit));
  const sigma = f32x4.add(f32x4.splat(1.0), exp4(f32x4.neg(f32x4.mul(alpha, g))));
  return f32x4.mul(f32x4.div(g, sigma), f32x4.add(u, f32x4.splat(1.0)));
}

/** output = {@link clampedSwiglu4} of gate and up, `count` f32; `output` may be `gate`. */
export function clampedSwiglu(gate: usize, up: usize, output: usize, count: i32, alpha: f32, limit: f32): void {
  const alphas = f32x4.splat(alpha);
  const limits = f32x4.splat(limit);
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const at = <usize>i << 2;
    v128.store(output + at, clampedSwiglu4(v128.load(gate + at), v128.load(up + at), alphas, limits));
  }
  for (; i < count; i++) {
    const at = <usize>i << 2;
    const made = clampedSwiglu4(
      f32x4.splat(f32.load(gate + at)), f32x4.splat(f32.load(up + at)), alphas, limits,
    );
    f32.store(output + at, f32x4.extract_lane(made, 0));
  }
}

/** ln(1 + eˣ): ln(1 + y), y = e^-|x| of 0…1, is 2·artanh(y / (2 + y)), whose series at 1/3 and below is short. */
function softplus(x: f32): f32 {
  const y = <f64>exp1(-abs<f32>(x));
  const s = y / (2 + y);
  const square = s * s;
  let sum: f64 = 0;
  for (let power = 17; power >= 1; power -= 2) sum = sum * square + 1 / <f64>power;
  // A NaN is neither larger nor smaller than 0, and is in y.
  return <f32>(2 * s * sum) + (x > 0 ? x : 0);
}

/** output = input ⊙ act(gates): each of `count` gates for the next `share` f32; the activation is σ or, `plus`, softplus. */
export function gate(input: usize, gates: usize, output: usize, count: i32, share: i32, plus: i32): void {
  for (let index = 0; index < count; index++) {
    const x = f32.load(gates + (<usize>index << 2));
    scale(input, output, plus ? softplus(x) : sigmoid(x), share);
    input += <usize>share << 2;
    output += <usize>share << 2;
  }
}

/** output = factor · input, `count` f32; `output` may be `input`. */
export function scale(input: usize, output: usize, factor: f32, count: i32): void {
  const factors = f32x4.splat(factor);
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const at = <usize>i << 2;
    v128.store(output + at, f32x4.mul(v128.load(input + at), factors));
  }
  for (; i < count; i++) {
    const at = <usize>i << 2;
    f32.store(output + at, f32.load(input + at) * factor);
  }
}

/**
 * tanh(x) within 2 ulp: near 0 an odd polynomial (of Cephes), because 1 - 2 / (e²ˣ + 1) loses there what it subtracts.
 */
// @ts-ignore: decorator
@inline
function tanh4(x: v128): v128 {
  const size = f32x4.abs(x);
  const square = f32x4.mul(x, x);
  let p = f32x4.splat(-5.70498872745e-3);
  p = f32x4.add(f32x4.mul(p, square), f32x4.splat(2.06390887954e-2));
  p = f32x4.add(f32x4.mul(p, square), f32x4.splat(-5.37397155531e-2));
  p = f32x4.add(f32x4.mul(p, square), f32x4.splat(1.33314422036e-1));
  p = f32x4.add(f32x4.mul(p, square), f32x4.splat(-3.33332819422e-1));
  const near = f32x4.add(f32x4.mul(f32x4.mul(p, square), x), x);
  const power = exp4(f32x4.add(size, size));
  const far = f32x4.sub(f32x4.splat(1.0), f32x4.div(f32x4.splat(2.0), f32x4.add(power, f32x4.splat(1.0))));
  const signed = v128.bitselect(x, far, i32x4.splat(0x80000000));
  return v128.bitselect(signed, near, f32x4.gt(size, f32x4.splat(0.625)));
}

/** In place: cap · tanh(x / cap), `count` f32 rounded up to four. */
export function softcap(values: usize, count: i32, cap: f32): void {
  const caps = f32x4.splat(cap);
  const inverse = f32x4.splat(1 / cap);
  for (let i = 0; i < count; i += 4) {
    const at = values + (<usize>i << 2);
    v128.store(at, f32x4.mul(caps, tanh4(f32x4.mul(v128.load(at), inverse))));
  }
}
