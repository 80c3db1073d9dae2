import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { loneSource, memoryFolder } from '../../test/support/memory-source.ts';
import { openSafetensors } from './safetensors.ts';

const INDEX = 'model.safetensors.index.json';
const encoder = new TextEncoder();

/** A file with this header text and `dataBytes` zeros behind it. */
function raw(header: string, dataBytes: number): Uint8Array {
  const text = encoder.encode(header);
  const bytes = new Uint8Array(8 + text.length + dataBytes);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(text, 8);
  return bytes;
}

type Entries = Readonly<Record<string, { dtype: string; shape: number[]; bytes: number }>>;

/** A sound file: the tensors' bytes one after another. */
function file(entries: Entries, metadata?: Record<string, string>): Uint8Array {
  let end = 0;
  const header: Record<string, unknown> = metadata === undefined ? {} : { __metadata__: metadata };
  for (const [name, { dtype, shape, bytes }] of Object.entries(entries)) {
    header[name] = { dtype, shape, data_offsets: [end, end + bytes] };
    end += bytes;
  }
  return raw(JSON.stringify(header), end);
}

function index(map: Record<string, unknown>): Uint8Array {
  return encoder.encode(JSON.stringify({ metadata: { total_size: 1 }, weight_map: map }, null, 2));
}

async function code(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    return `${(error as { code?: string }).code}: ${(error as Error).message}`;
  }
  return 'ok';
}

const lone = (bytes: Uint8Array) => openSafetensors(loneSource(bytes, 'model.safetensors'));

