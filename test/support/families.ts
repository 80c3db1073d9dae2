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
] as const;

/** @param file `model.gguf` or `expected.safetensors` */
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
