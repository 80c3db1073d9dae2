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
] as const;

/** @param file `model.gguf`, `model.safetensors` (its config.json is beside it) or `expected.safetensors` */
export function familyFile(family: string, file: string): string {
  return fileURLToPath(new URL(`../fixtures/families/${family}/${file}`, import.meta.url));
}
