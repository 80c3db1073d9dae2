/** Experts' bytes come from the files and places that the weights name, however these are read. */

import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, suite, test } from 'node:test';
import { DisposedError, InternalError, SourceError } from '../../errors.ts';
import { type ByteSource, type FileAddress, type LocalFile, memorySource } from '../../format/source.ts';
import type { Weight } from '../../model/weights.ts';
import { nodePlatform } from '../../platform/node.ts';
import { FileFeed } from './file-feed.ts';
import { EXPERT_PARTS, expertName } from './slab.ts';

const EXPERTS = 6;
const ROWS = 3;
const COLUMNS = 5;
const MATRIX = ROWS * COLUMNS * 2;

const address: FileAddress = { path: '/nowhere', size: 0, modifiedNs: 0n, device: 0n, inode: 0n };

/** Bytes as a file that is read at once. */
function localFile(bytes: Uint8Array, more: Partial<LocalFile> = {}): LocalFile {
  return { ...memorySource(bytes), fileAddress: address, verify: async () => {}, ...more };
}

/** BF16 experts of two layers, the second's in so many tensors, in turn in each of the sources, one behind the other. */
function model(tensors: number, sources: number) {
  const files = Array.from({ length: sources }, () => [] as number[]);
  const weights = new Map<string, Weight>();
  const expected = new Map<string, number[]>();
  for (const layer of [0, 1]) {
    for (const [index, part] of EXPERT_PARTS.entries()) {
      const name = expertName(layer, part);
      const count = layer === 0 ? 1 : tensors;
      const bytes = Array.from({ length: EXPERTS * MATRIX }, (_, at) => (at * 7 + 31 * index + 101 * layer) & 255);
      const each = bytes.length / count;
      const parts = Array.from({ length: count }, (_, tensor) => {
        const source = tensor % sources;
        const file = files[source] as number[];
        file.push(0);
        const offset = file.length;
        file.push(...bytes.slice(tensor * each, (tensor + 1) * each));
        return { name, format: 'BF16', shape: [EXPERTS / count, ROWS, COLUMNS], source, offset, bytes: each };
      });
      weights.set(name, { name, format: 'BF16', shape: [EXPERTS, ROWS, COLUMNS], parts, bytes: bytes.length });
      for (let expert = 0; expert < EXPERTS; expert++) {
        expected.set(`${layer} ${part} ${expert}`, bytes.slice(expert * MATRIX, (expert + 1) * MATRIX));
      }
    }
  }
  return { weights, expected, files: files.map((file) => Uint8Array.from(file)) };
}

async function checkAll(feed: FileFeed | undefined, expected: ReadonlyMap<string, readonly number[]>): Promise<void> {
  assert.ok(feed !== undefined);
  for (const layer of [0, 1]) {
    for (const part of EXPERT_PARTS) {
      assert.equal(feed.bytesOf({ layer, part }), MATRIX);
      for (let expert = 0; expert < EXPERTS; expert++) {
        const target = new Uint8Array(MATRIX);
        await feed.read({ layer, part, expert }, target);
        assert.deepEqual([...target], expected.get(`${layer} ${part} ${expert}`), `${layer} ${part} ${expert}`);
      }
    }
  }
}

const none = {
  openAgain(): Promise<LocalFile> {
    throw new InternalError('nothing was to be opened again');
  },
};

for (const [tensors, sources] of [
  [1, 1],
  [EXPERTS, 1],
  [EXPERTS, 4],
  [3, 2],
] as const) {
  test(`a stack in ${tensors} tensors over ${sources} files`, async () => {
    const { weights, expected, files } = model(tensors, sources);
    let closed = 0;
    const opened = files.map((bytes) => localFile(bytes, { close: async () => void closed++ }));
    const feed = await FileFeed.open({ weights, sources: opened, layers: [0, 1] }, none);
    await checkAll(feed, expected);
    await feed?.close();
    assert.equal(closed, 0, 'sources that it was given stay open');
    await assert.rejects(
      async () => feed?.read({ layer: 0, part: 'up', expert: 0 }, new Uint8Array(MATRIX)),
      DisposedError,
    );
  });
}

