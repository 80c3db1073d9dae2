/**
 * Where the tests find models that are too large for test/fixtures. Without one its tests are left out and the run says
 * so in one line; in CI a missing model is a failure.
 */

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const models = fileURLToPath(new URL('../../models/', import.meta.url));

/** The bundled model: always there. */
export const BUNDLED = 'lexicon-glm4moe-Q4_K_M.gguf';
/** The bundled model's twin in another family. */
export const TWIN = 'lexicon-qwen3moe-Q4_K_M.gguf';
/** The bundled model as it was trained: a folder of BF16 safetensors. */
export const SAFETENSORS = 'lexicon-glm4moe';
/** The same with its routed experts in NVFP4, gate and up each with a scale of its own. */
export const SAFETENSORS_NVFP4 = 'lexicon-glm4moe-NVFP4';
/** A public dense model, which `npm run models` brings. */
export const SMOLLM2 = 'SmolLM2-135M-Instruct.Q4_1.gguf';

function folders(): readonly string[] {
  const asked = process.env.CONCLAVE_MODELS;
  return [...(asked ? [asked] : []), models, join(models, 'downloaded')];
}

/** The path of a model's file or folder, from the folder that CONCLAVE_MODELS names, models/ or models/downloaded/. */
export function largeModel(file: string): string | undefined {
  return folders()
    .map((folder) => join(folder, file))
    .find((path) => existsSync(path));
}

const leftOut = new Map<string, number>();

/**
 * A test that needs a large model. Without the model it is left out, or in CI fails.
 * @param file the name of the model's file or folder, as {@link largeModel} takes it
 */
export function modelTest(file: string, title: string, body: (path: string) => Promise<void>): void {
  const path = largeModel(file);
  if (path !== undefined) {
    test(title, () => body(path));
  } else if (process.env.CI === 'true') {
    test(title, () =>
      assert.fail(`${file} is in none of ${folders().join(', ')}, and in CI every model must be there`),
    );
  } else {
    if (leftOut.size === 0) process.once('exit', report);
    leftOut.set(file, (leftOut.get(file) ?? 0) + 1);
  }
}

function report(): void {
  const list = [...leftOut].map(([file, count]) => `${count} of ${file}`).join(', ');
  console.log(
    `left out, for want of models (CONCLAVE_MODELS names their folder, \`npm run models\` brings SmolLM2): ${list}`,
  );
}
