/** A model whose experts come to the GPU out of its file, through the engine, whose worker opens that file by itself. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import '../support/gpu.ts';
import { SourceError } from '../../src/errors.ts';
import { openModelFile } from '../../src/format/open.ts';
import type { ByteSource, FileAddress } from '../../src/format/source.ts';
import { load } from '../../src/index.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { relativeRms } from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

const path = familyFile('qwen3moe', 'model.gguf');
const expected = readSafetensors(familyFile('qwen3moe', 'expected.safetensors'));

/** Weights are BF16 and F32 and the cache is f32: only the order of sums is left. */
const MOST_RMS = 4e-6;
/** Two experts of a token in three layers are at most half of the three times eight. */
const TOKENS = [...i32Of(expected, 'tokens')].slice(0, 2);
const options = { context: 64, batch: 32, cache: 'f32', threads: 1 } as const;

/** How often each expert is used by {@link TOKENS}. */
async function usesOf(): Promise<readonly Float64Array[]> {
  const model = await load(path, { ...options, device: 'cpu' });
  try {
    const uses: Float64Array[] = [];
    const recording = await model.recordRouting(({ ids, layers, used }) => {
      ids.forEach((id, at) => {
        (uses[Math.floor(at / used) % layers] as Float64Array)[id]++;
      });
    });
    const { layers, experts } = recording.shape;
    for (let layer = 0; layer < layers; layer++) uses.push(new Float64Array(experts));
    await model.logits(TOKENS);
    await recording.stop();
    return uses;
  } finally {
    await model.dispose();
  }
}

/** Logits by experts that have slots for good, all that the tokens use: out of the file, if it can be read. */
async function logitsOf(file: ByteSource): Promise<{ readonly logits: Float32Array; readonly faults: Error[] }> {
  const faults: Error[] = [];
  const model = await load(
    { file, fileName: 'moe.gguf' },
    {
      device: 'gpu',
      gpuLayers: -1,
      ...options,
      expertCache: 'static:50%',
      expertUses: await usesOf(),
      onFault: (error) => faults.push(error),
    },
  );
  try {
    const logits = await model.logits(TOKENS);
    const stats = await model.expertStats();
    for (const { hits, picks } of stats?.prompt.layers ?? []) assert.equal(hits, picks);
    return { logits, faults };
  } finally {
    await model.dispose();
  }
}

function checkLogits(found: Float32Array): void {
  const error = relativeRms(found, f32Of(expected, 'logits').subarray(0, found.length));
  assert.ok(error <= MOST_RMS, `a relative RMS of ${error}`);
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
    const { logits, faults } = await logitsOf(homeless);
    checkLogits(logits);
    assert.equal(faults.length, 0);
  }));

test('a file that is not what it was is told once, by name, and memory serves', () =>
  withFile(async (file, fileAddress) => {
    const stale = { ...file, fileAddress: { ...fileAddress, modifiedNs: 0n } };
    const { logits, faults } = await logitsOf(stale);
    checkLogits(logits);
    assert.equal(faults.length, 1);
    const [fault] = faults;
    assert.ok(fault instanceof SourceError);
    assert.match(
      fault.message,
      /qwen3moe.model\.gguf: found \d+ bytes.* written 1970.*; from now on experts are copied to the GPU from memory, which is slower$/,
    );
  }));
