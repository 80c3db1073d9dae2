import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { loneSource } from '../../test/support/memory-source.ts';
import { meta, writeGguf } from './gguf-writer.ts';
import { openModelFile } from './open.ts';

const latin1 = (text: string) => Uint8Array.from(text, (character) => character.charCodeAt(0));

async function message(bytes: Uint8Array, name: string): Promise<string> {
  try {
    await openModelFile(loneSource(bytes, name));
  } catch (error) {
    return `${(error as { code?: string }).code}: ${(error as Error).message}`;
  }
  return 'ok';
}

describe('what a file is', () => {
  test('content decides, not the name', async () => {
    const gguf = writeGguf({ metadata: { a: meta.u32(1) }, tensors: [] });
    const safetensors = latin1('\x3b\0\0\0\0\0\0\0{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}      \0');
    for (const name of ['model.gguf', 'model.safetensors', 'model.bin', 'model']) {
      assert.equal((await openModelFile(loneSource(gguf, name))).container, 'gguf');
      assert.equal((await openModelFile(loneSource(safetensors, name))).container, 'safetensors');
    }
  });

  const strangers: readonly (readonly [string, RegExp])[] = [
    ['', /empty/],
    ['<!DOCTYPE html><html>', /HTML page.*download/],
    ['\n  <HTML><head>', /HTML page/],
    ['<?xml version="1.0"?><Error><Code>AccessDenied</Code>', /XML document.*download/],
    ['version https://git-lfs.github.com/spec/v1\noid sha256:00', /Git LFS pointer.*git lfs pull/],
    ['PK\x03\x04....', /zip archive.*PyTorch/],
    ['\x1f\x8b\x08', /gzip/],
    ['BZh9', /bzip2/],
    ['\xfd7zXZ\0', /xz archive/],
    ['\x28\xb5\x2f\xfd....', /Zstandard/],
    ['7z\xbc\xaf\x27\x1c', /7z archive/],
    ['Rar!\x1a', /RAR/],
    ['\x80\x02}q', /pickle/],
    ['\x89HDF\r\n', /HDF5/],
    ['GGU', /found "GGU".*expected "GGUF"/],
    ['{"model_type":"llama"}', /without a weight_map/],
    ['{not json', /not JSON/],
    ['hello, I am a file with some text in it', /found "hello, I".*68 65 6c/],
    ['\xff\xff\xff\xff\xff\xff\xff\xff\xff', /found "\.{8}"/],
  ];
  for (const [begins, expected] of strangers) {
    test(`${JSON.stringify(begins.slice(0, 24))} is corrupt, called by its name`, async () => {
      const found = await message(latin1(begins), 'model.gguf');
      assert.match(found, /^corrupt_file: model\.gguf: /);
      assert.match(found, expected);
    });
  }

  test('the containers before GGUF are refused by name', async () => {
    for (const [magic, name] of [
      ['lmgg', 'GGML'],
      ['fmgg', 'GGMF'],
      ['tjgg', 'GGJT'],
      ['algg', 'GGLA'],
    ] as const) {
      assert.match(
        await message(latin1(`${magic}\x03\0\0\0`), 'old.bin'),
        new RegExp(`^refused: old\\.bin: a ${name} file`),
      );
    }
  });
});
