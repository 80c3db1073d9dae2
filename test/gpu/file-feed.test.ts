/** A model whose experts come to the GPU out of its file, through the engine, whose worker opens that file by itself. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import '../support/gpu.ts';
import { SourceError } from '../../src/errors.ts';
import { openModelFile } from '../../src/format/open.ts';
import type { ByteSource, FileAddress } from '../../src/format/source.ts';
import { load } from '../../src/index.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { familyFile } from '../support/families.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { i32Of, readSafetensors } from '../support/safetensors.ts';

const path = familyFile('qwen3moe', 'model.gguf');
const expected = readSafetensors(familyFile('qwen3moe', 'expected.safetensors'));

/** All experts in slots, since no memory is said to be short, and they keep what they are filled with: out of the file, if it can be read. */
async function greedy(file: ByteSource): Promise<{ readonly tokens: readonly number[]; readonly faults: Error[] }> {
  const faults: Error[] = [];
  const model = await load(
    { file, fileName: 'moe.gguf' },
    {
      device: 'gpu',
      gpuLayers: -1,
      expertCache: 'static',
      context: 64,
      batch: 32,
      cache: 'f32',
      threads: 1,
      onFault: (error) => faults.push(error),
    },
  );
  try {
    const answer = i32Of(expected, 'greedy').length;
    const session = model.session();
    const prompt = { tokens: [...i32Of(expected, 'tokens')] };
    for await (const part of session.generate(prompt, { temperature: 0, maxTokens: answer, ignoreEos: true })) {
      if (part.type === 'finish') return { tokens: part.tokens, faults };
    }
    return assert.fail('generation ended without a finish');
  } finally {
    await model.dispose();
  }
}

async function withFile(use: (file: ByteSource, address: FileAddress) => Promise<void>): Promise<void> {
  const { file } = await nodePlatform.openSource(path);
  assert.ok(file.fileAddress !== undefined);
  await use(file, file.fileAddress);
}

test('the slots have what is in the file, whatever the homes have', () =>
  withFile(async (file, fileAddress) => {
    const { tensors, close } = await openModelFile(await nodeModelSource(path));
    await close();
    const experts = [...tensors.values()].filter(({ name }) => name.includes('_exps'));
    assert.equal(experts.length, 9);
    // The CPU is given zeros for experts.
    const homeless: ByteSource = {
      ...file,
      fileAddress,
      async readInto(offset, target) {
        await file.readInto(offset, target);
        for (const tensor of experts) {
          const from = Math.max(0, tensor.offset - offset);
          const end = Math.min(target.length, tensor.offset + tensor.bytes - offset);
          if (from < end) target.fill(0, from, end);
        }
      },
    };
    const { tokens, faults } = await greedy(homeless);
    assert.deepEqual(tokens, [...i32Of(expected, 'greedy')]);
    assert.equal(faults.length, 0);
  }));

test('a file that is not what it was is told once, by name, and memory serves', () =>
  withFile(async (file, fileAddress) => {
    const stale = { ...file, fileAddress: { ...fileAddress, modifiedNs: 0n } };
    const { tokens, faults } = await greedy(stale);
    assert.deepEqual(tokens, [...i32Of(expected, 'greedy')]);
    assert.equal(faults.length, 1);
    const [fault] = faults;
    assert.ok(fault instanceof SourceError);
    assert.match(
      fault.message,
      /qwen3moe.model\.gguf: found \d+ bytes.* written 1970.*; from now on experts are copied to the GPU from memory, which is slower$/,
    );
  }));
