/**
 * Models whose experts are split between the GPU and the CPU are the same models: wherever experts lie, logits are the
 * reference's, for prompts in chunks of any size and for steps of several sequences; and where nothing moves they have the
 * same bits each time, in whatever company.
 */

import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { PAGE_ROWS } from '../../src/backend/backend.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import { random } from '../conformance/support/blocks.ts';
import { sameBits } from '../conformance/support/compare.ts';
import {
  type DeviceModel,
  type DeviceOptions,
  openDevice,
  relativeRms,
  type StepRow,
  stepOf,
  withDevice,
} from '../support/device.ts';
import { familyFile, slackOf } from '../support/families.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { PickCounter } from '../support/pick-counter.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

/** Weights are BF16 and F32 and the cache is f32: only the order of sums is left, on either device. */
const MOST_RMS = 4e-6;
const SEQUENCES = 4;
/** Of each sequence: a prompt, then steps. */
const PROMPT = 40;
const POSITIONS = PROMPT + 8;
/** Experts that a row takes, of all families. */
const USED = 2;
/** Of all. */
const VOCABULARY = 512;

const base: DeviceOptions = { context: PAGE_ROWS, batch: 64, sessions: SEQUENCES, cache: 'f32', threads: 2 };

/** The first of a model stays until the end: kernels live as long as somebody uses them. */
const kept: DeviceModel[] = [];

after(async () => {
  for (const { executable } of kept) await executable.dispose();
  await closeGpuTestDevice();
});

/** Logits by sequence, then position. */
type Logits = readonly Float32Array[][];

const file = (family: string) => familyFile(family, 'model.gguf');

/** Tokens of each sequence; the first begins with those that official logits are known of. */
function tokensOf(family: string): readonly Int32Array[] {
  const known = i32Of(readSafetensors(familyFile(family, 'expected.safetensors')), 'tokens');
  const next = random(11);
  return Array.from({ length: SEQUENCES }, (_, sequence) =>
    Int32Array.from({ length: POSITIONS }, (_, position) =>
      sequence === 0 && position < known.length ? (known[position] as number) : Math.floor(VOCABULARY * next()),
    ),
  );
}

/** One way through all positions of all sequences. */
interface Way {
  /** Of each sequence the chunks that its prompt comes in. */
  readonly chunks: readonly (readonly number[])[];
  /** How many positions of how many sequences a step has. */
  readonly steps: readonly { readonly sequences: number; readonly positions: number }[];
}

const ways: readonly Way[] = [
  {
    chunks: [[PROMPT], [1, PROMPT - 1], [17, 5, 18], [33, 7]],
    steps: [
      { sequences: 1, positions: 1 },
      { sequences: 4, positions: 2 },
      { sequences: 3, positions: 1 },
      { sequences: 2, positions: 3 },
    ],
  },
  {
    chunks: [[8, 8, 8, 8, 8], [PROMPT], [39, 1], [2, 38]],
    steps: [
      { sequences: 4, positions: 1 },
      { sequences: 1, positions: 7 },
      { sequences: 1, positions: 5 },
    ],
  },
];

async function walk({ executable, spec }: DeviceModel, tokens: readonly Int32Array[], way: Way): Promise<Logits> {
  const logits: Float32Array[][] = tokens.map(() => []);
  const run = async (mode: Mode, rows: readonly { readonly sequence: number; readonly position: number }[]) => {
    const named = rows.map(
      ({ sequence, position }): StepRow => ({ sequence, position, token: tokens[sequence]?.[position] as number }),
    );
    const step = stepOf(mode, named, 1);
    const pageTables = [...new Set(rows.map(({ sequence }) => sequence))].map((sequence) => Int32Array.of(sequence));
    const found = await executable.run({ ...step, pageTables });
    for (const [index, { sequence, position }] of rows.entries()) {
      (logits[sequence] as Float32Array[])[position] = found.slice(
        index * spec.vocabulary,
        (index + 1) * spec.vocabulary,
      );
    }
  };
  const at = tokens.map(() => 0);
  const take = (sequence: number, count: number) => {
    const first = at[sequence] as number;
    at[sequence] = first + count;
    return Array.from({ length: count }, (_, index) => ({ sequence, position: first + index }));
  };
  for (const [sequence, chunks] of way.chunks.entries()) {
    for (const count of chunks) await run('prompt', take(sequence, count));
  }
  // Who has most left goes first.
  for (let index = 0; at.some((position) => position < POSITIONS); index++) {
    const { sequences, positions } = way.steps[index % way.steps.length] as Way['steps'][number];
    const order = [...at.keys()]
      .filter((sequence) => (at[sequence] as number) < POSITIONS)
      .sort((a, b) => (at[a] as number) - (at[b] as number) || a - b)
      .slice(0, sequences)
      .sort((a, b) => a - b);
    await run(
      'step',
      order.flatMap((sequence) => take(sequence, Math.min(positions, POSITIONS - (at[sequence] as number)))),
    );
  }
  return logits;
}

