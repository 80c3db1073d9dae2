/** How far CPU kernels may lie from the reference, with the reasons. */

import type { Tolerance } from '../../kernel.ts';

export const f32Tolerance: Tolerance = { relativeRms: 1e-6, reason: 'f32 sums in several lanes where the reference has f64 sums' };
export const f16Tolerance: Tolerance = { relativeRms: 2e-3, reason: 'keys and values are kept as f16' };
export const int8Tolerance: Tolerance = { relativeRms: 1e-2, reason: 'activations are int8 with one scale for 32 values' };
