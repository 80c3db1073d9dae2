/** The tiny random models of test/fixtures/families, with official outputs beside each. */

import { fileURLToPath } from 'node:url';

export const families = [
  'llama',
  'llama3-rope',
  'llama-yarn',
  'mixtral',
  'qwen2',
  'qwen3',
  'qwen2moe',
  'qwen3moe',
  'olmoe',
  'glm4moe',
  'gpt-oss',
  'gemma3',
  'gemma4-moe',
  'llama4',
  'laguna',
  'dots1',
  'ernie4_5-moe',
  'minimax-m2',
  'granitemoe',
  'deepseek2',
  'deepseek3',
  'glm4moe-lite',
] as const;

/** Of these, those that are read from safetensors, too: the same weights are beside the GGUF, with their `config.json`. */
export const familiesInFolders: readonly string[] = [
  ...families.slice(0, families.indexOf('glm4moe') + 1),
  'gpt-oss',
  'dots1',
  'ernie4_5-moe',
  'minimax-m2',
  'granitemoe',
];

/** The files that hold a family's model. */
export function filesOf(family: string): readonly string[] {
  return familiesInFolders.includes(family) ? ['model.gguf', 'model.safetensors'] : ['model.gguf'];
}

/** @param file `model.gguf`, `model.safetensors` (its config.json is beside it) or `expected.safetensors` */
export function familyFile(family: string, file: string): string {
  return fileURLToPath(new URL(`../fixtures/families/${family}/${file}`, import.meta.url));
}

/**
 * How many times farther from the official logits a family's may be than others': Gemma 4 does not divide scores by the root
 * of a head's width, which is up to 64 here, so what a key is off counts eight times as much. (Sums in f64 are as far off.)
 */
export function slackOf(family: string): number {
  return family === 'gemma4-moe' ? 8 : 1;
}

/** Tiny models in quantised safetensors layouts, as those of the families in all else. */
export const checkpoints = [
  'qwen3moe-fp8-block',
  'qwen3moe-fp8-channel',
  'qwen3moe-mxfp4',
  'qwen3moe-nvfp4-modelopt',
  'qwen2moe-nvfp4-mixed',
  'gpt-oss-mxfp4',
] as const;

/** @param file `model.safetensors` or `expected.safetensors` */
export function checkpointFile(checkpoint: string, file: string): string {
  return fileURLToPath(new URL(`../fixtures/checkpoints/${checkpoint}/${file}`, import.meta.url));
}

/**
 * Relative RMS of a checkpoint's logits where experts' activations are int8. Each expert of gpt-oss multiplies with up + 1: what a
 * gate loses comes through whole, where others have it times an up that is small.
 */
export function int8RmsOf(checkpoint: string): number {
  return checkpoint.startsWith('gpt-oss') ? 1.75e-2 : 1.25e-2;
}
