/** Weights on their way from the file to their place: every byte once, in groups of four rows, and nothing after a fault. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { SourceError } from '../../errors.ts';
import type { ByteSource } from '../../format/source.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { formatBytes, formatOf } from '../../quant/index.ts';
import type { PrepareRequest } from '../backend.ts';
import { homeBytes } from './builder.ts';
import { cpuFormat, cpuFormats, GROUP_ROWS, groupBytes, packedSegments } from './formats.ts';
import type { CpuProgram } from './program.ts';
import { type StorePiece, storePieces, storeUnit, storeUnits, storeWeights } from './store.ts';
import type { Arena, Kernels } from './task.ts';

/** @param parts tensors that the weight is made of, in sources 0, 1 … in turn */
function weightOf(name: string, format: string, shape: readonly number[], parts = 1): Weight {
  const bytes = formatBytes(
    format,
    shape.reduce((a, b) => a * b, 1),
  );
  return {
    name,
    format,
    shape,
    bytes,
    parts: Array.from({ length: parts }, (_, part) => ({
      name: `${name}.${part}`,
      format,
      shape: shape.slice(1),
      source: part % 2,
      offset: 1000 * part + 7,
      bytes: bytes / parts,
    })),
  };
}

/** A program in which each weight has its home, one after the other, in an arena of its own kind. */
function programOf(weights: Weights): CpuProgram {
  let at = 1024;
  const places = [...weights].map(([name, weight], index) => {
    const place = { arena: index % 2, offset: at, bytes: homeBytes(weight) };
    at += place.bytes + 64;
    return [name, place] as const;
  });
  return { weights: Object.fromEntries(places), arenas: [at, at] } as unknown as CpuProgram;
}

const bound = (...weights: readonly Weight[]) => new Map(weights.map((weight) => [weight.name, weight]));

/** Ranges must follow each other without a gap or an overlap. */
function assertTiled(ranges: readonly (readonly [from: number, bytes: number])[], from: number, bytes: number): void {
  let at = from;
  for (const [start, size] of ranges.toSorted((a, b) => a[0] - b[0])) {
    assert.equal(start, at);
    assert.ok(size > 0);
    at += size;
  }
  assert.equal(at, from + bytes);
}

describe('pieces', () => {
  const cases: readonly Weight[] = [
    weightOf('one group', 'Q4_K', [4, 256]),
    weightOf('one row', 'F32', [1, 5]),
    weightOf('a group that is not full', 'Q6_K', [67, 512]),
    weightOf('a stack', 'Q8_0', [7, 8, 64]),
    weightOf('a stack of matrices that fill no group', 'MXFP4', [5, 6, 96]),
    weightOf('a stack in parts', 'BF16', [6, 3, 10], 6),
    weightOf('a stack in larger parts', 'Q5_1', [6, 4, 32], 3),
    weightOf('more than one read', 'F32', [3001, 2048]),
    weightOf('rows larger than a read', 'F32', [9, 3_000_000]),
  ];
  for (const weight of cases) {
    test(`${weight.name} [${weight.shape.join(', ')}]: every byte of the file goes to its row's place`, () => {
      const weights = bound(weightOf('before', 'F32', [1, 1]), weight);
      const program = programOf(weights);
      const pieces = storePieces(weights, program).slice(1);
      const place = program.weights[weight.name] as CpuProgram['weights'][string];
      const rows = weight.shape.at(-2) as number;
      const columns = weight.shape.at(-1) as number;
      const size = groupBytes(weight.format, columns);
      assertTiled(
        pieces.map(({ offset, groups }) => [offset, groups * size] as const),
        place.offset,
        place.bytes,
      );
      for (const [part, { source, offset, bytes }] of weight.parts.entries()) {
        const own = pieces.filter(
          (piece) => piece.source === source && piece.fileOffset >= offset && piece.fileOffset < offset + bytes,
        );
        if (weight.parts.length === 1) {
          assertTiled(
            own.map((piece) => [piece.fileOffset, piece.bytes] as const),
            offset,
            bytes,
          );
        } else {
          assert.equal(own.length, 1, `part ${part}`);
        }
      }
      const matrixHome = Math.ceil(rows / GROUP_ROWS) * size;
      for (const piece of pieces) {
        assert.equal(piece.arena, place.arena);
        assert.ok(piece.lastRows >= 1 && piece.lastRows <= GROUP_ROWS);
        const count = (piece.groups - 1) * GROUP_ROWS + piece.lastRows;
        assert.equal(piece.bytes, count * (size / GROUP_ROWS));
        assert.ok(piece.bytes <= 8 * 2 ** 20 || piece.groups === 1, `a read of ${piece.bytes} bytes`);
        // The row that is read is the row that the place is for.
        const home = piece.offset - place.offset;
        const row = Math.floor(home / matrixHome) * rows + ((home % matrixHome) / size) * GROUP_ROWS;
        const perPart = (rows * (place.bytes / matrixHome)) / weight.parts.length;
        const part = weight.parts[Math.floor(row / perPart)] as Weight['parts'][number];
        assert.equal(piece.source, part.source);
        assert.equal(piece.fileOffset, part.offset + (row % perPart) * (size / GROUP_ROWS));
      }
    });
  }
});

