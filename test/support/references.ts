/**
 * The recorded answers of the large models: greedy tokens of float32 arithmetic over the dequantised weights, and how
 * far each was ahead of the second best.
 */

import { readFileSync } from 'node:fs';

import type { ChatMessage } from '../../src/engine/types.ts';
import { BUNDLED, SAFETENSORS, SAFETENSORS_NVFP4, SMOLLM2, TWIN } from './models.ts';

export interface ReferenceAnswer {
  readonly messages: readonly ChatMessage[];
  /** The messages in the model's chat template. */
  readonly text: string;
  /** [prompt tokens] */
  readonly ids: readonly number[];
  /** [steps] */
  readonly greedy: readonly number[];
  /** [steps] Logit of the best minus logit of the second best. */
  readonly gap: readonly number[];
  readonly answer: string;
}

/** How often and how far another engine's int8 path parts from these answers: nobody may do worse. */
export interface PartingLimit {
  readonly count: number;
  readonly gap: number;
}

export interface ReferenceModel {
  readonly file: string;
  readonly answers: readonly ReferenceAnswer[];
  readonly limit: PartingLimit;
}

function read(name: string): readonly ReferenceAnswer[] {
  const path = new URL(`../fixtures/references/${name}.reference.json`, import.meta.url);
  return JSON.parse(readFileSync(path, 'utf8')) as ReferenceAnswer[];
}

export const referenceModels: readonly ReferenceModel[] = [
  { file: BUNDLED, answers: read('lexicon-glm4moe-Q4_K_M'), limit: { count: 3, gap: 0.46 } },
  { file: TWIN, answers: read('lexicon-qwen3moe-Q4_K_M'), limit: { count: 4, gap: 0.46 } },
  { file: SMOLLM2, answers: read('SmolLM2-135M-Instruct-Q4_1'), limit: { count: 11, gap: 0.46 } },
];

/** Models from safetensors folders: the bundled one before it was quantised, and in NVFP4. */
export const folderModels: readonly ReferenceModel[] = [
  // Weights of BF16 take activations as they are: nothing is rounded.
  { file: SAFETENSORS, answers: read('lexicon-glm4moe'), limit: { count: 0, gap: 0 } },
  // No other engine's path over the same file is recorded: it is held to half of the others.
  { file: SAFETENSORS_NVFP4, answers: read('lexicon-glm4moe-NVFP4'), limit: { count: 2, gap: 0.25 } },
];
