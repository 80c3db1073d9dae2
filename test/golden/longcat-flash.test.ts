/**
 * LongCat-Flash (arXiv 2509.01322) as data: two blocks of latent attention a layer, experts beside the first feed-forward block
 * whose output is added after the second, and experts that give a row as it is. There is no file format yet that Conclave reads
 * it from, so the spec is written here as its family will read it; official hidden states and logits on the reference, and
 * logits on the CPU.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ReferenceExecutable, referenceBackend } from '../../src/backend/reference/backend.ts';
import { Refusal } from '../../src/errors.ts';
import { memorySource } from '../../src/format/source.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import type { LayerSpec, ModelSpec, MoeSpec } from '../../src/model/spec.ts';
import type { Plan } from '../../src/plan/plan.ts';
import { bindWeights, type TinyWeight } from '../conformance/support/tiny-graph.ts';
import { backendOf, planFor, runTokens } from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { type OfficialTensor, OfficialTensors } from '../support/official-tensors.ts';
import { argmax, runRows } from '../support/reference.ts';
import { f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

const TOLERANCE = 2e-4;

/** As `config.json` says. */
const hidden = 64;
const heads = 4;
const latentDim = 32;
const queryRank = 48;
const rotated = 16;
const plainDim = 32;
const headValueDim = 32;
const norm = { epsilon: 1e-5 };

const experts: MoeSpec = {
  experts: 8,
  zeroExperts: 4,
  used: 3,
  inner: 32,
  activation: 'silu',
  router: { gating: 'softmax', selectionBias: true, normalise: false, scale: 6 },
};

/** Half of an official layer: each has a cache of its own. */
function half(shortcut: MoeSpec | undefined): LayerSpec {
  return {
    attention: {
      norm,
      heads,
      kvHeads: 1,
      headDim: latentDim + rotated,
      valueDim: latentDim,
      // Beside the scores' own scale what queries are multiplied with, since their rank is narrower than a row.
      scale: Math.sqrt(hidden / queryRank) / Math.sqrt(plainDim + rotated),
      rope: { pairing: 'adjacent', dimensions: rotated, base: 10_000_000, scaling: { kind: 'none' } },
      latent: { queryRank, plainDim, headValueDim, norm: { epsilon: 1e-6 }, scale: Math.sqrt(hidden / latentDim) },
      bias: { query: false, key: false, value: false, output: false },
    },
    feedForward: { kind: 'dense', norm, inner: 96, activation: 'silu' },
    ...(shortcut === undefined ? {} : { shortcut }),
  };
}

const spec: ModelSpec = {
  architecture: 'longcat-flash',
  vocabulary: 512,
  hidden,
  trainedContext: 512,
  layers: [half(experts), half(undefined), half(experts), half(undefined)],
  finalNorm: norm,
  head: { tied: false },
};

const official = new OfficialTensors('longcat-flash');

function halfWeights(layer: number): Record<string, OfficialTensor> {
  const from = `model.layers.${Math.floor(layer / 2)}`;
  const part = layer % 2;
  const own = `${from}.self_attn.${part}`;
  const at = `layers.${layer}`;
  const { key, value } = official.absorbed(`${own}.kv_b_proj.weight`, { heads, plainDim });
  const dense = (name: string) => official.matrix(`${from}.mlps.${part}.${name}_proj.weight`);
  const routed = (name: string) =>
    official.stack(Array.from({ length: 8 }, (_, expert) => `${from}.mlp.experts.${expert}.${name}_proj.weight`));
  return {
    [`${at}.attention.norm`]: official.vector(`${from}.input_layernorm.${part}.weight`),
    [`${at}.attention.query.down`]: official.matrix(`${own}.q_a_proj.weight`),
    [`${at}.attention.query.downNorm`]: official.vector(`${own}.q_a_layernorm.weight`),
    [`${at}.attention.query`]: official.matrix(`${own}.q_b_proj.weight`),
    [`${at}.attention.latent`]: official.matrix(`${own}.kv_a_proj_with_mqa.weight`),
    [`${at}.attention.latentNorm`]: official.vector(`${own}.kv_a_layernorm.weight`),
    [`${at}.attention.key.up`]: key,
    [`${at}.attention.value.up`]: value,
    [`${at}.attention.output`]: official.matrix(`${own}.o_proj.weight`),
    [`${at}.feedForward.norm`]: official.vector(`${from}.post_attention_layernorm.${part}.weight`),
    [`${at}.feedForward.gate`]: dense('gate'),
    [`${at}.feedForward.up`]: dense('up'),
    [`${at}.feedForward.down`]: dense('down'),
    ...(part === 1
      ? {}
      : {
          [`${at}.moe.router`]: official.matrix(`${from}.mlp.router.classifier.weight`),
          [`${at}.moe.selectionBias`]: official.vector(`${from}.mlp.router.e_score_correction_bias`),
          [`${at}.moe.gate`]: routed('gate'),
          [`${at}.moe.up`]: routed('up'),
          [`${at}.moe.down`]: routed('down'),
        }),
  };
}