/** An arena with real kernels. */
function arenaOf(bytes: number, scratch: number): Arena {
  const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / 65536), maximum: 65536, shared: true });
  const wasm = new URL('../../../build/conclave-simd.wasm', import.meta.url);
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(wasm)), { env: { memory } });
  return {
    kernels: exports as unknown as Kernels,
    bytes: new Uint8Array(memory.buffer),
    i32: new Int32Array(memory.buffer),
    f32: new Float32Array(memory.buffer),
    scratch,
    brought: { serial: -1, from: 0, key: 0 },
  };
}

/** A group as `formats.ts` describes it: block by block, segment by segment, unit by unit, the four rows side by side. */
function interleaved(
  rows: readonly Uint8Array[],
  blockBytes: number,
  segments: readonly (readonly [number, number])[],
) {
  const group: number[] = [];
  const rowBytes = rows[0]?.length as number;
  for (let block = 0; block < rowBytes; block += blockBytes) {
    let at = block;
    for (const [bytes, unit] of segments) {
      for (let end = at + bytes; at < end; at += unit) {
        for (let row = 0; row < GROUP_ROWS; row++) {
          for (let byte = 0; byte < unit; byte++) group.push(rows[row]?.[at + byte] ?? 0);
        }
      }
    }
  }
  return Uint8Array.from(group);
}

describe('a group', () => {
  for (const { id, segments } of cpuFormats) {
    test(`${id}: four rows side by side, absent ones zero, and not a byte beside`, () => {
      const { blockBytes, blockLength } = formatOf(id);
      const columns = 3 * blockLength;
      const size = groupBytes(id, columns);
      const rowBytes = size / GROUP_ROWS;
      // 65 groups and three rows: two units of work, the last group not full.
      const rows = 65 * GROUP_ROWS + 3;
      const groups = 66;
      const scratch = 1024;
      const offset = 16384;
      const arena = arenaOf(offset + groups * size + 64, scratch);
      const file = Uint8Array.from({ length: rows * rowBytes }, (_, i) => (i * 31 + (i >> 8) * 7 + 1) & 255);
      arena.bytes.fill(0xaa);
      arena.bytes.set(file, offset);
      const piece: StorePiece = {
        arena: 0,
        offset,
        groups,
        groupBytes: size,
        lastRows: 3,
        blocks: 3,
        blockBytes,
        segments: packedSegments(cpuFormat(id) as (typeof cpuFormats)[number]),
        source: 0,
        fileOffset: 0,
        bytes: file.length,
      };
      assert.equal(storeUnits(piece), 2);
      // In any order, as workers claim them.
      storeUnit(piece, 1, arena);
      storeUnit(piece, 0, arena);
      for (let group = 0; group < groups; group++) {
        const own = Array.from({ length: Math.min(GROUP_ROWS, rows - group * GROUP_ROWS) }, (_, row) => {
          const from = (group * GROUP_ROWS + row) * rowBytes;
          return file.subarray(from, from + rowBytes);
        });
        const at = offset + group * size;
        assert.deepEqual(arena.bytes.slice(at, at + size), interleaved(own, blockBytes, segments), `group ${group}`);
      }
      assert.ok(arena.bytes.slice(offset + groups * size).every((byte) => byte === 0xaa));
      assert.ok(arena.bytes.slice(scratch + size, offset).every((byte) => byte === 0xaa));
    });
  }
});

