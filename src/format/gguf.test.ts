import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { loneSource, memoryFolder } from '../../test/support/memory-source.ts';
import { formatBytes, formats } from '../quant/index.ts';
import { openGguf } from './gguf.ts';
import { meta, writeGguf } from './gguf-writer.ts';
import type { MetadataValue } from './model-file.ts';

type Entries = Readonly<Record<string, MetadataValue>>;

function file(metadata: Entries, tensors: Readonly<Record<string, readonly number[]>> = {}): Uint8Array<ArrayBuffer> {
  return writeGguf({
    metadata,
    tensors: Object.entries(tensors).map(([name, shape]) => ({
      name,
      format: 'F32',
      shape,
      data: new Uint8Array(4 * shape.reduce((product, n) => product * n, 1)),
    })),
  });
}

/** Where the bytes of `text` are in a file. */
function find(bytes: Uint8Array, text: string): number {
  return new TextDecoder('latin1').decode(bytes).indexOf(text);
}

/** Where the type number of a tensor is: behind name, rank and `rank` dimensions. */
function typeAt(bytes: Uint8Array, name: string, rank: number): number {
  return find(bytes, name) + name.length + 4 + 8 * rank;
}

async function code(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    return `${(error as { code?: string }).code}: ${(error as Error).message}`;
  }
  return 'ok';
}

describe('metadata', () => {
  const values: Entries = {
    'a.u8': { type: 'u8', value: 255 },
    'a.i8': { type: 'i8', value: -128 },
    'a.u16': { type: 'u16', value: 65535 },
    'a.i16': { type: 'i16', value: -32768 },
    'a.u32': { type: 'u32', value: 4294967295 },
    'a.i32': { type: 'i32', value: -2147483648 },
    'a.u64': { type: 'u64', value: 2 ** 53 - 1 },
    'a.u64.large': { type: 'u64', value: 2n ** 64n - 1n },
    'a.i64': { type: 'i64', value: -(2 ** 53 - 1) },
    'a.i64.large': { type: 'i64', value: -(2n ** 63n) },
    'a.f32': { type: 'f32', value: Math.fround(0.1) },
    'a.f64': { type: 'f64', value: 0.1 },
    'a.bool': { type: 'bool', value: true },
    'a.string': { type: 'string', value: '日本\ufeff' },
    'a.string.empty': { type: 'string', value: '' },
    'b.u8': { type: 'array', element: 'u8', value: Uint8Array.of(0, 255) },
    'b.i8': { type: 'array', element: 'i8', value: Int8Array.of(-128, 127) },
    'b.u16': { type: 'array', element: 'u16', value: Uint16Array.of(0, 65535) },
    'b.i16': { type: 'array', element: 'i16', value: Int16Array.of(-32768, 32767) },
    'b.u32': { type: 'array', element: 'u32', value: Uint32Array.of(0, 4294967295) },
    'b.i32': { type: 'array', element: 'i32', value: Int32Array.of(-2147483648, 2147483647) },
    'b.u64': { type: 'array', element: 'u64', value: BigUint64Array.of(0n, 2n ** 64n - 1n) },
    'b.i64': { type: 'array', element: 'i64', value: BigInt64Array.of(-(2n ** 63n), 1n) },
    'b.f32': { type: 'array', element: 'f32', value: Float32Array.of(0.1, -Infinity) },
    'b.f64': { type: 'array', element: 'f64', value: Float64Array.of(0.1, 1e300) },
    'b.bool': { type: 'array', element: 'bool', value: [true, false] },
    'b.string': { type: 'array', element: 'string', value: ['', 'Ġthe', '👍', '\ufeff', 'a'] },
    'b.empty': { type: 'array', element: 'string', value: [] },
  };

  test('every value type comes back, in version 3 and in version 2', async () => {
    const bytes = file(values);
    for (const version of [3, 2]) {
      new DataView(bytes.buffer).setUint32(4, version, true);
      const model = await openGguf(loneSource(bytes));
      assert.equal(model.version, version);
      assert.deepEqual(Object.fromEntries(model.metadata), values);
      assert.equal(model.tensors.size, 0);
    }
  });

  test('strings of a vocabulary that are not UTF-8 keep their bytes, the others stay text', async () => {
    const bytes = file({ tokens: meta.array('string', ['é', '#', 'aé', '']), name: meta.string('#!') });
    for (let at = bytes.indexOf(0x23); at >= 0; at = bytes.indexOf(0x23)) bytes[at] = 0xe9;
    const model = await openGguf(loneSource(bytes));
    assert.deepEqual(model.metadata.get('tokens')?.value, ['é', '\udce9', 'aé', '']);
    assert.equal(model.metadata.get('name')?.value, '\udce9!');
  });

  test('a character cut in two by the border of two strings is not put together', async () => {
    const bytes = file({ tokens: meta.array('string', ['a#', '$b']) });
    bytes[bytes.indexOf(0x23)] = 0xc3;
    bytes[bytes.indexOf(0x24)] = 0xa9;
    const model = await openGguf(loneSource(bytes));
    assert.deepEqual(model.metadata.get('tokens')?.value, ['a\udcc3', '\udca9b']);
  });

  test('a head larger than one read is read in growing pieces, none of them twice', async () => {
    const tokens = Array.from({ length: 300_000 }, (_, index) => `token ${index} ${index % 7 === 0 ? 'é' : 'e'}`);
    const bytes = file({ tokens: meta.array('string', tokens), after: meta.u32(7) }, { w: [2 ** 22] });
    const folder = memoryFolder({ 'model.gguf': bytes });
    const model = await openGguf(folder.source('model.gguf'));
    assert.deepEqual(model.metadata.get('tokens')?.value, tokens);
    assert.deepEqual(model.metadata.get('after')?.value, 7);
    let end = 0;
    for (const [, offset, length] of folder.reads) {
      assert.equal(offset, end);
      end = offset + length;
    }
    assert.ok(folder.reads.length > 2 && folder.reads.length < 10, `${folder.reads.length} reads`);
    assert.ok(end < bytes.length - 2 ** 23, `${end} of ${bytes.length} bytes were read`);
  });
});

