/** Law 7 on the CPU: what the plan says is what is allocated, and no second copy of a model is held, not even for a while. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { statSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Plan } from '../../src/plan/plan.ts';
import { familyFile } from '../support/families.ts';
import { BUNDLED, largeModel } from '../support/models.ts';

interface Growth {
  readonly planned: Plan['bytes'];
  readonly arenas: readonly number[];
  readonly held: number;
  readonly allocated: number;
  readonly peakGrowth: number;
  readonly arrayBufferGrowth: number;
}

test('the bundled model takes what its plan says, and its weights are there once', async () => {
  const path = largeModel(BUNDLED);
  assert.ok(path !== undefined);
  const program = fileURLToPath(new URL('../support/memory-growth.ts', import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [program, familyFile('glm4moe', 'model.gguf'), path], {
    timeout: 60_000,
  });
  const growth = JSON.parse(stdout) as Growth;
  const { planned } = growth;
  const sum = growth.arenas.reduce((total, bytes) => total + bytes, 0);
  assert.deepEqual([growth.allocated, growth.held, sum], [planned.total, planned.total, planned.total]);
  assert.equal(planned.weights + planned.cache + planned.buffers, planned.total);
  const fileBytes = statSync(path).size;
  assert.ok(planned.weights <= fileBytes, `${planned.weights} bytes of weights from a file of ${fileBytes}`);
  assert.ok(growth.peakGrowth > planned.weights, 'the measure sees the weights');
  // Beside the arenas: the tokenizer's metadata as read, the heap of two threads. Less than a second copy of the weights.
  const beside = growth.peakGrowth - planned.total;
  assert.ok(beside < planned.weights / 2, `${beside} bytes beside the planned ${planned.total}`);
  assert.ok(growth.arrayBufferGrowth < 4 * 2 ** 20, `${growth.arrayBufferGrowth} bytes of array buffers`);
});
