/**
 * The scheduler over a GPU that draws tokens: the same answers as with the host's draws, whoever is beside, memory that does
 * not grow, and a device that is lost in the middle. A model without layers serves where only the way of tokens counts.
 */

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { type GpuExecutable, gpuBackend } from '../../src/backend/gpu/backend.ts';
import { Gpu } from '../../src/backend/gpu/device.ts';
import { uniform } from '../../src/backend/random.ts';
import type { SamplerSettings } from '../../src/backend/sampling.ts';
import { DeviceLostError, NonFiniteError } from '../../src/errors.ts';
import { memorySource } from '../../src/format/source.ts';
import type { Plan } from '../../src/plan/plan.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { f32Weight, type Tiny, tinyGraph, tinyPlan } from '../conformance/support/tiny-graph.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { type AddOptions, promptOf, SchedulerBench } from '../support/scheduler-bench.ts';

const VOCABULARY = 97;
const HIDDEN = 32;
const CONTEXT = 512;

/** Logits follow from the last token alone. @param damaged a token whose logits are not finite */
function chain(damaged?: number): Tiny {
  const table = Float32Array.from({ length: VOCABULARY * HIDDEN }, (_, i) => uniform(1, i) - 0.5);
  if (damaged !== undefined) table[damaged * HIDDEN + 3] = Number.NaN;
  const head = Float32Array.from({ length: VOCABULARY * HIDDEN }, (_, i) => 8 * (uniform(2, i) - 0.5));
  return tinyGraph({
    rows: VOCABULARY,
    inputs: { x: table },
    operations: [{ kind: 'head', layer: 0, input: 'x', weight: 'head', output: 'logits' }],
    widths: { logits: VOCABULARY },
    output: 'logits',
    weights: { head: f32Weight(head, VOCABULARY, HIDDEN) },
  });
}

interface Made {
  readonly executable: GpuExecutable;
  readonly plan: Plan;
}

async function make(gpu: Gpu, tiny: Tiny): Promise<Made> {
  const plan = tinyPlan(tiny, { device: 'gpu', context: CONTEXT, batch: 32, sessions: 8 });
  const executable = await gpuBackend({ gpu }).prepare({ ...tiny, plan, sources: [memorySource(tiny.bytes)] });
  return { executable: executable as GpuExecutable, plan };
}

/** @param draws whether the device draws; else the host does */
function benchOf({ executable, plan }: Made, draws = true) {
  return new SchedulerBench(draws ? executable : { run: (step) => executable.run(step) }, {
    context: plan.context,
    promptRows: plan.maxRows.prompt,
    pages: plan.cache.pages,
    vocabulary: VOCABULARY,
  });
}

const greedy = {
  temperature: 0,
  topK: 0,
  topP: 1,
  minP: 0,
  repeatPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
} satisfies Partial<SamplerSettings>;

/** Every way of drawing, with and without what looks back. */
const ways: readonly AddOptions['sampling'][] = [
  greedy,
  { ...greedy, repeatPenalty: 1.3, presencePenalty: 0.5, penaltyWindow: 20 },
  { ...greedy, temperature: 1 },
  { ...greedy, temperature: 0.8, topK: 20, topP: 0.9 },
  { ...greedy, temperature: 1.2, minP: 0.05, frequencyPenalty: 0.3, logitBias: [[5, -Infinity]] },
  // More than the device takes.
  { ...greedy, logitBias: Array.from({ length: 1025 }, (_, id) => [id % VOCABULARY, 0] as const) },
];

let made: Made;

before(async () => {
  made = await make(await gpuTestDevice(), chain());
});

after(async () => {
  await made?.executable.dispose();
  await closeGpuTestDevice();
});

test('requests of every kind get the tokens that the host draws for them alone', async () => {
  const asked = Array.from({ length: 18 }, (_, id) => ({
    prompt: promptOf(id, 1 + ((id * 11) % 80)),
    more: { maxTokens: 10 + ((id * 17) % 60), sampling: ways[id % ways.length] },
  }));
  const bench = benchOf(made);
  for (const [id, { prompt, more }] of asked.entries()) {
    bench.add(id, prompt, more);
    await bench.turns(id % 3);
  }
  await bench.drain();
  for (const [id, { prompt, more }] of asked.entries()) {
    const alone = benchOf(made, false);
    alone.add(id, prompt, more);
    await alone.drain();
    assert.deepEqual(bench.tokens.get(id), alone.tokens.get(id), `request ${id}`);
    assert.equal(bench.ends.get(id), 'length');
  }
});

