/** WGSL of what values go through element by element: how gate and up become one, gates, and soft caps. */

import type { Demand } from '../../../model/demands.ts';
import type { Activation, GateActivation } from '../../../model/spec.ts';
import { sigmoidCode } from './moe-layer.ts';
import { f32Literal } from './snippets.ts';

/** Activations beyond SiLU that {@link gluCode} knows. */
export const servedActivations: readonly Demand[] = ['GELU', 'clamped SwiGLU'];

/** `fn glu(gate: f32, up: f32) -> f32`, beside `sigmoid` and `silu`. */
export function gluCode(activation: Activation): string {
  return `${sigmoidCode}fn glu(gate: f32, up: f32) -> f32 { ${gluBody(activation)} }\n`;
}

function gluBody(activation: Activation): string {
  if (activation === 'silu') return 'return silu(gate) * up;';
  if (activation === 'geluTanh') {
    // x·(1 + tanh(u)) / 2 is x·σ(2u); 1.5957… is 2·√(2/π).
    return 'return gate * sigmoid(1.5957691f * fma(0.044715f * gate * gate, gate, gate)) * up;';
  }
  const { alpha, limit } = activation;
  const most = f32Literal(limit);
  // What is not finite stays so: a clamp may make a number of a NaN. Seen by bits, which no compiler folds away.
  return `let held = min(gate, ${most});
  let made = held * sigmoid(${f32Literal(alpha)} * held) * (clamp(up, -${most}, ${most}) + 1.0f);
  let lost = (bitcast<u32>(gate) & 0x7f800000u) == 0x7f800000u || (bitcast<u32>(up) & 0x7f800000u) == 0x7f800000u;
  return bitcast<f32>(select(bitcast<u32>(made), 0x7fc00000u, lost));`;
}

/** `fn act(x: f32) -> f32` of a gate, beside `sigmoid`. */
export function gateCode(activation: GateActivation): string {
  if (activation === 'sigmoid') return `${sigmoidCode}fn act(x: f32) -> f32 { return sigmoid(x); }\n`;
  // ln(1 + y), y = e^-|x|, is 2·artanh(y / (2 + y)): the logarithm of WGSL has no digits left where y is small.
  const terms = [15, 13, 11, 9, 7, 5, 3].reduce(
    (sum, power) => `fma(${sum}, square, ${f32Literal(1 / power)})`,
    `${f32Literal(1 / 17)}`,
  );
  return `fn act(x: f32) -> f32 {
  let y = exp(-abs(x));
  let s = y / (2f + y);
  let square = s * s;
  return max(x, 0f) + 2f * s * fma(${terms}, square, 1f);
}
`;
}

/**
 * `fn capped(x: f32) -> f32`: cap · tanh(x / cap). Near 0 an odd polynomial (of Cephes), because the tanh of WGSL may lose
 * there what it subtracts. A NaN stays one: it is in every product.
 */
export function softcapCode(cap: number): string {
  const polynomial = [2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1].reduce(
    (sum, coefficient) => `fma(${sum}, square, ${f32Literal(coefficient)})`,
    f32Literal(-5.70498872745e-3),
  );
  return `fn capped(value: f32) -> f32 {
  let x = value / ${f32Literal(cap)};
  let square = x * x;
  let near = fma(${polynomial} * square, x, x);
  let far = sign(x) * (1f - 2f / (exp(2f * abs(x)) + 1f));
  return ${f32Literal(cap)} * select(near, far, abs(x) > 0.625f);
}
`;
}
