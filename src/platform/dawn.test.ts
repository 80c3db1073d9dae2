/** Which of a machine's adapters Dawn is made to open, and what is said of those that it cannot. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Refusal } from '../errors.ts';
import { adapterFlags, readAdapters } from './dawn.ts';

/** As Dawn says it, with every interface of its own for the same cards. */
const said = `no suitable backends found
Available adapters:
 * backend: 'vulkan', name: 'NVIDIA A10'
 * backend: 'vulkan', name: 'NVIDIA A100'
 * backend: 'vulkan', name: 'NVIDIA A100'
 * backend: 'vulkan', name: 'Intel(R) Graphics (it's new)'
 * backend: 'opengles', name: 'NVIDIA A10'`;

test('adapters are numbered in the order of the driver, each card once', () => {
  assert.deepEqual(
    readAdapters(said).map(({ name }) => name),
    ['NVIDIA A10', 'NVIDIA A100', 'NVIDIA A100', "Intel(R) Graphics (it's new)"],
  );
  assert.deepEqual(readAdapters("* backend: 'opengles', name: 'only one'"), [
    { backend: 'opengles', name: 'only one' },
  ]);
  assert.deepEqual(readAdapters('something else went wrong'), []);
});

test('a number becomes the interface and the name', () => {
  const adapters = readAdapters(said);
  assert.deepEqual(adapterFlags(adapters, 1), ['backend=vulkan', 'adapter=NVIDIA A100']);
  assert.deepEqual(adapterFlags(adapters, 3), ['backend=vulkan', "adapter=Intel(R) Graphics (it's new)"]);
});

test('an adapter whose name an earlier one answers to cannot be had', () => {
  const adapters = readAdapters(said);
  const refused = (number: number, message: RegExp, of = adapters) =>
    assert.throws(
      () => adapterFlags(of, number),
      (error) => error instanceof Refusal && message.test(error.message),
    );
  refused(2, /gpu:2 \(NVIDIA A100\) cannot be told from gpu:1 .* by name only; .*--device gpu/);
  // A part of an earlier name, too.
  refused(1, /gpu:1 \(NVIDIA A10\) cannot be told from gpu:0 \(NVIDIA A100\)/, [
    { backend: 'vulkan', name: 'NVIDIA A100' },
    { backend: 'vulkan', name: 'NVIDIA A10' },
  ]);
});

test('a number that there is not is refused with those that there are', () => {
  assert.throws(
    () => adapterFlags(readAdapters(said), 4),
    /gpu:4 was asked for, and this machine has gpu:0 NVIDIA A10, gpu:1 NVIDIA A100, .*; choose one of these/,
  );
  assert.throws(() => adapterFlags([], 0), /gpu:0 was asked for, and no GPU was found: .*--device cpu/);
});
