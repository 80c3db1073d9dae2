import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { appendFile, chmod, mkdir, mkdtemp, rename, rm, truncate, utimes, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, suite, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { Refusal, SourceError, UsageError } from '../errors.ts';
import { type FileAddress, type LocalFile, memorySource } from '../format/source.ts';
import { detectFeatures } from './features.ts';
import { checkNode, OLDEST_NODE, platform } from './index.ts';
import { nodePlatform, spawnNodeWorker } from './node.ts';

const bytes = Uint8Array.from({ length: 100_000 }, (_, i) => (i * 7) ^ (i >> 8));

function failsWith(pattern: RegExp) {
  return (error: unknown) => error instanceof SourceError && pattern.test(error.message);
}

suite('files', () => {
  let folder: string;
  let path: string;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'conclave-'));
    path = join(folder, 'model.bin');
    await writeFile(path, bytes);
  });
  after(() => rm(folder, { recursive: true }));

  test('any range, into own and into shared memory, several at once', async () => {
    for (const input of [path, pathToFileURL(path)]) {
      const { file, fileName } = await nodePlatform.openSource(input);
      assert.deepEqual([file.size, file.name, fileName], [bytes.length, path, 'model.bin']);
      const ranges = [
        [0, 10],
        [99_990, 10],
        [500, 40_000],
        [3, 0],
      ] as const;
      await Promise.all(
        ranges.flatMap(([offset, length]) =>
          [new Uint8Array(length), new Uint8Array(new SharedArrayBuffer(length + 5), 5)].map(async (target) => {
            await file.readInto(offset, target);
            assert.deepEqual([...target], [...bytes.subarray(offset, offset + length)]);
          }),
        ),
      );
      await file.close();
    }
  });

  test('a range beyond the file, and a file that shrank, are errors', async () => {
    const { file } = await nodePlatform.openSource(path);
    await assert.rejects(file.readInto(99_999, new Uint8Array(2)), failsWith(/bytes 99999 to 100001.*only 100000/));
    await assert.rejects(file.readInto(-1, new Uint8Array(2)), SourceError);
    const shrinking = join(folder, 'shrinking.bin');
    await writeFile(shrinking, bytes);
    const shrunk = await nodePlatform.openSource(shrinking);
    await truncate(shrinking, 10);
    await assert.rejects(shrunk.file.readInto(0, new Uint8Array(20)), failsWith(/ends at byte 10/));
    await Promise.all([file.close(), shrunk.file.close()]);
  });

  test('what cannot be opened is named, with why', async () => {
    await assert.rejects(
      nodePlatform.openSource(join(folder, 'nowhere.gguf')),
      failsWith(/nowhere\.gguf: no such file/),
    );
    await assert.rejects(nodePlatform.openSource(join(path, 'below')), failsWith(/no such file/));
    await assert.rejects(nodePlatform.openSource(folder), failsWith(/is a directory/));
    await assert.rejects(nodePlatform.openSource('/dev/null'), failsWith(/not a regular file/));
    const pipe = join(folder, 'pipe');
    execFileSync('mkfifo', [pipe]);
    await assert.rejects(nodePlatform.openSource(pipe), failsWith(/not a regular file/), 'nobody writes to it');
    await assert.rejects(nodePlatform.openSource(''), UsageError);
    await assert.rejects(nodePlatform.openSource(new URL('ftp://example.com/x')), UsageError);
    for (const [input, found] of [
      [3, /found 3$/],
      [undefined, /found undefined$/],
      [null, /found null$/],
      [new Uint8Array(4), /found Uint8Array$/],
      [{}, /found Object$/],
    ] as const) {
      await assert.rejects(
        nodePlatform.openSource(input as never),
        (error: unknown) => error instanceof UsageError && found.test(error.message),
      );
    }
    if (process.getuid?.() !== 0) {
      const closed = join(folder, 'closed.bin');
      await writeFile(closed, bytes);
      await chmod(closed, 0);
      await assert.rejects(nodePlatform.openSource(closed), failsWith(/no permission/));
    }
  });

  test('a file is opened again by its address, and no other file under its path', async () => {
    const moving = join(folder, 'moving.bin');
    const opened = async () => (await nodePlatform.openSource(moving)).file as LocalFile;
    const addressOf = async () => {
      const file = await opened();
      await file.close();
      return structuredClone(file.fileAddress);
    };
    await writeFile(moving, bytes);
    const before = await addressOf();
    assert.deepEqual([before.path, before.size], [moving, bytes.length]);
    const again = await nodePlatform.openAgain(before);
    const target = new Uint8Array(100);
    await again.readInto(50, target);
    assert.deepEqual([...target], [...bytes.subarray(50, 150)]);
    assert.deepEqual([again.name, again.size, again.fileAddress], [moving, bytes.length, before]);
    await again.close();
    const refuses = (address: FileAddress, pattern: RegExp) =>
      assert.rejects(nodePlatform.openAgain(address), failsWith(pattern));
    // Of the same bytes and times.
    const other = join(folder, 'other.bin');
    await writeFile(other, bytes);
    await utimes(other, new Date(0), new Date(0));
    await utimes(moving, new Date(0), new Date(0));
    const old = await addressOf();
    await refuses(before, /moving\.bin: found 100000 bytes, written 1970.*expected the file of 100000 bytes/);
    await rename(other, moving);
    await refuses(old, /moving\.bin: found/);
    const replaced = await addressOf();
    await truncate(moving, 99_999);
    await refuses(replaced, /found 99999 bytes.*expected the file of 100000 bytes/);
    await rm(moving);
    await refuses(replaced, /no such file/);
  });

  test('a file says whether it is what it was', async () => {
    const kept = join(folder, 'kept.bin');
    await writeFile(kept, bytes);
    const file = (await nodePlatform.openSource(kept)).file as LocalFile;
    await file.verify();
    await appendFile(kept, 'more');
    await assert.rejects(file.verify(), failsWith(/kept\.bin: found 100004 bytes.*expected the file of 100000 bytes/));
    await truncate(kept, bytes.length);
    await assert.rejects(file.verify(), failsWith(/kept\.bin: found/), 'of the same size, and written to');
    await file.close();
    await assert.rejects(file.verify(), failsWith(/cannot be told/));
  });

  test('a file without a name any more is what it was', async () => {
    const gone = join(folder, 'gone.bin');
    await writeFile(gone, bytes);
    const file = (await nodePlatform.openSource(gone)).file as LocalFile;
    await rm(gone);
    await file.verify();
    await file.readInto(0, new Uint8Array(10));
    await file.close();
  });

  test('a source made by spreading a file claims nothing of the file', async () => {
    const { file } = await nodePlatform.openSource(path);
    const { name, size, fileAddress, verify } = { ...file };
    assert.deepEqual([name, size, fileAddress, verify], [path, bytes.length, undefined, undefined]);
    await file.close();
  });

  test('a folder is the model that lies in it, and Files that were chosen together are one', async () => {
    const at = join(folder, 'a model');
    await mkdir(at);
    await assert.rejects(nodePlatform.openSource(at), failsWith(/is a directory without .*model\.safetensors/));
    await writeFile(join(at, 'model.safetensors'), bytes.subarray(0, 7));
    await writeFile(join(at, 'config.json'), '{}');
    const source = await nodePlatform.openSource(at);
    assert.deepEqual(
      [source.fileName, source.file.size, await source.folder?.has('config.json')],
      ['model.safetensors', 7, true],
    );
    await source.file.close();

    const named = (name: string) => new File([bytes], name);
    const chosen = async (...names: string[]) => (await nodePlatform.openSource(names.map(named))).fileName;
    assert.equal(await chosen('config.json', 'lexicon.safetensors', 'tokenizer.json'), 'lexicon.safetensors');
    assert.equal(await chosen('b-00002-of-00002.gguf', 'b-00001-of-00002.gguf'), 'b-00001-of-00002.gguf');
    const index = 'model.safetensors.index.json';
    assert.equal(await chosen('b.safetensors', 'a.safetensors', index), index);
    await assert.rejects(chosen('b.safetensors', 'a.safetensors'), failsWith(/2 files: is a directory without/));
    await assert.rejects(chosen(), failsWith(/0 files/));
    await assert.rejects(chosen('a.gguf', 'a.gguf'), UsageError);
    await assert.rejects(nodePlatform.openSource([new Blob([bytes]) as File]), UsageError);
    const { folder: chosenFolder } = await nodePlatform.openSource([named('a.safetensors'), named('config.json')]);
    assert.equal((await chosenFolder?.open('config.json'))?.size, bytes.length);
    await assert.rejects(
      async () => chosenFolder?.open('else.json'),
      failsWith(/else\.json: is not among the 2 files/),
    );
  });

  test('the folder opens siblings', async () => {
    const source = await nodePlatform.openSource(path);
    await writeFile(join(folder, 'second.bin'), bytes.subarray(0, 5));
    assert.deepEqual([await source.folder?.has('second.bin'), await source.folder?.has('third.bin')], [true, false]);
    const second = await source.folder?.open('second.bin');
    assert.equal(second?.size, 5);
    await assert.rejects(async () => source.folder?.open('third.bin'), failsWith(/third\.bin: no such file/));
    await Promise.all([source.file.close(), second?.close()]);
  });
});