function checkLogits(found: Logits, expected: Logits, what: string, slack: number): void {
  for (const [sequence, rows] of expected.entries()) {
    for (const [position, row] of rows.entries()) {
      const error = relativeRms(found[sequence]?.[position] as Float32Array, row);
      assert.ok(
        error <= slack * MOST_RMS,
        `${what}, sequence ${sequence}, position ${position}: a relative RMS of ${error}`,
      );
    }
  }
}

const expectedLogits = new Map<string, Promise<Logits>>();

/** By the reference, which is held against the official logits here. */
function expectedOf(family: string): Promise<Logits> {
  let logits = expectedLogits.get(family);
  if (logits === undefined) {
    const chunks = Array.from({ length: SEQUENCES }, () => [PROMPT]);
    const way = { chunks, steps: [{ sequences: SEQUENCES, positions: POSITIONS - PROMPT }] };
    logits = withDevice(file(family), { ...base, device: 'reference' }, (model) => walk(model, tokensOf(family), way));
    expectedLogits.set(family, logits);
  }
  return logits;
}

/** @param stays whether experts stay where they are, and bits with them */
async function checkModel(model: DeviceModel, family: string, stays: boolean): Promise<void> {
  const { plan, executable } = model;
  const expected = await expectedOf(family);
  const tokens = tokensOf(family);
  assert.equal(plan.reproducible, stays);
  const picks = PickCounter.of(executable);
  let before: Logits | undefined;
  // The second time and the third slots hold what was left there.
  const all = [...ways, ...ways.slice(0, 1)];
  for (const way of all) {
    const found = await walk(model, tokens, way);
    checkLogits(found, expected, JSON.stringify(way.chunks), slackOf(family));
    if (stays && before !== undefined) checkBits(found, before);
    before = found;
  }
  const { hits, misses, passed } = picks;
  const { slots = 0, experts = 0, layers = [] } = plan.experts ?? {};
  assert.equal(hits > 0, slots > 0);
  assert.equal(misses > 0, slots < experts);
  assert.equal(passed > 0, slots < experts);
  // What is told of is where experts are split, and where all of them are on the CPU.
  const { end = 0 } = plan.parts[0] ?? {};
  const onCpu = model.spec.layers.filter(({ feedForward }, layer) => layer >= end && feedForward.kind === 'moe');
  const told = layers.length + onCpu.length;
  assert.equal(hits + misses + passed, all.length * SEQUENCES * POSITIONS * USED * told);
}

function checkBits(found: Logits, before: Logits): void {
  for (const [sequence, rows] of before.entries()) {
    for (const [position, row] of rows.entries()) {
      sameBits(
        found[sequence]?.[position] as Float32Array,
        row,
        `sequence ${sequence}, position ${position}, before and again`,
      );
    }
  }
}

const cases: readonly {
  readonly family: string;
  readonly options: readonly (DeviceOptions & { readonly slots: number })[];
}[] = [
  {
    family: 'qwen3moe',
    options: [
      { cpuMoe: true, slots: 0 },
      { expertCache: 'slru:1', slots: 1 },
      { expertCache: 'static:5', slots: 5 },
      { expertCache: 'lfu:50%', slots: 12 },
      { expertCache: 'slru:23', slots: 23 },
    ],
  },
  {
    family: 'glm4moe',
    options: [
      { cpuMoe: 2, slots: 0 },
      { expertCache: 'static:1', slots: 1 },
      { expertCache: 'slru:7', slots: 7 },
      { expertCache: 'static:15', slots: 15 },
      { expertCache: 'lfu:3', gpuLayers: 2, slots: 3 },
    ],
  },
  // Biases of experts; and a router with rows of its own, beside a dense block.
  { family: 'gpt-oss', options: [{ expertCache: 'static:9', slots: 9 }] },
  { family: 'gemma4-moe', options: [{ expertCache: 'slru:11', slots: 11 }] },
];

for (const { family, options } of cases) {
  describe(family, () => {
    test('the reference has the official logits', async () => {
      const known = f32Of(readSafetensors(familyFile(family, 'expected.safetensors')), 'logits');
      const [own = []] = await expectedOf(family);
      const count = known.length / VOCABULARY;
      assert.ok(count <= PROMPT);
      for (let position = 0; position < count; position++) {
        const error = relativeRms(
          own[position] as Float32Array,
          known.subarray(position * VOCABULARY, (position + 1) * VOCABULARY),
        );
        assert.ok(error <= slackOf(family) * MOST_RMS, `position ${position}: a relative RMS of ${error}`);
      }
    });

    for (const [index, { slots, ...own }] of options.entries()) {
      test(JSON.stringify(own), async () => {
        const model = await openDevice(file(family), { ...base, device: 'gpu', ...own }, await gpuTestDevice());
        try {
          assert.equal(model.plan.experts?.slots, slots);
          await checkModel(model, family, own.expertCache?.startsWith('static') === true);
        } finally {
          if (index === 0) kept.push(model);
          else await model.executable.dispose();
        }
      });
    }
  });
}
