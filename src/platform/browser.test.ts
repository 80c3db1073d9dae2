import assert from 'node:assert/strict';
import { after, before, suite, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { InternalError, SourceError, UsageError } from '../errors.ts';
import { browserPlatform } from './browser.ts';

/** A browser's Worker, as far as the platform uses it. */
class StubWorker extends EventTarget {
  static readonly made: StubWorker[] = [];
  readonly posted: unknown[] = [];
  terminated = false;
  readonly url: URL;
  readonly options: WorkerOptions;

  constructor(url: URL, options: WorkerOptions) {
    super();
    this.url = url;
    this.options = options;
    StubWorker.made.push(this);
  }

  postMessage(message: unknown): void {
    this.posted.push(message);
  }

  terminate(): void {
    this.terminated = true;
  }

  emit(type: string, fields: object): void {
    this.dispatchEvent(Object.assign(new Event(type, { cancelable: true }), fields));
  }
}

suite("the browser's platform", () => {
  const real = Object.getOwnPropertyDescriptor(globalThis, 'Worker');
  before(() => Object.defineProperty(globalThis, 'Worker', { value: StubWorker, configurable: true, writable: true }));
  after(() => {
    if (real === undefined) Reflect.deleteProperty(globalThis, 'Worker');
    else Object.defineProperty(globalThis, 'Worker', real);
  });

  test('workers are module scripts of the built package, and their data is the first message', async () => {
    const files = {
      'engine-worker': /\/engine\/engine-worker\.js$/,
      'cpu-worker': /\/backend\/cpu\/cpu-worker\.js$/,
      'plane-worker': /\/backend\/gpu\/plane-worker\.js$/,
      'template-worker': /\/tokenizer\/template-worker\.js$/,
    };
    for (const [entry, file] of Object.entries(files)) {
      const line = browserPlatform.spawnWorker(entry as keyof typeof files, { some: 'data' });
      line.postMessage('hello');
      const stub = StubWorker.made.at(-1)!;
      assert.match(stub.url.href, file);
      assert.equal(stub.options.type, 'module');
      assert.deepEqual(stub.posted, [{ some: 'data' }, 'hello']);
      stub.emit('message', { data: 'early' });
      const seen: unknown[] = [];
      line.onMessage((message) => seen.push(message));
      stub.emit('message', { data: 'late' });
      assert.deepEqual(seen, ['early', 'late']);
      await line.terminate();
      assert.equal(stub.terminated, true);
    }
  });

  test('a worker whose script fails is an error, once, and none after its end', async () => {
    const errors: unknown[] = [];
    const line = browserPlatform.spawnWorker('cpu-worker', undefined);
    const stub = StubWorker.made.at(-1)!;
    stub.emit('error', { message: '' });
    stub.emit('error', { message: 'again' });
    line.onError((error) => errors.push(error));
    assert.equal(errors.length, 1);
    assert.ok(errors[0] instanceof InternalError && /cannot be loaded/.test(errors[0].message));
    const ended = browserPlatform.spawnWorker('cpu-worker', undefined);
    ended.onError((error) => errors.push(error));
    await ended.terminate();
    StubWorker.made.at(-1)!.emit('error', { message: 'late' });
    assert.equal(errors.length, 1);
  });

  test('models come from addresses, Files and Blobs, not from paths', async () => {
    const { file, fileName } = await browserPlatform.openSource(new File([Uint8Array.of(1, 2, 3)], 'picked.gguf'));
    const target = new Uint8Array(2);
    await file.readInto(1, target);
    assert.deepEqual([fileName, ...target], ['picked.gguf', 2, 3]);
    await assert.rejects(browserPlatform.openSource('http://127.0.0.1:9/x.gguf'), SourceError);
    await assert.rejects(browserPlatform.openSource('file:///tmp/x.gguf'), UsageError);
  });

  test('only built files are assets', async () => {
    await assert.rejects(browserPlatform.readAsset('other.wasm'), InternalError);
    assert.ok(browserPlatform.threads() >= 1 && browserPlatform.freeMemoryBytes() >= 2 ** 28);
  });
});

test("inside a browser's worker the first message is the data, and none is lost", async () => {
  // A thread made to look like one: no process, a global scope with events.
  const program = `
    const { parentPort } = require('node:worker_threads');
    const events = new EventTarget();
    globalThis.WorkerGlobalScope = class {};
    globalThis.addEventListener = events.addEventListener.bind(events);
    globalThis.postMessage = (message) => parentPort.postMessage(message);
    delete globalThis.process;
    parentPort.on('message', (data) => events.dispatchEvent(Object.assign(new Event('message'), { data })));
    import(${JSON.stringify(new URL('./worker-port.ts', import.meta.url).href)}).then(async ({ workerPort }) => {
      parentPort.postMessage('listening');
      const port = await workerPort();
      setTimeout(() => port.onMessage((message) => port.postMessage([port.data, message])), 20);
    });
  `;
  const worker = new Worker(program, { eval: true });
  const seen: unknown[] = [];
  await new Promise<void>((resolve, reject) => {
    worker.on('error', reject);
    worker.on('message', (message) => {
      if (message === 'listening') for (const sent of ['data', 1, 2]) worker.postMessage(sent);
      else if (seen.push(message) === 2) resolve();
    });
  });
  await worker.terminate();
  assert.deepEqual(seen, [
    ['data', 1],
    ['data', 2],
  ]);
});
