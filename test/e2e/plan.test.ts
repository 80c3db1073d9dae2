/** How long a context a plan gives, and what it says where the memory does not hold what was asked for. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { OutOfMemoryError, type PlanOptions, planModel } from '../../src/index.ts';

const bundled = fileURLToPath(new URL('../../models/lexicon-glm4moe-Q4_K_M.gguf', import.meta.url));
/** The trained length of the bundled model, in tokens. */
const TRAINED = 2048;

const planned = async (options: PlanOptions) => (await planModel(bundled, { threads: 2, ...options })).plan;

test('a context is the trained length, or what was asked for, and the plan says which', async () => {
  const whole = await planned({});
  assert.deepEqual([whole.context, whole.contextReason], [TRAINED, 'the length the model was trained with']);
  const asked = await planned({ context: 100 });
  assert.deepEqual([asked.context, asked.contextReason], [100, 'as asked for']);
  const beyond = await planned({ context: TRAINED + 1 });
  assert.deepEqual(
    [beyond.context, beyond.contextReason],
    [TRAINED + 1, 'as asked for, beyond the 2,048 it was trained with'],
  );
});

test('a default context shrinks to what the memory holds; one that was asked for does not', async () => {
  const whole = await planned({});
  const memoryBytes = whole.bytes.total - 1;
  const smaller = await planned({ memoryBytes });
  assert.ok(smaller.context < TRAINED && smaller.bytes.total <= memoryBytes);
  assert.match(smaller.contextReason, /^what fits in 4\d(\.\d)? MB$/);
  await assert.rejects(planned({ memoryBytes, context: TRAINED }), OutOfMemoryError);
});

test('a model that does not fit says what it needs, in units for a person and in bytes for a program', async () => {
  await assert.rejects(planned({ memoryBytes: 10_000_000 }), (error: unknown) => {
    assert.ok(error instanceof OutOfMemoryError);
    assert.match(
      error.message,
      /^the model does not fit: 21\.\d MB of weights, .* make 3\d\.\d MB, and 10 MB may be used;/,
    );
    const { needed, available, context } = error.data as Record<string, number>;
    assert.ok((needed as number) > 30e6 && (needed as number) < 40e6);
    assert.deepEqual([available, context], [10_000_000, 512]);
    return true;
  });
});
