/** What `explain` must say of a plan: every figure of it, layers that are served alike together, and nothing made up. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { buildGraph } from '../model/decoder.ts';
import type { FeedForwardSpec, LayerSpec, ModelSpec } from '../model/spec.ts';
import { explain } from './explain.ts';
import type { Plan, PlannedWeight } from './plan.ts';

const norm = { epsilon: 1e-5 };
const dense: FeedForwardSpec = { kind: 'dense', norm, inner: 256, activation: 'silu' };
const moe: FeedForwardSpec = {
  kind: 'moe',
  norm,
  moe: {
    experts: 16,
    used: 4,
    inner: 128,
    activation: 'silu',
    router: { gating: 'sigmoid', selectionBias: true, normalise: true, scale: 1 },
    shared: { inner: 128, gated: false },
  },
};

function layer(feedForward: FeedForwardSpec): LayerSpec {
  const bias = { query: false, key: false, value: false, output: false };
  const rope = { pairing: 'half', dimensions: 32, base: 10_000, scaling: { kind: 'none' } } as const;
  return {
    attention: { norm, heads: 4, kvHeads: 2, headDim: 32, valueDim: 32, scale: 0.17, rope, bias },
    feedForward,
  };
}

/** A plan over `layers` layers, the first dense; `valueFormats[i]` is the format of layer i's value projection. */
function samplePlan(valueFormats: readonly string[], changes: Partial<Plan> = {}): Plan {
  const spec: ModelSpec = {
    architecture: 'glm4moe',
    vocabulary: 512,
    hidden: 128,
    trainedContext: 4096,
    layers: valueFormats.map((_, index) => layer(index === 0 ? dense : moe)),
    finalNorm: norm,
    head: { tied: false },
  };
  const { operations } = buildGraph(spec);
  const weights: PlannedWeight[] = [];
  const add = (name: string, format: string, shape: readonly number[], layout?: string) =>
    weights.push({ name, format, shape, bytes: 1000, device: 'cpu', layout, arena: 0 });
  add('embedding', 'Q6_K', [512, 128]);
  add('head', 'Q8_0', [512, 128]);
  valueFormats.forEach((format, index) => {
    add(`layers.${index}.attention.norm`, 'F32', [128]);
    for (const name of ['query', 'key', 'output'])
      add(`layers.${index}.attention.${name}`, 'Q4_K', [128, 128], 'interleave4');
    add(`layers.${index}.attention.value`, format, [64, 128]);
    const prefix = index === 0 ? `layers.${index}.feedForward` : `layers.${index}.moe`;
    for (const name of ['gate', 'up', 'down']) add(`${prefix}.${name}`, 'Q4_K', [128, 128], 'interleave4');
  });
  const formatOf = new Map(weights.map(({ name, format }) => [name, format.toLowerCase()]));
  return {
    architecture: 'glm4moe',
    device: 'cpu',
    parts: [
      {
        device: 'cpu',
        first: 0,
        end: valueFormats.length,
        features: ['simd', 'relaxed-simd'],
        bytes: { weights: 26_100_000, cache: 5_242_880, buffers: 3_131_072, total: 34_473_952 },
        memoryBytes: 15_600_000_000,
      },
    ],
    threads: 2,
    features: ['simd', 'relaxed-simd'],
    context: 4096,
    contextReason: 'the trained length',
    maxRows: { prompt: 512, step: 64, wanted: 64 },
    cache: { type: 'f16', pages: 64, pageRows: 64, bytes: 5_242_880 },
    arenas: [8_388_608, 8_388_608, 2_000_000],
    arenaBytes: 8_388_608,
    operations: operations.map(({ kind, layer: at, output }) => {
      const format = formatOf.get(output);
      const rows =
        format === undefined
          ? { prompt: `${kind}-f32`, step: `${kind}-f32` }
          : { prompt: `${kind}-prompt-${format}`, step: `${kind}-step-${format}` };
      return { layer: at, kind, output, device: 'cpu', rows };
    }),
    weights,
    buffers: [
      { name: 'values', bytes: 3_000_000, device: 'cpu', lifetime: 'step' },
      { name: 'logits', bytes: 131_072, device: 'cpu', lifetime: 'model' },
    ],
    ignored: [],
    bytes: { weights: 26_100_000, cache: 5_242_880, buffers: 3_131_072, total: 34_473_952 },
    memoryBytes: 15_600_000_000,
    bytesPerToken: 9_412_345,
    reproducible: true,
    ...changes,
  };
}

const five = ['Q6_K', 'Q6_K', 'Q4_K', 'Q6_K', 'Q6_K'];

