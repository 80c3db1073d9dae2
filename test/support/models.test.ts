/** Tests of a model that is not there are left out aloud, and in CI they fail. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import { BUNDLED, largeModel } from './models.ts';

const folder = mkdtempSync(join(tmpdir(), 'conclave-models-test-'));
after(() => rmSync(folder, { recursive: true, force: true }));

/** Runs two tests of `file` and one of another absent model, with CI on or off and `CONCLAVE_MODELS` naming `folder`. */
function runTests(file: string, ci: boolean): { readonly status: number | null; readonly output: string } {
  const script = join(folder, 'suite.mjs');
  writeFileSync(
    script,
    `import { modelTest } from ${JSON.stringify(new URL('./models.ts', import.meta.url).href)};
     modelTest(${JSON.stringify(file)}, 'first', async (path) => console.log('ran with ' + path));
     modelTest(${JSON.stringify(file)}, 'second', async () => {});
     modelTest('absent-b.gguf', 'third', async () => {});`,
  );
  const { NODE_TEST_CONTEXT: _, ...environment } = process.env;
  const env = { ...environment, CI: String(ci), CONCLAVE_MODELS: folder };
  const { status, stdout, stderr } = spawnSync(process.execPath, [script], { env, encoding: 'utf8' });
  return { status, output: stdout + stderr };
}

test('without a model its tests are left out, and one line says which', () => {
  const { status, output } = runTests('absent-a.gguf', false);
  assert.equal(status, 0, output);
  assert.equal(output.split('\n').filter((line) => line.includes('left out')).length, 1);
  assert.match(output, /left out.*2 of absent-a\.gguf, 1 of absent-b\.gguf/);
});

test('in CI each of them fails and says where the model was looked for', () => {
  const { status, output } = runTests('absent-a.gguf', true);
  assert.equal(status, 1);
  assert.match(output, /fail 3/);
  assert.ok(output.includes(`absent-a.gguf is in none of ${folder}`), output);
});

test('a model in the folder that CONCLAVE_MODELS names is found there', () => {
  writeFileSync(join(folder, 'present.gguf'), '');
  const { output } = runTests('present.gguf', false);
  assert.ok(output.includes(`ran with ${join(folder, 'present.gguf')}`), output);
});

test('the bundled model is found in the checkout', () => {
  assert.ok(largeModel(BUNDLED)?.endsWith(BUNDLED));
});
