import assert from 'node:assert/strict';
import { test } from 'node:test';
import { meta, writeGguf } from './gguf-writer.ts';
import type { MetadataValue } from './model-file.ts';
import { openModelFile } from './open.ts';
import { memorySource } from './source.ts';

const metadata: Record<string, MetadataValue> = {
  'general.architecture': meta.string('none, with ümläuts'),
  'general.alignment': meta.u32(64),
  'a.u8': { type: 'u8', value: 255 },
  'a.i8': { type: 'i8', value: -128 },
  'a.u16': { type: 'u16', value: 65535 },
  'a.i16': { type: 'i16', value: -32768 },
  'a.u32': { type: 'u32', value: 4294967295 },
  'a.i32': { type: 'i32', value: -2147483648 },
  'a.u64': { type: 'u64', value: 2n ** 64n - 1n },
  'a.i64': { type: 'i64', value: -(2n ** 63n) },
  'a.f32': meta.f32(0.5),
  'a.f64': { type: 'f64', value: 0.1 },
  'a.true': meta.bool(true),
  'a.false': meta.bool(false),
  'a.strings': meta.array('string', ['', 'x', 'żółć']),
  'a.floats': meta.array('f32', [1, -2.5]),
  // Long enough that the writer's buffer must grow while it is in the middle of an array.
  'a.many': meta.array(
    'i32',
    Int32Array.from({ length: 100_000 }, (_, i) => i - 50_000),
  ),
};

test('a written file is read back: every type of value, tensors in place and aligned', async () => {
  const tensors = [
    { name: 'odd', format: 'F16', shape: [3], data: Uint8Array.of(1, 2, 3, 4, 5, 6) },
    { name: 'stacked', format: 'Q8_0', shape: [2, 3, 32], data: Uint8Array.from({ length: 204 }, (_, i) => i & 255) },
    { name: 'empty-handed', format: 'F32', shape: [1], data: Uint8Array.of(0, 0, 128, 63) },
  ];
  const source = memorySource(writeGguf({ metadata, tensors }));
  const file = await openModelFile({ file: source, fileName: 'written.gguf' });

  assert.deepEqual([...file.metadata.keys()], Object.keys(metadata));
  for (const [key, { value }] of Object.entries(metadata)) {
    const found = file.metadata.get(key)?.value;
    assert.deepEqual(
      typeof value === 'object' ? Array.from(found as ArrayLike<unknown>) : found,
      typeof value === 'object' ? Array.from(value as ArrayLike<unknown>) : value,
      key,
    );
  }
  assert.deepEqual(
    [...file.tensors.keys()],
    tensors.map(({ name }) => name),
  );
  for (const { name, format, shape, data } of tensors) {
    const info = file.tensors.get(name);
    assert.ok(info);
    assert.deepEqual([info.format, [...info.shape], info.bytes, info.offset % 64], [format, shape, data.length, 0]);
    const bytes = new Uint8Array(info.bytes);
    await source.readInto(info.offset, bytes);
    assert.deepEqual(bytes, data);
  }
});

test('bytes that do not fit the shape are refused', () => {
  const short = { name: 'short', format: 'Q8_0', shape: [1, 64], data: new Uint8Array(67) };
  assert.throws(() => writeGguf({ metadata: {}, tensors: [short] }), /short: 67 bytes were given, .* need 68/);
});
