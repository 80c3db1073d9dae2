/** A sampler's settings with every filter and penalty off: what tests of single ones start from. */

import type { SamplerSettings } from '../../src/backend/sampling.ts';

export const off: SamplerSettings = {
  temperature: 1,
  topK: 0,
  topP: 1,
  minP: 0,
  repeatPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  penaltyWindow: 64,
  logitBias: [],
  seed: 1,
};
