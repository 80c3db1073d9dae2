/** The loop by itself, over a port of the test's own: what it does while a run is on its way. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FakeExecutable } from '../../test/support/fake-executable.ts';
import { fakePlan, VOCABULARY } from '../../test/support/fake-model.ts';
import { SAMPLING } from '../../test/support/scheduler-bench.ts';
import type { Backend } from '../backend/backend.ts';
import { DisposedError } from '../errors.ts';
import { runEngine } from './loop.ts';
import type { Command, EngineEvent, PrepareCommand } from './protocol.ts';

test('to be disposed of is heard while a run is awaited, which is given up', async () => {
  const { plan, spec, graph } = fakePlan();
  const started = Promise.withResolvers<void>();
  const given = Promise.withResolvers<never>();
  class Slow extends FakeExecutable {
    override run(): Promise<never> {
      started.resolve();
      return given.promise;
    }
    abandon(): void {
      given.reject(new DisposedError('the device'));
    }
  }
  const executable = new Slow({ pages: plan.cache.pages, vocabulary: VOCABULARY });
  const backend: Backend = { device: 'reference', rows: [], prepare: async () => executable };
  const events: EngineEvent[] = [];
  let send: (message: Command | PrepareCommand) => void = () => {};
  const running = runEngine(
    {
      data: { devices: [], threads: 1 },
      postMessage: (event) => events.push(event as EngineEvent),
      onMessage: (listener) => {
        send = listener;
      },
    },
    async () => backend,
  );
  send({ type: 'prepare', plan, spec, graph, weights: [], sources: [] });
  send({
    type: 'generate',
    request: 1,
    session: 1,
    prompt: Int32Array.of(1, 2, 3),
    keep: 0,
    sampler: SAMPLING,
    maxTokens: 5,
    endTokens: [],
  });
  await started.promise;
  send({ type: 'dispose' });
  await running;
  assert.deepEqual(
    events.map(({ type }) => type),
    ['ready', 'failed', 'disposed'],
  );
  assert.equal(executable.disposed, true);
});