describe('counts in a file that is large enough to hold them', () => {
  /** `bytes`, then zeros up to 20 GB; writes down how far it was read. */
  function large(bytes: Uint8Array) {
    const source = {
      name: 'large.gguf',
      size: 20e9,
      readTo: 0,
      async readInto(offset: number, target: Uint8Array) {
        source.readTo = Math.max(source.readTo, offset + target.byteLength);
        target.fill(0);
        target.set(bytes.subarray(offset, offset + target.byteLength));
      },
      async close() {},
    };
    return source;
  }

  test('are held against what a head may have, before anything is read for them', async () => {
    const text = file({ name: meta.string('x') });
    const list = file({ tokens: meta.array('string', []) });
    const numbers = file({ scores: meta.array('f32', []) });
    const patches: readonly (readonly [Uint8Array<ArrayBuffer>, number, bigint, RegExp])[] = [
      [text, find(text, 'name') + 4 + 4, 10n ** 9n, /key name.*a string of 1000000000 bytes/],
      [list, find(list, 'tokens') + 6 + 8, 2n * 10n ** 9n, /key tokens.*2000000000 values of type string/],
      [numbers, find(numbers, 'scores') + 6 + 8, 10n ** 9n, /key scores.*1000000000 values of type f32/],
      [text, 8, 10n ** 8n, /100000000 tensors/],
      [text, 16, 10n ** 8n, /100000000 keys/],
    ];
    for (const [bytes, at, value, message] of patches) {
      const patched = bytes.slice();
      new DataView(patched.buffer).setBigUint64(at, value, true);
      const source = large(patched);
      const found = await code(openGguf({ file: source, fileName: 'large.gguf' }));
      assert.match(found, message);
      assert.match(found, /^corrupt_file: .*134217728/);
      assert.ok(source.readTo <= 2 ** 20, `${source.readTo} bytes were read`);
    }
  });
});

