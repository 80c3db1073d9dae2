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

/** Tiny models in quantised safetensors layouts, as those of the families in all else. */
export const checkpoints = [
  'qwen3moe-fp8-block',
  'qwen3moe-fp8-channel',
  'qwen3moe-mxfp4',
  'qwen3moe-nvfp4-modelopt',
  'qwen2moe-nvfp4-mixed',
] as const;

/** @param file `model.safetensors` or `expected.safetensors` */
export function checkpointFile(checkpoint: string, file: string): string {
  return fileURLToPath(new URL(`../fixtures/checkpoints/${checkpoint}/${file}`, import.meta.url));
}