test('what is not finite fails its request alone, and names the layer', async () => {
  const damaged = 40;
  const other = await make(await gpuTestDevice(), chain(damaged));
  try {
    const bench = benchOf(other);
    // The prompt of request 1 ends in the damaged token; others may come to it, but none begins with it.
    bench.add(0, [1, 2, 3], { sampling: { ...greedy, logitBias: [[damaged, -Infinity]] } });
    bench.add(1, [4, 5, damaged], { sampling: greedy });
    bench.add(2, [6], { sampling: { ...greedy, logitBias: [[damaged, 1000]] } });
    await bench.drain();
    assert.equal(bench.ends.get(0), 'length');
    assert.equal(bench.tokens.get(0)?.length, 40);
    const [first, second] = [bench.ends.get(1), bench.ends.get(2)] as NonFiniteError[];
    assert.ok(first instanceof NonFiniteError && second instanceof NonFiniteError);
    assert.match(first.message, /^step 0, prompt positions 0 to 2: the embedding: a value is not finite/);
    assert.match(second.message, /^step 1, position 1: the embedding: a value is not finite/);
    assert.deepEqual(bench.tokens.get(2), [damaged]);
  } finally {
    await other.executable.dispose();
  }
});

test('thousands of steps make no buffer that the first few did not make', async () => {
  const { device } = await gpuTestDevice();
  const { createBuffer } = device;
  let buffers = 0;
  Object.defineProperty(device, 'createBuffer', {
    configurable: true,
    value: (descriptor: GPUBufferDescriptor) => {
      buffers++;
      return createBuffer.call(device, descriptor);
    },
  });
  try {
    const bench = benchOf(made);
    const timeline = bench.timeline();
    for (let id = 0; id < 5; id++) {
      timeline.rewind(0);
      bench.add(id, promptOf(id, 12), { maxTokens: 490, sampling: ways[id], timeline });
      await bench.drain();
      assert.equal(bench.tokens.get(id)?.length, 490);
    }
    assert.ok(made.executable.drawer !== undefined && made.executable.drawer.readbacks <= 3);
    assert.ok(buffers <= 3, `${buffers} buffers were made`);
  } finally {
    Reflect.deleteProperty(device, 'createBuffer');
  }
});

describe('a lost device', () => {
  test('is told to each request in the middle of its answer, and the model can be loaded again', async () => {
    const gpu = await Gpu.open(nodePlatform);
    const lost = await make(gpu, chain());
    const bench = benchOf(lost);
    for (let id = 0; id < 3; id++) bench.add(id, promptOf(id, 20), { sampling: ways[id * 2 + 1], maxTokens: 400 });
    while ((bench.tokens.get(2)?.length ?? 0) < 5) await bench.scheduler.turn();
    gpu.device.destroy();
    await bench.drain();
    for (let id = 0; id < 3; id++) {
      const error = bench.ends.get(id);
      assert.ok(error instanceof DeviceLostError, String(error));
      assert.ok((bench.tokens.get(id)?.length ?? 0) < 400);
    }
    // Whoever comes later hears of it, too.
    bench.add(3, promptOf(3, 20), { sampling: greedy });
    await bench.drain();
    assert.ok(bench.ends.get(3) instanceof DeviceLostError);
    await lost.executable.dispose();

    const other = await Gpu.open(nodePlatform);
    const found = await make(other, chain());
    const again = benchOf(found);
    again.add(0, promptOf(0, 20), { sampling: ways[1], maxTokens: 40 });
    await again.drain();
    assert.equal(again.tokens.get(0)?.length, 40);
    const told = bench.tokens.get(0)?.slice(0, 40);
    assert.deepEqual(again.tokens.get(0)?.slice(0, told?.length), told);
    await found.executable.dispose();
    other.close();
  });
});