describe('tensors', () => {
  test('every weight format: row-major shape, place and size', async () => {
    const numbered = formats.filter((format) => format.ggufType !== undefined);
    const tensors = numbered.map(({ id }) => ({
      name: `${id}.weight`,
      format: id,
      shape: [2, 3, 256],
      data: new Uint8Array(formatBytes(id, 2 * 3 * 256)),
    }));
    const bytes = writeGguf({ metadata: {}, tensors });
    const model = await openGguf(loneSource(bytes));
    let end = 0;
    for (const { name, format, shape, data } of tensors) {
      const found = model.tensors.get(name);
      assert.ok(found);
      assert.deepEqual({ ...found, offset: 0 }, { name, format, shape, source: 0, offset: 0, bytes: data.length });
      assert.ok(found.offset >= end && found.offset % 32 === 0);
      end = found.offset + found.bytes;
    }
    assert.equal(end, bytes.length);
  });

  test('general.alignment moves the data; offsets off it are corrupt', async () => {
    const bytes = file({ 'general.alignment': meta.u32(256) }, { a: [3], b: [5] });
    const model = await openGguf(loneSource(bytes));
    const offsets = [...model.tensors.values()].map(({ offset }) => offset);
    assert.ok(offsets.every((offset) => offset % 256 === 0));
    assert.equal(offsets[1] - offsets[0], 256);
    // The offset of b, behind its type.
    new DataView(bytes.buffer).setBigUint64(find(bytes, 'b\x01\x00\x00\x00') + 1 + 4 + 8 + 4, 32n, true);
    assert.match(await code(openGguf(loneSource(bytes))), /^corrupt_file: .*tensor b.*offset 32.*256/);
  });

  test('a scalar has no dimensions; holes and bytes behind the last tensor are allowed', async () => {
    const bytes = file({}, { scalar: [], hole: [40], after: [2] });
    const grown = new Uint8Array(bytes.length + 1000);
    grown.set(bytes);
    // The hole: one value of the forty is left.
    new DataView(grown.buffer).setBigUint64(find(grown, 'hole') + 4 + 4, 1n, true);
    const model = await openGguf(loneSource(grown));
    assert.deepEqual(
      [...model.tensors.values()].map(({ name, shape, bytes }) => [name, shape, bytes]),
      [
        ['scalar', [], 4],
        ['hole', [1], 4],
        ['after', [2], 8],
      ],
    );
  });

  test('overlapping tensors are corrupt wherever they stand in the list, touching ones are not', async () => {
    const bytes = file({}, { first: [8], second: [8] });
    const offsetAt = find(bytes, 'second') + 6 + 4 + 8 + 4;
    const view = new DataView(bytes.buffer);
    const dimensionAt = find(bytes, 'second') + 6 + 4;
    assert.equal(await code(openGguf(loneSource(bytes))), 'ok');
    view.setBigUint64(offsetAt, 0n, true);
    assert.match(await code(openGguf(loneSource(bytes))), /^corrupt_file: .*second.*first/);
    view.setBigUint64(dimensionAt, 16n, true);
    assert.match(await code(openGguf(loneSource(bytes))), /^corrupt_file: .*(second.*first|first.*second)/);
  });

  test('a known type that is not supported is refused by name, or kept to be looked at', async () => {
    const bytes = file({}, { 'w.weight': [66 * 2] });
    const at = typeAt(bytes, 'w.weight', 1);
    const view = new DataView(bytes.buffer);
    view.setUint32(at, 16, true);
    view.setBigUint64(at - 8, 512n, true);
    assert.match(await code(openGguf(loneSource(bytes))), /^refused: .*w\.weight is IQ2_XXS \(type 16\).*Q4_K/);
    const model = await openGguf(loneSource(bytes), { keepUnsupported: true });
    const { format, bytes: size } = model.tensors.get('w.weight') ?? {};
    assert.deepEqual([format, size], ['IQ2_XXS', 132]);
    for (const [type, what] of [
      [31, 'Q4_0_4_4'],
      [999, 'type 999'],
    ] as const) {
      view.setUint32(at, type, true);
      for (const keepUnsupported of [false, true]) {
        assert.match(await code(openGguf(loneSource(bytes), { keepUnsupported })), new RegExp(`^refused: .*${what}`));
      }
    }
  });
});

