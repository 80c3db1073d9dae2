/** How far CPU kernels may lie from the reference, with the reasons. */

import type { Tolerance } from '../../kernel.ts';
import type { Encoding } from '../formats.ts';

export const f32Tolerance: Tolerance = {
  relativeRms: 1e-6,
  reason: 'f32 sums in several lanes where the reference has f64 sums',
};
export const f16Tolerance: Tolerance = { relativeRms: 2e-3, reason: 'keys and values are kept as f16' };
export const int8Tolerance: Tolerance = {
  relativeRms: 1e-2,
  reason: 'activations are int8 with one scale for 32 values',
};

const int16Tolerance: Tolerance = { relativeRms: 1e-4, reason: 'activations are 16-bit with one scale for 32 values' };

/** Of products, by what their activations are encoded as. */
export const encodingTolerances: Readonly<Record<Encoding, Tolerance>> = {
  f32: f32Tolerance,
  int8: int8Tolerance,
  digits: int16Tolerance,
  words: int16Tolerance,
};