/** Reads that end when they are told to. */
function slowSource(name: string): ByteSource & { readonly waiting: { offset: number; end(error?: Error): void }[] } {
  const waiting: { offset: number; end(error?: Error): void }[] = [];
  return {
    name,
    size: 2 ** 30,
    waiting,
    readInto: (offset, target) =>
      new Promise((resolve, reject) => {
        target.fill(offset & 255);
        waiting.push({ offset, end: (error) => (error === undefined ? resolve() : reject(error)) });
      }),
    async close() {},
  };
}

describe('a load', () => {
  const weights = bound(
    ...Array.from({ length: 20 }, (_, index) => {
      const weight = weightOf(`w${index}`, 'F32', [4, 8]);
      // In the file the last comes first.
      const parts = weight.parts.map((part) => ({ ...part, offset: 5000 - 128 * index }));
      return { ...weight, parts };
    }),
  );
  const program = programOf(weights);
  const pieces = storePieces(weights, program);

  function start(more: Partial<PrepareRequest> = {}) {
    const source = slowSource('slow');
    const stored: number[] = [];
    const progress: number[] = [];
    const memories = program.arenas.map(() => new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true }));
    const ready = Promise.withResolvers<void>();
    const pool = ready.promise.then(() => ({ store: (piece: number) => void stored.push(piece) }));
    const request = {
      weights,
      sources: [source],
      onProgress: ({ bytesDone }: { readonly bytesDone: number }) => progress.push(bytesDone),
      ...more,
    } as unknown as PrepareRequest;
    const done = storeWeights(request, { program, pieces, memories, pool });
    // Looked at later; until then a fault is nobody's.
    done.catch(() => {});
    return { source, stored, progress, memories, ready, done };
  }

  test('reads in the order of the file, a few at once, and stores each piece once', async () => {
    const { source, stored, progress, memories, ready, done } = start();
    ready.resolve();
    await turn();
    assert.ok(
      source.waiting.length > 1 && source.waiting.length < pieces.length,
      `${source.waiting.length} reads at once`,
    );
    for (let read = 0; read < pieces.length; read++) {
      source.waiting[read]?.end();
      await turn();
    }
    await done;
    const offsets = source.waiting.map(({ offset }) => offset);
    assert.deepEqual(
      offsets,
      offsets.toSorted((a, b) => a - b),
    );
    assert.deepEqual(
      stored.toSorted((a, b) => a - b),
      [...pieces.keys()],
    );
    assert.deepEqual(
      progress,
      Array.from(pieces, (_, index) => 128 * (index + 1)),
    );
    for (const { arena, offset, bytes, fileOffset } of pieces) {
      const read = new Uint8Array((memories[arena] as WebAssembly.Memory).buffer, offset, bytes);
      assert.ok(read.every((byte) => byte === (fileOffset & 255)));
    }
  });

  test('waits for the workers with what it has read', async () => {
    const { source, stored, ready, done } = start();
    await turn();
    const first = source.waiting.length;
    for (const read of source.waiting.slice()) read.end();
    await turn();
    assert.deepEqual([stored.length, source.waiting.length], [0, first]);
    ready.resolve();
    await turn();
    assert.equal(stored.length, first);
    while (stored.length < pieces.length) {
      for (const read of source.waiting.slice()) read.end();
      await turn();
    }
    await done;
  });

  test('a read that fails is the error, and no piece is stored after it', async () => {
    for (const early of [true, false]) {
      const { source, stored, ready, done } = start();
      if (early) ready.resolve();
      await turn();
      const [one, two, ...rest] = source.waiting.slice();
      if (!early) one?.end();
      two?.end(new SourceError('the disk is gone'));
      await assert.rejects(
        done,
        (error: unknown) => error instanceof SourceError && error.message === 'the disk is gone',
      );
      ready.resolve();
      for (const read of rest) read.end();
      await turn();
      assert.deepEqual(stored, [], early ? 'with workers' : 'workers that came too late');
    }
  });

  test('a signal ends it with its reason', async () => {
    const abort = new AbortController();
    const { source, stored, ready, done } = start({ signal: abort.signal });
    ready.resolve();
    await turn();
    abort.abort(new SourceError('given up'));
    for (const read of source.waiting.slice()) read.end();
    await assert.rejects(done, /given up/);
    const before = stored.length;
    assert.ok(before < pieces.length);
    await turn();
    assert.equal(stored.length, before);
  });

  test('a file that is not there is named', async () => {
    const { ready, done } = start({ sources: [] });
    ready.resolve();
    await assert.rejects(done, (error: unknown) => error instanceof SourceError && /file 0 of 0/.test(error.message));
  });
});