describe('one file', () => {
  test('every dtype of the format: name, shape, place, size', async () => {
    const bits: Record<string, number> = {
      ...{ BOOL: 8, F4: 4, F6_E2M3: 6, F6_E3M2: 6, U8: 8, I8: 8, F8_E5M2: 8, F8_E4M3: 8, F8_E8M0: 8, F8_E4M3FNUZ: 8 },
      ...{
        F8_E5M2FNUZ: 8,
        I16: 16,
        U16: 16,
        F16: 16,
        BF16: 16,
        I32: 32,
        U32: 32,
        F32: 32,
        C64: 64,
        F64: 64,
        I64: 64,
        U64: 64,
      },
    };
    const entries = Object.fromEntries(
      Object.entries(bits).map(([dtype, width]) => [`w.${dtype}`, { dtype, shape: [3, 8], bytes: 3 * width }]),
    );
    const bytes = file(entries, { format: 'pt' });
    const model = await lone(bytes);
    assert.equal(model.container, 'safetensors');
    assert.deepEqual(Object.fromEntries(model.metadata), { format: { type: 'string', value: 'pt' } });
    let at = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
    for (const [name, { dtype, shape, bytes: size }] of Object.entries(entries)) {
      assert.deepEqual(model.tensors.get(name), { name, format: dtype, shape, source: 0, offset: at, bytes: size });
      at += size;
    }
    assert.equal(model.tensors.size, Object.keys(bits).length);
  });

  test('order in the header is free; scalars, empty tensors and padding behind the header are allowed', async () => {
    const header =
      '{"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},' +
      '"none":{"dtype":"F16","shape":[0,7],"data_offsets":[4,4]}}      ';
    const model = await lone(raw(header, 12));
    assert.deepEqual(
      [...model.tensors.values()].map(({ name, bytes }) => [name, bytes]),
      [
        ['b', 8],
        ['a', 4],
        ['none', 0],
      ],
    );
    assert.equal((await lone(raw('{}', 0))).tensors.size, 0);
  });

  test('a header whose length begins like a brace is a header', async () => {
    const header = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.padEnd(0x7b);
    const bytes = raw(header, 4);
    assert.equal(bytes[0], 0x7b);
    assert.equal((await lone(bytes)).tensors.size, 1);
  });

  test('names that are special to JavaScript are names', async () => {
    const bytes = file({
      constructor: { dtype: 'U8', shape: [1], bytes: 1 },
      toString: { dtype: 'U8', shape: [2], bytes: 2 },
    });
    assert.deepEqual([...(await lone(bytes)).tensors.keys()], ['constructor', 'toString']);
    assert.match(await code(lone(raw('{"a":{"dtype":"toString","shape":[],"data_offsets":[0,0]}}', 0))), /^refused: /);
    const proto = '{"__proto__":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}';
    assert.deepEqual([...(await lone(raw(proto, 1))).tensors.keys()], ['__proto__']);
  });

  const entry = (fields: string) => `{"a":{${fields}}}`;
  const broken: readonly (readonly [what: string, header: string, dataBytes: number, message: RegExp])[] = [
    [
      'bytes behind the tensors',
      entry('"dtype":"U8","shape":[4],"data_offsets":[0,4]'),
      5,
      /^corrupt_file: .*end at byte/,
    ],
    [
      'a hole at the start',
      entry('"dtype":"U8","shape":[4],"data_offsets":[1,5]'),
      5,
      /^corrupt_file: .*hole.*the header/,
    ],
    ['no dtype', entry('"shape":[4],"data_offsets":[0,4]'), 4, /^corrupt_file: .*tensor a: dtype missing/],
    ['no shape', entry('"dtype":"U8","data_offsets":[0,4]'), 4, /^corrupt_file: .*tensor a: shape missing/],
    ['no offsets', entry('"dtype":"U8","shape":[4]'), 4, /^corrupt_file: .*tensor a: data_offsets missing/],
    [
      'three offsets',
      entry('"dtype":"U8","shape":[4],"data_offsets":[0,4,4]'),
      4,
      /^corrupt_file: .*data_offsets \[0,4,4\]/,
    ],
    [
      'a shape of strings',
      entry('"dtype":"U8","shape":["4"],"data_offsets":[0,4]'),
      4,
      /^corrupt_file: .*shape \["4"\]/,
    ],
    [
      'a shape past 2^53',
      entry('"dtype":"U8","shape":[1e300],"data_offsets":[0,4]'),
      4,
      /^corrupt_file: .*shape \[1e\+300\]/,
    ],
    [
      'a shape whose product is past every number',
      entry(`"dtype":"U8","shape":[${Array(80).fill(2 ** 50)}],"data_offsets":[0,4]`),
      4,
      /^corrupt_file: .*takes Infinity bytes/,
    ],
    ['half a byte', entry('"dtype":"F4","shape":[3],"data_offsets":[0,1]'), 1, /^corrupt_file: .*takes 1.5 bytes/],
    ['a tensor that is a number', '{"a":1}', 0, /^corrupt_file: .*tensor a: 1; expected an object/],
    [
      'a tensor without a name',
      '{"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}',
      1,
      /^corrupt_file: .*without a name/,
    ],
    ['metadata that is no text', '{"__metadata__":{"a":1}}', 0, /^corrupt_file: .*__metadata__, a/],
    ['metadata that is a list', '{"__metadata__":[]}', 0, /^corrupt_file: .*__metadata__/],
    [
      'a field twice',
      entry('"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]'),
      1,
      /^corrupt_file: .*"dtype".*twice/,
    ],
    [
      'a name twice, spelled differently',
      '{"ab":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\\u0061b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
      2,
      /^corrupt_file: .*"ab" is there twice/,
    ],
    [
      'a field nobody knows',
      entry('"dtype":"U8","shape":[1],"data_offsets":[0,1],"scale":2'),
      1,
      /^refused: .*tensor a.*scale/,
    ],
    ['a dtype nobody knows', entry('"dtype":"F77","shape":[1],"data_offsets":[0,4]'), 4, /^refused: .*tensor a.*F77/],
  ];
  for (const [what, header, dataBytes, message] of broken) {
    test(`${what}: a named error`, async () => {
      assert.match(await code(lone(raw(header, dataBytes))), message);
    });
  }

  test('a header that is not UTF-8 is corrupt', async () => {
    const bytes = raw('{"#":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1);
    bytes[bytes.indexOf(0x23)] = 0xff;
    assert.match(await code(lone(bytes)), /^corrupt_file: .*UTF-8/);
  });

  test('equal values, a name as a value and escapes are not taken for a name twice', async () => {
    const header =
      '{"__metadata__":{"a":"a","b":"a\\":","c":"\\\\"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},' +
      '"x\\"{[":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}';
    assert.deepEqual([...(await lone(raw(header, 2))).tensors.keys()], ['a', 'x"{[']);
  });
});

describe('an index', () => {
  const shards = {
    'one.safetensors': file({ a: { dtype: 'F32', shape: [2], bytes: 8 } }, { format: 'pt' }),
    'two.safetensors': file({
      b: { dtype: 'BF16', shape: [3], bytes: 6 },
      extra: { dtype: 'U8', shape: [1], bytes: 1 },
    }),
  };
  const map = { a: 'one.safetensors', b: 'two.safetensors' };

  test('opens every shard once, and closes all; a tensor that the index leaves out is not lost', async () => {
    const folder = memoryFolder({ ...shards, [INDEX]: index(map) });
    const model = await openSafetensors(folder.source(INDEX));
    assert.deepEqual(
      [...model.tensors.values()].map(({ name, source }) => [name, model.sources[source].name]),
      [
        ['a', 'one.safetensors'],
        ['b', 'two.safetensors'],
        ['extra', 'two.safetensors'],
      ],
    );
    assert.equal(model.metadata.get('format')?.value, 'pt');
    assert.equal(folder.open.length, 3);
    await model.close();
    assert.deepEqual(folder.open, []);
  });

  const broken: Record<string, { files: Record<string, Uint8Array>; message: RegExp }> = {
    'a missing shard': {
      files: { 'one.safetensors': shards['one.safetensors'], [INDEX]: index(map) },
      message: /two\.safet/,
    },
    'a tensor in another shard': {
      files: { ...shards, [INDEX]: index({ a: 'two.safetensors', b: 'one.safetensors' }) },
      message: /tensor a is in one\.safetensors; expected in two/,
    },
    'a tensor in no shard': {
      files: { ...shards, [INDEX]: index({ ...map, c: 'one.safetensors' }) },
      message: /tensor c is in no file/,
    },
    'a tensor in two shards': {
      files: { ...shards, 'two.safetensors': shards['one.safetensors'], [INDEX]: index(map) },
      message: /tensor a is in one\.safetensors and in two/,
    },
    'an empty map': { files: { [INDEX]: index({}) }, message: /weight_map is empty/ },
    'no map': { files: { [INDEX]: encoder.encode('{"model_type":"llama"}') }, message: /without a weight_map/ },
    'a number for a file': { files: { [INDEX]: index({ a: 1 }) }, message: /weight_map gives 1 for a/ },
    'broken JSON': { files: { [INDEX]: encoder.encode('{"weight_map":{') }, message: /not JSON/ },
    'a tensor twice in the map': {
      files: { ...shards, [INDEX]: encoder.encode('{"weight_map":{"a":"one.safetensors","a":"one.safetensors"}}') },
      message: /"a" is there twice/,
    },
  };
  for (const [what, { files, message }] of Object.entries(broken)) {
    test(`${what} is corrupt, and only the index stays open`, async () => {
      const folder = memoryFolder(files);
      const found = await code(openSafetensors(folder.source(INDEX)));
      assert.match(found, /^corrupt_file: /);
      assert.match(found, message);
      assert.deepEqual(folder.open, [INDEX]);
    });
  }

  test('no entry leaves the folder, on any system or as a URL, though the file is there', async () => {
    const outside = shards['one.safetensors'];
    const names = [
      '../x',
      '/x',
      'a/x',
      '..\\x',
      'C:\\x',
      'c:x',
      '..',
      '.',
      '',
      'x\u0000',
      '%2e%2e%2fx',
      'https://host/x',
      'x?y',
      'x#y',
    ];
    for (const name of names) {
      const folder = memoryFolder({ [name]: outside, [INDEX]: index({ a: name }) });
      assert.match(
        await code(openSafetensors(folder.source(INDEX))),
        /^corrupt_file: .*same folder/,
        JSON.stringify(name),
      );
      assert.deepEqual(
        folder.reads.filter(([file]) => file !== INDEX),
        [],
      );
    }
  });

  test('an index without its folder says so', async () => {
    assert.match(await code(openSafetensors(loneSource(index(map), INDEX))), /^source: .*2 files/);
  });
});