const tensors: Record<string, OfficialTensor> = {
  embedding: official.matrix('model.embed_tokens.weight'),
  head: official.matrix('lm_head.weight'),
  finalNorm: official.vector('model.norm.weight'),
  ...Object.assign({}, ...spec.layers.map((_, layer) => halfWeights(layer))),
};
const { weights, bytes } = bindWeights(
  Object.fromEntries(
    Object.entries(tensors).map(([name, { format, shape, data }]): [string, TinyWeight] => [
      name,
      { format, shape, bytes: data },
    ]),
  ),
);
const graph = buildGraph(spec);

function near(found: Float32Array, expected: Float32Array, what: string, tolerance = TOLERANCE): void {
  assert.equal(found.length, expected.length);
  const error = found.reduce((worst, x, i) => Math.max(worst, Math.abs(x - (expected[i] as number))), 0);
  assert.ok(error <= tolerance, `${what} is off by ${error}`);
}

test('official logits, hidden states and greedy tokens', async () => {
  // The reference asks nothing else of its plan.
  const plan = { cache: { pages: 4 } } as Plan;
  const executable = await referenceBackend.prepare({ plan, spec, graph, weights, sources: [memorySource(bytes)] });
  assert.ok(executable instanceof ReferenceExecutable);
  const model = { spec, graph, executable };
  const expected = readSafetensors(familyFile('longcat-flash', 'expected.safetensors'));
  const tokens = i32Of(expected, 'tokens');
  const logits = await runRows(model, tokens, 0, 'prompt');
  near(logits, f32Of(expected, 'logits'), 'logits');
  for (const layer of [0, 1, 2]) {
    near(
      executable.value(graph.hidden[2 * layer] as string),
      f32Of(expected, `hidden_${layer}`),
      `hidden state ${layer}`,
    );
  }
  const chosen = executable.routes(0).flatMap((route) => [...route.experts]);
  assert.ok(
    chosen.some((expert) => expert >= experts.experts) && chosen.some((expert) => expert < experts.experts),
    'both kinds of experts are chosen',
  );
  const greedy = [argmax(logits.subarray(-spec.vocabulary))];
  while (greedy.length < 16) {
    const position = tokens.length + greedy.length - 1;
    greedy.push(argmax(await runRows(model, greedy.slice(-1), position, 'step')));
  }
  assert.deepEqual(greedy, [...i32Of(expected, 'greedy')]);
  await executable.dispose();
});

test('official logits on the CPU, in one prompt and step by step', async () => {
  const plan = planFor({ spec, graph, weights }, { context: 64, cache: 'f32' });
  const executable = await backendOf(plan).prepare({ plan, spec, graph, weights, sources: [memorySource(bytes)] });
  const model = { spec, graph, weights, plan, executable };
  const expected = readSafetensors(familyFile('longcat-flash', 'expected.safetensors'));
  const tokens = i32Of(expected, 'tokens');
  const logits = f32Of(expected, 'logits');
  try {
    // Only the order of sums is left.
    near(await runTokens(model, tokens, 0, 'prompt'), logits, 'a prompt', 2e-5);
    for (const [at, token] of tokens.entries()) {
      const row = logits.subarray(at * spec.vocabulary, (at + 1) * spec.vocabulary);
      near(await runTokens(model, [token], at, 'step'), row, `step ${at}`, 2e-5);
    }
  } finally {
    await executable.dispose();
  }
});

test('a GPU, which has no such experts, refuses them by name', () => {
  assert.throws(
    () => planFor({ spec, graph, weights }, { context: 64, device: 'gpu' }),
    (error) => error instanceof Refusal && /does not serve experts that give a row as it is/.test(error.message),
  );
});

test('a shortcut that no layer adds is an error, not lost', () => {
  assert.throws(() => buildGraph({ ...spec, layers: [half(undefined), half(experts)] }), /last layer has a shortcut/);
});