suite('the web', () => {
  let server: Server;
  let base: string;
  let size = bytes.length;
  before(async () => {
    server = createServer((request, response) => {
      const url = new URL(request.url ?? '', 'http://x');
      if (url.pathname.endsWith('missing.gguf')) return void response.writeHead(404).end();
      const range = /bytes=(\d+)-(\d+)/.exec(request.headers.range ?? '');
      if (url.pathname.endsWith('whole.gguf') || range === null)
        return void response.writeHead(200).end(request.method === 'HEAD' ? undefined : bytes);
      const [start, end] = [Number(range[1]), Number(range[2])];
      response.writeHead(206, { 'content-range': `bytes ${start}-${end}/${size}` });
      if (url.pathname.endsWith('breaks.gguf') && start > 0) {
        response.write(bytes.subarray(start, start + 1));
        setTimeout(() => response.destroy(), 20);
        return;
      }
      response.end(bytes.subarray(start, end + 1));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}/models/`;
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });

  test('ranges of an address, and its siblings', async () => {
    const { file, fileName, folder } = await nodePlatform.openSource(`${base}a%20model.gguf?key=1`);
    assert.deepEqual([file.size, fileName], [bytes.length, 'a model.gguf']);
    const target = new Uint8Array(new SharedArrayBuffer(70_000));
    await file.readInto(123, target);
    assert.deepEqual([...target], [...bytes.subarray(123, 70_123)]);
    await assert.rejects(file.readInto(bytes.length, new Uint8Array(1)), failsWith(/only 100000/));
    assert.deepEqual([await folder?.has('b.gguf'), await folder?.has('missing.gguf')], [true, false]);
    assert.equal((await folder?.open('b c.gguf'))?.name, `${base}b%20c.gguf?key=1`);
  });

  test('what goes wrong is named', async () => {
    await assert.rejects(nodePlatform.openSource(`${base}missing.gguf`), failsWith(/answered 404/));
    assert.equal((await nodePlatform.openSource(base)).fileName, 'model.safetensors.index.json');
    await assert.rejects(nodePlatform.openSource(`${base}whole.gguf`), failsWith(/only whole files.*download/));
    await assert.rejects(nodePlatform.openSource('http://127.0.0.1:9/x.gguf'), failsWith(/cannot be reached/));
    const { file } = await nodePlatform.openSource(new URL(`${base}breaks.gguf`));
    await assert.rejects(file.readInto(5, new Uint8Array(1000)), failsWith(/the connection broke after|sent only/));
    size++;
    await assert.rejects(file.readInto(0, new Uint8Array(10)), failsWith(/another size/));
    size--;
  });

  test('a Blob, a File and a byte source', async () => {
    const blob = await nodePlatform.openSource(new Blob([bytes]));
    const file = await nodePlatform.openSource(new File([bytes], 'picked.gguf'));
    const own = await nodePlatform.openSource(memorySource(bytes, 'models/own.gguf'));
    assert.deepEqual([blob.fileName, file.fileName, own.fileName], ['Blob', 'picked.gguf', 'own.gguf']);
    for (const source of [blob, file, own]) {
      const target = new Uint8Array(new SharedArrayBuffer(50));
      await source.file.readInto(1000, target);
      assert.deepEqual([...target], [...bytes.subarray(1000, 1050)]);
    }
    await assert.rejects(blob.file.readInto(bytes.length - 1, new Uint8Array(2)), SourceError);
    assert.equal(await nodePlatform.openSource(own), own);
  });
});

suite('workers', () => {
  const worker = (code: string, data?: unknown) =>
    spawnNodeWorker(new URL(`data:text/javascript,${encodeURIComponent(code)}`), 'test-worker', data);
  const fault = (code: string) => new Promise<unknown>((resolve) => worker(code).onError(resolve));

  test('the inside gets its data and answers', async () => {
    const port = new URL('./worker-port.ts', import.meta.url).href;
    const line = worker(
      `import { workerPort } from ${JSON.stringify(port)}; const port = await workerPort(); port.onMessage((m) => port.postMessage([port.data, m]));`,
      { started: 'with this' },
    );
    line.postMessage(1);
    assert.deepEqual(await new Promise((resolve) => line.onMessage(resolve)), [{ started: 'with this' }, 1]);
    await line.terminate();
  });

  test('a worker that throws, ends or cannot start is an error, once', async () => {
    assert.match(String(await fault('throw new TypeError("inside")')), /inside/);
    assert.match(String(await fault('process.exit(7)')), /code 7/);
    assert.match(String(await fault('import "./nowhere.js"')), /./);
  });

  test('a worker that is told to end is none', async () => {
    const line = worker('setInterval(() => {}, 1000)');
    let failed = false;
    line.onError(() => {
      failed = true;
    });
    await line.terminate();
    await new Promise((resolve) => setTimeout(resolve, 20));
    assert.equal(failed, false);
  });
});

test('a Node that is too old is refused with its version', () => {
  const { engines } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
  assert.equal(engines.node, `>=${OLDEST_NODE}`);
  for (const version of ['22.0.0', '26.10.0', process.versions.node]) checkNode(version);
  for (const version of ['20.20.2', '8.0.0', '0.12.1']) {
    assert.throws(
      () => checkNode(version),
      (error: unknown) => error instanceof Refusal && error.message.includes(`Node ${version} is too old`),
    );
  }
});

test('facts of this machine', async () => {
  assert.equal(await platform(), nodePlatform);
  assert.ok(Number.isInteger(nodePlatform.threads()) && nodePlatform.threads() >= 1);
  assert.ok(nodePlatform.freeMemoryBytes() > 2 ** 20);
  // Node has had all three since its version 22; the fourth is the processor's.
  assert.deepEqual(
    [...detectFeatures()].filter((name) => name !== 'relaxed-dot'),
    ['simd', 'relaxed-simd', 'threads'],
  );
  await assert.rejects(nodePlatform.readAsset('no-such.wasm'), failsWith(/no-such\.wasm is missing; run/));
  const wasm = await nodePlatform.readAsset('conclave-simd.wasm');
  assert.equal(WebAssembly.validate(wasm), true);
});
