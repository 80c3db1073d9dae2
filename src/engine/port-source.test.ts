/** What the engine's worker knows of the model's files, as the main side sent it. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fakePlan } from '../../test/support/fake-model.ts';
import type { ByteSource } from '../format/source.ts';
import { memorySource } from '../format/source.ts';
import type { PlatformWorker } from '../platform/platform.ts';
import { EngineClient } from './engine-client.ts';
import { PortSources } from './port-source.ts';
import type { PrepareCommand } from './protocol.ts';

test('what a source says of itself is known in the worker: its name, its size, where it repeats and where it lies', async () => {
  const repeating: ByteSource = {
    ...memorySource(new Uint8Array(100), 'made'),
    repeats: [{ offset: 20, bytes: 64, period: 16 }],
    fileAddress: { path: '/made', size: 100, modifiedNs: 2n ** 60n + 1n, device: 3n, inode: 4n },
    verify: async () => {},
  };
  const posted: unknown[] = [];
  let answer: (message: unknown) => void = () => {};
  const worker: PlatformWorker = {
    postMessage(message) {
      posted.push(structuredClone(message));
      answer({ type: 'ready', bytes: 0 });
    },
    onMessage: (handler) => {
      answer = handler;
    },
    onError() {},
    async terminate() {},
    ref() {},
    unref() {},
  };
  await EngineClient.start({
    ...fakePlan(),
    booted: { worker },
    weights: new Map(),
    sources: [repeating, memorySource(new Uint8Array(7), 'plain')],
  });
  const { sources } = posted[0] as PrepareCommand;
  const seen = sources.map((facts, index) => new PortSources(() => {}).source(index, facts));
  assert.deepEqual(
    seen.map(({ name, size, repeats, fileAddress }) => ({ name, size, repeats, fileAddress })),
    [
      { name: 'made', size: 100, repeats: repeating.repeats, fileAddress: repeating.fileAddress },
      { name: 'plain', size: 7, repeats: undefined, fileAddress: undefined },
    ],
  );
  // Reads that go over the port fill no memory but shared one.
  assert.deepEqual(
    seen.map(({ verify }) => verify),
    [undefined, undefined],
  );
});