describe('split sets', () => {
  const split = (no: number, count = 3, total = 4): Entries => ({
    'split.no': { type: 'u16', value: no },
    'split.count': { type: 'u16', value: count },
    'split.tensors.count': { type: 'i32', value: total },
  });
  const name = (number: number, count = 3) =>
    `model-${String(number).padStart(5, '0')}-of-${String(count).padStart(5, '0')}.gguf`;
  const arch = { 'general.architecture': meta.string('llama'), 'llama.block_count': meta.u32(2) };
  const whole = {
    [name(1)]: file({ ...arch, ...split(0) }),
    [name(2)]: file({ ...split(1) }, { a: [8], b: [16] }),
    [name(3)]: file({ ...split(2), 'general.alignment': meta.u32(64), extra: meta.u32(5) }, { c: [8], d: [9] }),
  };

  test('any shard opens the set, the same way, and closing it closes all of them', async () => {
    for (const number of [1, 2, 3]) {
      const folder = memoryFolder(whole);
      const model = await openGguf(folder.source(name(number)));
      assert.deepEqual(
        model.sources.map((source) => source.name),
        [name(1), name(2), name(3)],
      );
      assert.deepEqual(
        [...model.tensors.values()].map((tensor) => [tensor.name, tensor.source]),
        [
          ['a', 1],
          ['b', 1],
          ['c', 2],
          ['d', 2],
        ],
      );
      assert.equal((model.tensors.get('c')?.offset ?? 1) % 64, 0);
      assert.equal(model.metadata.get('llama.block_count')?.value, 2);
      assert.equal(model.metadata.get('extra')?.value, 5);
      assert.equal(model.name, name(number));
      assert.equal(folder.open.length, 3);
      await model.close();
      assert.deepEqual(folder.open, []);
    }
  });

  const { [name(3)]: _third, ...lacking } = whole;
  const broken: Record<string, { files: Record<string, Uint8Array>; given?: string; message: RegExp }> = {
    'a missing shard': { files: lacking, message: /corrupt_file: .*shard 3 of 3, model-00003-of-00003\.gguf/ },
    'a shard of another set size': {
      files: { ...whole, [name(2)]: file({ ...split(1, 4) }, { a: [8], b: [16] }) },
      message: /corrupt_file: .*00002.*split\.count must be 3.*is 4/,
    },
    'shards in the wrong places': {
      files: { ...whole, [name(2)]: whole[name(3)], [name(3)]: whole[name(2)] },
      message: /corrupt_file: .*split\.no must be 1.*is 2/,
    },
    'a tensor twice': {
      files: { ...whole, [name(2)]: file({ ...split(1) }, { a: [8], c: [16] }) },
      message: /corrupt_file: .*tensor c is in model-00002.*model-00003/,
    },
    'a tensor too few': {
      files: { ...whole, [name(2)]: file({ ...split(1) }, { a: [8] }) },
      message: /corrupt_file: .*3 tensors.*split\.tensors\.count.*says 4/,
    },
    'shards that disagree about a key': {
      files: { ...whole, [name(2)]: file({ ...split(1), 'llama.block_count': meta.u32(3) }, { a: [8], b: [16] }) },
      message: /corrupt_file: .*00002.*llama\.block_count/,
    },
    'a shard without its keys': {
      files: { ...whole, [name(2)]: file({}, { a: [8], b: [16] }) },
      message: /corrupt_file: .*00002.*split\.no.*missing/,
    },
    'a shard that lost its name': {
      files: { 'renamed.gguf': whole[name(2)] },
      given: 'renamed.gguf',
      message: /corrupt_file: .*3 shards.*renamed\.gguf/,
    },
    'a number past the count': {
      files: { ...whole, [name(4)]: file({ ...split(3) }) },
      given: name(4),
      message: /corrupt_file: .*shard 4 of 3/,
    },
    'a damaged sibling': {
      files: { ...whole, [name(3)]: whole[name(3)].subarray(0, 100) },
      message: /corrupt_file: model-00003/,
    },
  };
  for (const [what, { files, given, message }] of Object.entries(broken)) {
    test(`${what} is corrupt, and only the given file stays open`, async () => {
      const folder = memoryFolder(files);
      assert.match(await code(openGguf(folder.source(given ?? name(1)))), message);
      assert.deepEqual(folder.open, [given ?? name(1)]);
    });
  }

  test('a shard without its folder says so; a merged file and a set of one are ordinary files', async () => {
    assert.match(await code(openGguf(loneSource(whole[name(1)], name(1)))), /^source: .*shard 1 of 3/);
    assert.equal(await code(openGguf(loneSource(file({ ...split(0, 0) }, { a: [8] })))), 'ok');
    assert.equal(await code(openGguf(loneSource(file({ ...split(0, 1) }, { a: [8] }), name(1, 1)))), 'ok');
    assert.equal(await code(openGguf(loneSource(file({}, { a: [8] }), name(1, 1)))), 'ok');
  });
});
