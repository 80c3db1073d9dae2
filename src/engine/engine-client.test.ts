import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { fakeModel, SAFE } from '../../test/support/fake-model.ts';
import { InternalError, Refusal, SourceError } from '../errors.ts';
import { memorySource } from '../format/source.ts';
import type { PlatformWorker } from '../platform/platform.ts';
import type { Session } from './types.ts';

async function run(session: Session, tokens: readonly number[]): Promise<string> {
  for await (const part of session.generate({ tokens }, { ...SAFE, temperature: 0, maxTokens: 10 })) {
    if (part.type === 'finish') return part.text;
  }
  throw new Error('no finish');
}

test('sources reach the worker, into shared memory and into its own', async () => {
  // More than a piece, so that the parts must be put together.
  const bytes = Uint8Array.from({ length: 20 * 2 ** 20 + 7 }, (_, i) => (i * 31) ^ (i >> 11));
  const seen: number[] = [];
  const model = await fakeModel({
    sources: [memorySource(bytes), memorySource(bytes.subarray(5, 9))],
    onProgress: ({ bytesDone }) => seen.push(bytesDone),
  });
  assert.deepEqual(seen, [bytes.length, 4]);
  await model.dispose();
});

test('a source that cannot be read is that error here', async () => {
  const broken = {
    ...memorySource(new Uint8Array(10)),
    readInto: () => Promise.reject(new SourceError('the disk is gone')),
  };
  await assert.rejects(
    fakeModel({ sources: [broken] }),
    (error) => error instanceof SourceError && /disk is gone/.test(error.message),
  );
});

test('what the backend refuses is refused here, with its reasons', async () => {
  await assert.rejects(
    fakeModel({ architecture: 'refused' }),
    (error) => error instanceof Refusal && error.reasons[0]?.row === 'row',
  );
});

test('a worker that dies while it prepares is an error', async () => {
  await assert.rejects(fakeModel({ architecture: 'dies' }), InternalError);
});

test('a fault that the model goes on with is told as the error that it is', async () => {
  const faults: unknown[] = [];
  const model = await fakeModel({ architecture: 'limps', onFault: (error) => faults.push(error) });
  await run(model.session(), [65]);
  await model.dispose();
  assert.equal(faults.length, 1);
  assert.ok(faults[0] instanceof SourceError && /the disk is gone/.test(faults[0].message));
});

test('an exception of onProgress ends the load with it', async () => {
  const sources = [memorySource(new Uint8Array(10))];
  const onProgress = () => {
    throw new Error('not drawn');
  };
  // The worker may be ready before the exception is seen; then the load has succeeded, which is as well.
  await fakeModel({ sources, onProgress }).then(
    (model) => model.dispose(),
    (error) => assert.match(error.message, /not drawn/),
  );
});

test('a signal ends a load with its reason', async () => {
  await assert.rejects(fakeModel({ signal: AbortSignal.abort(new Error('never mind')) }), /never mind/);
  const controller = new AbortController();
  const loading = fakeModel({ architecture: 'never', signal: controller.signal });
  setTimeout(() => controller.abort(new Error('too long')), 50);
  await assert.rejects(loading, /too long/);
});

test('a worker that dies in the middle ends every answer with an error, and what is asked after it', async () => {
  for (const [fault, message] of [
    [121, /ended by itself with code 3/],
    [122, /thrown in the void/],
  ] as const) {
    const model = await fakeModel();
    const other = run(
      model.session(),
      Array.from({ length: 100 }, () => 123),
    );
    const failed = assert.rejects(other, (error) => error instanceof InternalError && message.test(error.message));
    await assert.rejects(
      run(model.session(), [97, fault]),
      (error) => error instanceof InternalError && message.test(error.message),
    );
    await failed;
    await assert.rejects(run(model.session(), [97]), InternalError);
    await assert.rejects(model.logits([97]), InternalError);
    await model.dispose();
  }
});

test('dispose does not wait for a run that does not end', async () => {
  let worker: PlatformWorker | undefined;
  const model = await fakeModel({ onWorker: (made) => (worker = made) });
  assert.ok(worker);
  const answer = assert.rejects(
    run(
      model.session(),
      Array.from({ length: 400 }, () => 123),
    ),
  );
  await model.dispose();
  await answer;
});

test('a model that nobody uses does not keep the process alive', () => {
  const program = `
    import { fakeModel, SAFE } from ${JSON.stringify(new URL('../../test/support/fake-model.ts', import.meta.url).href)};
    const model = await fakeModel();
    let text = '';
    for await (const part of model.session().generate({ tokens: [97] }, { ...SAFE, temperature: 0, maxTokens: 10 })) text += part.text;
    console.log(text.length);
  `;
  const { status, stdout, stderr, signal } = spawnSync(process.execPath, ['--input-type=module', '-e', program], {
    timeout: 20_000,
    encoding: 'utf8',
  });
  assert.deepEqual({ status, stdout, signal }, { status: 0, stdout: '20\n', signal: null }, stderr);
});