suite('files that are opened again', () => {
  let folder: string;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'conclave-'));
  });
  after(() => rm(folder, { recursive: true }));

  /** Sources over a port: they say where their file lies, and fill no memory by themselves. */
  async function overPort(files: readonly Uint8Array[]): Promise<readonly ByteSource[]> {
    return Promise.all(
      files.map(async (bytes, index) => {
        const path = join(folder, `${index}.bin`);
        await writeFile(path, bytes);
        const { file } = await nodePlatform.openSource(path);
        await file.close();
        const unread = async () => assert.fail('read over the port');
        return { ...memorySource(bytes), fileAddress: file.fileAddress, readInto: unread };
      }),
    );
  }

  test('are read, and closed with the feed; those without experts are left alone', async () => {
    const { weights, expected, files } = model(EXPERTS, 2);
    const sources = [...(await overPort(files)), memorySource(new Uint8Array(8), 'of something else')];
    const opened: LocalFile[] = [];
    const feed = await FileFeed.open(
      { weights, sources, layers: [0, 1] },
      {
        openAgain: async (where) => {
          opened.push(await nodePlatform.openAgain(where));
          return opened.at(-1) as LocalFile;
        },
      },
    );
    await checkAll(feed, expected);
    await feed?.close();
    assert.equal(opened.length, 2);
    for (const file of opened) await assert.rejects(file.readInto(0, new Uint8Array(1)), SourceError);
  });

  test('another file under the same path is named, and what was opened already is closed', async () => {
    const { weights, files } = model(EXPERTS, 2);
    const sources = await overPort(files);
    await writeFile(join(folder, '1.bin'), Uint8Array.of(1));
    let open = 0;
    const counted = async (where: FileAddress) => {
      const file = await nodePlatform.openAgain(where);
      open++;
      const close = async () => {
        open--;
        await file.close();
      };
      return { ...file, fileAddress: file.fileAddress, verify: file.verify, close };
    };
    await assert.rejects(
      FileFeed.open({ weights, sources, layers: [0, 1] }, { openAgain: counted }),
      (error: unknown) => error instanceof SourceError && /1\.bin: found 1 bytes/.test(error.message),
    );
    assert.equal(open, 0);
  });

  test('a source without an address leaves all to memory', async () => {
    const { weights, files } = model(EXPERTS, 2);
    const [first] = await overPort(files);
    const sources = [first as ByteSource, memorySource(files[1] as Uint8Array)];
    assert.equal(await FileFeed.open({ weights, sources, layers: [0, 1] }, nodePlatform), undefined);
    const feed = await FileFeed.open({ weights, sources, layers: [0] }, nodePlatform);
    assert.ok(feed !== undefined, 'of the other layer it has all');
    await feed.close();
  });
});

suite('reads', () => {
  const part = 'gate';
  const size = 5 * 2 ** 20 + 12345;
  const name = expertName(0, part);
  const all = (experts: number, bytes: number) =>
    new Map(
      EXPERT_PARTS.map((each): [string, Weight] => {
        const shape = [experts, 1, bytes / 2];
        const own = { name, format: 'BF16', shape, source: 0, offset: 0, bytes: experts * bytes };
        return [expertName(0, each), { name, format: 'BF16', shape, parts: [own], bytes: experts * bytes }];
      }),
    );

  test('are of about a megabyte, side by side, each byte once, and not too many at once', async () => {
    const reads: { offset: number; bytes: number }[] = [];
    let running = 0;
    let most = 0;
    const file = localFile(new Uint8Array(0), {
      async readInto(offset, target) {
        reads.push({ offset, bytes: target.byteLength });
        most = Math.max(most, ++running);
        await new Promise((resolve) => setTimeout(resolve, 1));
        running--;
      },
    });
    const feed = await FileFeed.open({ weights: all(20, size - 1), sources: [file], layers: [0] }, none);
    const target = new Uint8Array(size - 1);
    await Promise.all(Array.from({ length: 20 }, (_, expert) => feed?.read({ layer: 0, part, expert }, target)));
    assert.equal(running, 0);
    assert.ok(most >= 8 && most <= 32, `${most} at once`);
    let end = 0;
    for (const { offset, bytes } of reads.sort((a, b) => a.offset - b.offset)) {
      assert.equal(offset, end);
      assert.ok(bytes > 2 ** 19 && bytes < 2 ** 21, `${bytes} bytes`);
      end += bytes;
    }
    assert.equal(end, 20 * (size - 1));
  });

  test('a matrix fails when the last of its reads has let go of the memory', async () => {
    let writing = 0;
    const file = localFile(new Uint8Array(0), {
      async readInto(offset) {
        if (offset === 0) throw new SourceError('the disk is gone');
        writing++;
        await new Promise((resolve) => setTimeout(resolve, 20));
        writing--;
      },
    });
    const feed = await FileFeed.open({ weights: all(1, size - 1), sources: [file], layers: [0] }, none);
    await assert.rejects(
      async () => feed?.read({ layer: 0, part, expert: 0 }, new Uint8Array(size - 1)),
      /the disk is gone/,
    );
    assert.equal(writing, 0);
  });

  test('closing waits for those under way and begins no others', async () => {
    let begun = 0;
    let ended = 0;
    const file = localFile(new Uint8Array(0), {
      async readInto() {
        begun++;
        await new Promise((resolve) => setTimeout(resolve, 20));
        ended++;
      },
    });
    const feed = await FileFeed.open({ weights: all(20, size - 1), sources: [file], layers: [0] }, none);
    const target = new Uint8Array(size - 1);
    const all20 = Array.from({ length: 20 }, (_, expert) => feed?.read({ layer: 0, part, expert }, target));
    const seen = Promise.allSettled(all20);
    await feed?.close();
    assert.ok(begun > 0 && begun < 100, `${begun} begun`);
    assert.equal(ended, begun);
    const last = (await seen).at(-1);
    assert.ok(last?.status === 'rejected' && last.reason instanceof DisposedError);
    assert.equal(ended, begun, 'none was begun later');
  });
});
