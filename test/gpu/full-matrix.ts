/**
 * Both models of this project with every number of layers on the GPU and every kind of cache of experts: finite logits, and the
 * CPU's 64 greedy tokens or a first difference that is all but a tie. A program, not a test: on a software GPU it takes hours.
 *
 *   node test/gpu/full-matrix.ts [model file]
 *
 * Prints a line for each, and ends with 1 if one of them fails.
 */

import { parseArgs } from 'node:util';
import type { DeviceOptions } from '../support/device.ts';
import { checkGreedy, closeKept, expectedAnswer } from '../support/greedy.ts';
import { BUNDLED, largeModel, TWIN } from '../support/models.ts';
import { type ReferenceAnswer, referenceModels } from '../support/references.ts';

const TOKENS = 64;
/** Of either model. */
const LAYERS = 5;
const base: DeviceOptions = { context: 128, batch: 64 };

const caches: readonly DeviceOptions[] = [
  {},
  { cpuMoe: true },
  { cpuMoe: 2 },
  ...['slru', 'lfu', 'static'].flatMap((policy) =>
    ['1', '3', '25%', '50%', '95%'].map((size) => ({ expertCache: `${policy}:${size}` })),
  ),
];

const { positionals } = parseArgs({ allowPositionals: true });
let failed = 0;
for (const file of positionals.length > 0 ? positionals : [TWIN, BUNDLED]) {
  const path = largeModel(file);
  const known = referenceModels.find((model) => model.file === file);
  if (path === undefined || known === undefined) {
    console.error(`${file} is nowhere; CONCLAVE_MODELS names the folder of models`);
    process.exit(2);
  }
  const [{ ids }] = known.answers as [ReferenceAnswer];
  const expected = await expectedAnswer(path, base, { prompt: ids, count: TOKENS, gap: known.limit.gap });
  for (const gpuLayers of [...Array.from({ length: LAYERS }, (_, index) => index + 1), -1]) {
    for (const cache of caches) {
      // The bundled model's first layer has no experts to be split.
      if (file === BUNDLED && gpuLayers === 1 && Object.keys(cache).length > 0) continue;
      const what = `${file} -g ${gpuLayers} ${JSON.stringify(cache)}`;
      try {
        const said = await checkGreedy(path, { ...base, gpuLayers, ...cache }, { expected, count: TOKENS });
        console.log(`ok    ${what}${said === undefined ? '' : `: ${said}`}`);
      } catch (error) {
        failed++;
        console.log(`FAILS ${what}: ${(error as Error).message}`);
      }
    }
  }
}
await closeKept();
console.log(failed === 0 ? 'all are right' : `${failed} are not`);
process.exitCode = failed === 0 ? 0 : 1;
