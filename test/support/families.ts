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
  'dots1',
  'ernie4_5-moe',
  'minimax-m2',
  'granitemoe',
  'deepseek2',
  'deepseek3',
  'glm4moe-lite',
] as const;

/** @param file `model.gguf` or `expected.safetensors` */
export function familyFile(family: string, file: string): string {
  return fileURLToPath(new URL(`../fixtures/families/${family}/${file}`, import.meta.url));
}
