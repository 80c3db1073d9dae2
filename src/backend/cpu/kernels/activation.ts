/** How gate and up become one, by the model's activation. */

import type { Demand } from '../../../model/demands.ts';
import type { Activation } from '../../../model/spec.ts';
import type { KernelCall, Kernels } from '../task.ts';

/** Activations beyond SiLU that {@link gluOf} knows. */
export const servedActivations: readonly Demand[] = ['GELU', 'clamped SwiGLU'];

/** Gate and up of `count` f32 at two addresses become the output, which may be where the gate is. */
export type Glu = (gate: number, up: number, output: number, count: number) => void;

export function gluOf(kernels: Kernels, activation: Activation): Glu {
  if (typeof activation === 'object') {
    const { alpha, limit } = activation;
    const clampedSwiglu = kernels.clampedSwiglu as KernelCall;
    return (gate, up, output, count) => void clampedSwiglu(gate, up, output, count, alpha, limit);
  }
  const names: Readonly<Record<typeof activation, string>> = { silu: 'siluMul', geluTanh: 'geluMul' };
  return kernels[names[activation]] as KernelCall;
}
