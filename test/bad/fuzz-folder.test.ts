/**
 * Damage done at random to what a safetensors folder says of itself, its configuration, tensors and tokenizer: whatever comes
 * out is a model or a named error, and nothing is sized by what is merely claimed.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { CorruptFileError, Refusal } from '../../src/errors.ts';
import { isJsonObject, type JsonObject, type JsonValue } from '../../src/format/json.ts';
import type { ModelFile, TensorInfo } from '../../src/format/model-file.ts';
import { openModelFile } from '../../src/format/open.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import { tokenizerOf } from '../../src/tokenizer/index.ts';
import { random } from '../conformance/support/blocks.ts';
import { checkpointFile, checkpoints } from '../support/families.ts';
import { nodeModelSource } from '../support/node-source.ts';

const values: readonly JsonValue[] = [
  ...[null, true, false, '', 'x', 'model.*', 're:(.*)*x', [], {}, [[]], [1, 2], ['a'], { a: { b: [] } }],
  ...[0, -1, 1, 1.5, 7, 2 ** 31, 2 ** 53, 1e300, -1e300, 5e-324],
];
const formats = ['F32', 'BF16', 'F16', 'U8', 'F8_E4M3', 'F8_E8M0', 'I64', 'BOOL'];

class Dice {
  readonly #next: () => number;

  constructor(seed: number) {
    this.#next = random(seed);
  }

  below(count: number): number {
    return Math.floor(this.#next() * count);
  }

  of<T>(list: readonly T[]): T {
    return list[this.below(list.length)] as T;
  }
}

/** The value with something in it, at some depth, replaced, removed or given another name. */
function damaged(value: JsonObject, dice: Dice): JsonObject {
  const name = dice.of(Object.keys(value));
  if (name === undefined) return { odd: dice.of(values) };
  const { [name]: found, ...others } = value;
  if (isJsonObject(found) && dice.below(3) > 0) return { ...value, [name]: damaged(found, dice) };
  const kind = dice.below(4);
  if (kind === 0) return others;
  if (kind === 1) return { ...others, [`${name}x`]: found as JsonValue };
  return { ...value, [name]: dice.of(values) };
}

function damagedTensors(tensors: ReadonlyMap<string, TensorInfo>, dice: Dice): ReadonlyMap<string, TensorInfo> {
  const copy = new Map(tensors);
  const tensor = dice.of([...tensors.values()]);
  copy.delete(tensor.name);
  const shape = tensor.shape.map((size) => (dice.below(2) === 0 ? size : dice.of([0, 1, 3, 2 ** 26, size * 2])));
  const changed = dice.of<TensorInfo | undefined>([
    undefined,
    { ...tensor, shape },
    { ...tensor, shape: tensor.shape.slice(1) },
    { ...tensor, shape: [...tensor.shape, 1] },
    { ...tensor, format: dice.of(formats) },
    { ...tensor, name: tensor.name.replace(/\d+/, dice.of(['0', '1', '99999999999', '-1', ''])) },
    { ...tensor, name: `${tensor.name}${dice.of(['_scale', '_scale_2', '_packed', '.weight', ''])}` },
  ]);
  if (changed !== undefined) copy.set(changed.name, changed);
  return copy;
}

/** What comes of it. */
function outcome(file: ModelFile, what: string): 'read' | 'corrupt' | 'refused' {
  try {
    const { spec } = readModel(file);
    buildGraph(spec);
    tokenizerOf(file, spec.vocabulary);
    return 'read';
  } catch (error) {
    assert.ok(error instanceof CorruptFileError || error instanceof Refusal, `${what}: ${(error as Error).stack}`);
    assert.ok(error.message.length < 3000, `${what}: a message of ${error.message.length} characters`);
    return error instanceof Refusal ? 'refused' : 'corrupt';
  }
}

const tokenizerFile = (name: string) =>
  JSON.parse(readFileSync(new URL(`../fixtures/families/${name}`, import.meta.url), 'utf8')) as JsonObject;

for (const checkpoint of checkpoints) {
  test(`${checkpoint}: damage to its configuration, its tensors and its tokenizer`, async () => {
    const opened = await openModelFile(await nodeModelSource(checkpointFile(checkpoint, 'model.safetensors')));
    await opened.close();
    const folder = {
      ...opened.folder,
      name: 'a folder',
      tokenizer: tokenizerFile('tokenizer.json'),
      tokenizerConfig: tokenizerFile('tokenizer_config.json'),
    };
    assert.equal(outcome({ ...opened, folder }, 'whole'), 'read');
    const counts = { read: 0, corrupt: 0, refused: 0 };
    for (let round = 0; round < 300; round++) {
      const dice = new Dice(round);
      const config = damaged(folder.config as JsonObject, dice);
      const file = dice.of<ModelFile>([
        { ...opened, folder: { ...folder, config } },
        { ...opened, folder: { ...folder, config: { ...folder.config, quantization_config: config } } },
        { ...opened, folder, tensors: damagedTensors(opened.tensors, dice) },
        { ...opened, folder: { ...folder, tokenizer: damaged(folder.tokenizer, dice) } },
        { ...opened, folder: { ...folder, tokenizerConfig: damaged(folder.tokenizerConfig, dice) } },
        { ...opened, folder: { ...folder, generationConfig: damaged({ eos_token_id: 1 }, dice) } },
      ]);
      counts[outcome(file, `round ${round}`)]++;
    }
    assert.ok(counts.corrupt > 30 && counts.refused > 30 && counts.read > 30, JSON.stringify(counts));
  });
}