test('every figure of the plan is said, with its unit', () => {
  const text = explain(samplePlan(five));
  for (const said of [
    'glm4moe, 5 layers',
    'cpu, 2 threads, simd, relaxed-simd',
    '4,096 tokens: the trained length',
    'up to 512 of a prompt, 64 of decoding',
    'f16, 64 pages of 64 positions',
    '9.41 MB of weights for each decoded token',
    '26.1 MB',
    '5.24 MB',
    '3.13 MB',
    '34.5 MB',
    'of 15.6 GB that may be used',
    'values 3 MB, logits 131 kB',
    'in 3 arenas: 2 × 8.39 MB, 2 MB',
  ]) {
    assert.ok(text.includes(said), `${said} is missing in:\n${text}`);
  }
});

test('layers served alike stand together, one that differs in one format stands alone', () => {
  const lines = explain(samplePlan(five))
    .split('\n')
    .map((line) => line.trim());
  for (const title of ['before the layers', 'layer 0', 'layers 1, 3, 4', 'layer 2', 'after the layers']) {
    assert.ok(lines.includes(title), `${title} is missing in:\n${lines.join('\n')}`);
  }
  assert.equal(lines.filter((line) => /^layers? \d/.test(line)).length, 3);
});

test('each kernel of the plan is named, with the format it serves', () => {
  const plan = samplePlan(five);
  const text = explain(plan);
  for (const { rows } of plan.operations) {
    assert.ok(text.includes(rows.step) && text.includes(rows.prompt), `${rows.step} or ${rows.prompt} is missing`);
  }
  assert.match(text, /linear +value +Q6_K +linear-step-q6_k +linear-prompt-q6_k$/m);
  assert.match(text, /head +Q8_0 +head-f32/);
  assert.match(text, /embed +Q6_K +embed-f32/);
  assert.match(text, /norm +attention, feedForward +norm-f32/);
  assert.match(text, /rope +query, key +rope-f32/);
});

test('kernels that serve prompts and decoding alike stand in one column', () => {
  const plan = samplePlan(five);
  const operations = plan.operations.map((o) => ({ ...o, rows: { prompt: o.rows.step, step: o.rows.step } }));
  const text = explain({ ...plan, operations });
  assert.match(text, /linear +value +Q6_K +linear-step-q6_k$/m);
  assert.doesNotMatch(text, /the same$|decoding +prompts/m);
});

test("the head of a model that ties it to the embedding has the embedding's format", () => {
  const plan = samplePlan(five);
  const weights = plan.weights.filter(({ name }) => name !== 'head');
  assert.match(explain({ ...plan, weights }), /head +Q6_K +head-f32/);
});

test('formats are summed, and repacking is named', () => {
  const text = explain(samplePlan(five));
  assert.match(text, /Q4_K +30 kB +30 weights, repacked: interleave4/);
  assert.match(text, /Q6_K +5 kB +5 weights, as in the file/);
});

test("what runs on another device than the plan's says so", () => {
  const plan = samplePlan(five);
  const operations = plan.operations.map((o) => (o.kind === 'moe' ? { ...o, device: 'reference' as const } : o));
  assert.match(explain({ ...plan, operations }), /moe-f32 +the same, on reference/);
  assert.doesNotMatch(explain(plan), /on reference/);
});

test('ignored names stand with their reason, each reason once', () => {
  const names = Array.from({ length: 20 }, (_, index) => `blk.5.tensor${index}.weight`);
  const ignored = [
    ...names.map((name) => ({ name, reason: 'the MTP layer is not used yet' })),
    { name: 'glm4moe.odd', reason: 'asked for' },
  ];
  const text = explain(samplePlan(five, { ignored }));
  assert.equal(text.match(/the MTP layer is not used yet/g)?.length, 1);
  assert.match(text, /blk\.5\.tensor0\.weight, .* and 16\s+more: the MTP/);
  assert.match(text, /glm4moe\.odd: asked for/);
  assert.doesNotMatch(explain(samplePlan(five)), /ignored/);
});

test('a plan that is not reproducible says so', () => {
  assert.match(explain(samplePlan(five, { reproducible: false })), /reproducible +not reproducible/);
});

test('what is not known is left out: free memory, arenas', () => {
  const text = explain(samplePlan(five, { memoryBytes: undefined, arenas: [] }));
  assert.doesNotMatch(text, /may be used|arena/);
});

test('no line is wider than 100 columns, however many layers differ', () => {
  const formats = Array.from({ length: 48 }, (_, index) => (index % 3 === 0 ? 'Q6_K' : 'Q4_K'));
  const wide = explain(samplePlan(formats))
    .split('\n')
    .filter((line) => line.length > 100);
  assert.deepEqual(wide, []);
});
