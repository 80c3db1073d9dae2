/**
 * Parts that several families are made of, as GGUF names them. A helper reads and claims; what a family means by it
 * (pairing, gating, normalisation, what is optional) is always said by the family that calls.
 */

import { CorruptFileError, Refusal } from '../../errors.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import { yarnMagnitude } from '../rope.ts';
import type { AttentionSpec, DenseBlockSpec, HeadSpec, NormSpec, RopeScaling, RopeSpec } from '../spec.ts';

/** What stands outside the layers, and the sizes that everything else is checked against. */
export interface Stem {
  readonly vocabulary: number;
  readonly hidden: number;
  readonly trainedContext: number;
  readonly norm: NormSpec;
  readonly head: HeadSpec;
}

/**
 * Claims embedding, final norm and head. GGUF says that the head is the embedding by leaving `output.weight` out; a
 * `config.json` may say so in words, and then a head that is there all the same is not used.
 * @throws CorruptFileError `corrupt_file`
 */
export function readStem(reader: FamilyReader): Stem {
  const hidden = reader.count('embedding_length', { min: 1, max: MOST });
  const rows = reader.shapeOf('token_embd.weight')?.[0];
  if (rows === undefined) throw missingTensor(reader, 'token_embd.weight', 'every model needs its embedding');
  reader.weight('embedding', 'token_embd.weight', [rows, hidden]);
  if (reader.has('vocab_size')) {
    const said = reader.count('vocab_size', { min: 1, max: MOST });
    if (said !== rows) {
      throw reader.corruptKey(
        'vocab_size',
        String(said),
        `the ${rows} rows of ${reader.fullTensor('token_embd.weight')}`,
      );
    }
  }
  reader.weight('finalNorm', 'output_norm.weight', [hidden]);
  const tied = reader.configFlag('tie_word_embeddings') ?? !reader.hasTensor('output.weight');
  if (tied) reader.ignoreTensor('output.weight', 'the head is the embedding (tie_word_embeddings)');
  else reader.weight('head', 'output.weight', [rows, hidden]);
  return {
    vocabulary: rows,
    hidden,
    trainedContext: reader.count('context_length', { min: 1, max: 2 ** 31 - 1 }),
    norm: { epsilon: reader.positiveFloat('attention.layer_norm_rms_epsilon') },
    head: { tied },
  };
}

/**
 * `block_count`, checked against the layers whose tensors are there (`blk.0.` … `blk.N.`) before anything is sized by it.
 * @param mayLack how many layers at the end the file may count and not hold
 * @throws CorruptFileError `corrupt_file` naming `block_count`
 */
export function readBlockCount(reader: FamilyReader, mayLack = 0): number {
  const held = new Set<string>();
  for (const name of reader.file.tensors.keys()) {
    const layer = /^blk\.(\d+)\./.exec(name)?.[1];
    if (layer !== undefined) held.add(layer);
  }
  const layers = reader.count('block_count', { min: 1, max: Number.MAX_SAFE_INTEGER });
  if (layers < held.size || layers - mayLack > held.size) {
    throw reader.corruptKey(
      'block_count',
      String(layers),
      `the ${held.size} layers whose tensors (${reader.spelling.layers}) the file holds`,
    );
  }
  return layers;
}

/** Head counts and widths. One value a layer, because some files have them so. */
export interface Heads {
  readonly heads: readonly number[];
  readonly kvHeads: readonly number[];
  readonly headDim: number;
  readonly valueDim: number;
}

/**
 * GGUF defines what absent keys mean: `head_count_kv` is `head_count`, and a head's widths are `embedding_length` divided
 * by `head_count`.
 * @throws CorruptFileError `corrupt_file`
 */
export function readHeads(reader: FamilyReader, hidden: number, layers: number): Heads {
  const heads = reader.counts('attention.head_count', layers, { min: 1, max: MOST });
  const first = heads[0] as number;
  const kvHeads = reader.has('attention.head_count_kv')
    ? reader.counts('attention.head_count_kv', layers, { min: 1, max: MOST })
    : heads;
  kvHeads.forEach((count, layer) => {
    if ((heads[layer] as number) % count !== 0) {
      throw reader.corruptKey(
        'attention.head_count_kv',
        String(count),
        `a divisor of ${reader.fullKey('attention.head_count')}, which is ${heads[layer]}`,
      );
    }
  });
  const width = (key: string): number => {
    if (reader.has(key)) return reader.count(key, { min: 1, max: MOST });
    if (hidden % first !== 0) {
      throw reader.corruptKey(
        'attention.head_count',
        String(first),
        `a divisor of ${reader.fullKey('embedding_length')}, which is ${hidden}, since ${reader.fullKey(key)} is absent`,
      );
    }
    return hidden / first;
  };
  return { heads, kvHeads, headDim: width('attention.key_length'), valueDim: width('attention.value_length') };
}

/** What a family knows about its rotation. */
export interface RopeFacts {
  readonly pairing: RopeSpec['pairing'];
  /** What an absent `rope.dimension_count` means; without it the key must be there. */
  readonly dimensions?: number;
  /** What an absent `rope.freq_base` means; without it the key must be there. */
  readonly base?: number;
  /** Whether a tensor `rope_freqs.weight` may give factors (how GGUF carries Llama 3.1's scaling). */
  readonly factors?: boolean;
}

/**
 * @throws CorruptFileError `corrupt_file`
 * @throws Refusal `refused` for a scaling that is not known
 */
export function readRope(reader: FamilyReader, headDim: number, facts: RopeFacts): RopeSpec {
  const dimensions = reader.count('rope.dimension_count', { min: 1, max: MOST, default: facts.dimensions });
  if (dimensions % 2 !== 0 || dimensions > headDim) {
    throw reader.corruptKey(
      'rope.dimension_count',
      String(dimensions),
      `an even number up to the head's width, ${headDim}`,
    );
  }
  const base = reader.positiveFloat('rope.freq_base', { default: facts.base });
  if (base <= 1) throw reader.corruptKey('rope.freq_base', String(base), 'a number above 1');
  const scaling = readRopeScaling(reader);
  const hasFactors = facts.factors === true && reader.optional('ropeFactors', 'rope_freqs.weight', [dimensions / 2]);
  if (!hasFactors) return { pairing: facts.pairing, dimensions, base, scaling };
  if (scaling.kind !== 'none') {
    throw new Refusal(
      `${reader.file.name}: it has both rope_freqs.weight and ${reader.fullKey('rope.scaling.type')} = ${scaling.kind}; ` +
        'one scaling of the rotation is supported, not two at once',
    );
  }
  return { pairing: facts.pairing, dimensions, base, scaling: { kind: 'factors' } };
}

function readRopeScaling(reader: FamilyReader): RopeScaling {
  reader.ignoreKey('rope.scaling.finetuned', 'says how the model was trained, not how it runs');
  // `rope.scale_linear` is what GGUF wrote before it had `rope.scaling.*`.
  if (!reader.has('rope.scaling.type')) {
    if (!reader.has('rope.scale_linear')) return { kind: 'none' };
    return linear(reader.positiveFloat('rope.scale_linear'));
  }
  const type = reader.text('rope.scaling.type');
  switch (type) {
    case 'none':
      reader.ignoreKey('rope.scaling.factor', 'the scaling is none');
      return { kind: 'none' };
    case 'linear':
      return linear(reader.positiveFloat('rope.scaling.factor'));
    case 'yarn':
      return readYarn(reader);
    case 'llama3':
      return {
        kind: 'llama3',
        factor: reader.positiveFloat('rope.scaling.factor'),
        lowFrequencyFactor: reader.positiveFloat('rope.scaling.low_freq_factor'),
        highFrequencyFactor: reader.positiveFloat('rope.scaling.high_freq_factor'),
        originalContext: reader.count('rope.scaling.original_context_length', { min: 1, max: 2 ** 31 - 1 }),
      };
    default:
      throw new Refusal(
        `${reader.file.name}: ${reader.fullKey('rope.scaling.type')} is ${JSON.stringify(type)}, which is not supported; ` +
          'supported are none, linear, yarn, llama3',
        { data: { key: reader.fullKey('rope.scaling.type'), found: type } },
      );
  }
}

function linear(factor: number): RopeScaling {
  return factor === 1 ? { kind: 'none' } : { kind: 'linear', factor };
}

/** The defaults are YaRN's own; writers of GGUF leave out what equals them. */
function readYarn(reader: FamilyReader): RopeScaling {
  const factor = reader.positiveFloat('rope.scaling.factor');
  const extrapolation = reader.float('rope.scaling.yarn_ext_factor', { default: 1 });
  if (extrapolation !== 1) {
    throw new Refusal(
      `${reader.file.name}: ${reader.fullKey('rope.scaling.yarn_ext_factor')} is ${extrapolation}; only 1 is supported`,
    );
  }
  const attention =
    reader.positiveFloat('rope.scaling.attn_factor', { default: 1 }) *
    reader.positiveFloat('rope.scaling.yarn_attn_factor', { default: 1 });
  return {
    kind: 'yarn',
    factor,
    originalContext: reader.count('rope.scaling.original_context_length', { min: 1, max: 2 ** 31 - 1 }),
    betaFast: reader.positiveFloat('rope.scaling.yarn_beta_fast', { default: 32 }),
    betaSlow: reader.positiveFloat('rope.scaling.yarn_beta_slow', { default: 1 }),
    magnitude: reader.configNumber('attention_factor') ?? attention * yarnMagnitude(factor),
    truncate: reader.configFlag('truncate') ?? true,
  };
}

/** What a family knows about its attention. */
export interface AttentionFacts {
  readonly norm: NormSpec;
  /** Absent: the layer does not rotate. */
  readonly rope?: RopeSpec;
  readonly qkNorm?: AttentionSpec['qkNorm'];
  /** The file has no projection for values: they are the keys'. */
  readonly valueIsKey?: true;
  readonly bias: AttentionSpec['bias'];
}

export const noBias: AttentionSpec['bias'] = { query: false, key: false, value: false, output: false };
export const qkvBias: AttentionSpec['bias'] = { query: true, key: true, value: true, output: false };

/**
 * Which biases the file has, for families that are published with and without them: GGUF has no key for it, and
 * `config.json` must agree. The first layer answers for all; a later layer that differs lacks a tensor or has one too many,
 * and both are errors.
 * @throws CorruptFileError `corrupt_file` naming `attention_bias`
 */
export function biasAsInFile(reader: FamilyReader): AttentionSpec['bias'] {
  const has = (name: string) => reader.hasTensor(`blk.0.${name}.bias`);
  checkConfig(reader, 'attention_bias', 'blk.0.attn_q.bias');
  return { query: has('attn_q'), key: has('attn_k'), value: has('attn_v'), output: has('attn_output') };
}

/**
 * Holds what `config.json` says against whether a tensor is there, which is what GGUF goes by.
 * @throws CorruptFileError `corrupt_file` naming the key
 */
export function checkConfig(reader: FamilyReader, key: string, tensorName: string): void {
  const [said, has] = [reader.configFlag(key), reader.hasTensor(tensorName)];
  if (said === undefined || said === has) return;
  const expected = `${has}, since the tensor ${reader.fullTensor(tensorName)} is ${has ? '' : 'not '}there`;
  throw reader.corruptKey(`config.${key}`, String(said), expected);
}

/** Claims one layer's grouped-query attention. @throws CorruptFileError `corrupt_file` */
export function readAttention(
  reader: FamilyReader,
  layer: number,
  stem: Stem,
  all: Heads,
  facts: AttentionFacts,
): AttentionSpec {
  const { headDim, valueDim } = all;
  const heads = all.heads[layer] as number;
  const kvHeads = all.kvHeads[layer] as number;
  const at = `layers.${layer}.attention`;
  const blk = `blk.${layer}`;
  const rows = { query: heads * headDim, key: kvHeads * headDim, value: kvHeads * valueDim, output: stem.hidden };
  const columns = { query: stem.hidden, key: stem.hidden, value: stem.hidden, output: heads * valueDim };
  const tensors = { query: 'attn_q', key: 'attn_k', value: 'attn_v', output: 'attn_output' };
  reader.weight(`${at}.norm`, `${blk}.attn_norm.weight`, [stem.hidden]);
  for (const part of ['query', 'key', 'value', 'output'] as const) {
    if (part === 'value' && facts.valueIsKey) continue;
    reader.weight(`${at}.${part}`, `${blk}.${tensors[part]}.weight`, [rows[part], columns[part]]);
    if (facts.bias[part]) reader.weight(`${at}.${part}.bias`, `${blk}.${tensors[part]}.bias`, [rows[part]]);
  }
  if (facts.qkNorm !== undefined) {
    const perHead = facts.qkNorm.over === 'head';
    reader.weight(`${at}.queryNorm`, `${blk}.attn_q_norm.weight`, [perHead ? headDim : rows.query]);
    reader.weight(`${at}.keyNorm`, `${blk}.attn_k_norm.weight`, [perHead ? headDim : rows.key]);
  }
  return {
    norm: facts.norm,
    heads,
    kvHeads,
    headDim,
    valueDim,
    scale: 1 / Math.sqrt(headDim),
    rope: facts.rope,
    qkNorm: facts.qkNorm,
    ...(facts.valueIsKey ? { valueIsKey: true } : {}),
    bias: facts.bias,
  };
}

/** Claims a layer's norm before the feed-forward block. `tensor`: what the family calls it, usually `ffn_norm`. */
export function readFeedForwardNorm(reader: FamilyReader, layer: number, stem: Stem, tensor = 'ffn_norm'): NormSpec {
  reader.weight(`layers.${layer}.feedForward.norm`, `blk.${layer}.${tensor}.weight`, [stem.hidden]);
  return stem.norm;
}

/**
 * Claims a dense SwiGLU block (arXiv 2002.05202).
 * @param parts.block under which name, where it is not the layer's only feed-forward block
 * @throws CorruptFileError `corrupt_file`
 */
export function readDense(
  reader: FamilyReader,
  layer: number,
  stem: Stem,
  parts: { readonly norm: NormSpec; readonly inner: number; readonly block?: 'feedForward' | 'beside' },
): { readonly kind: 'dense' } & DenseBlockSpec {
  const { norm, inner, block = 'feedForward' } = parts;
  const at = `layers.${layer}.${block}`;
  reader.weight(`${at}.gate`, `blk.${layer}.ffn_gate.weight`, [inner, stem.hidden]);
  reader.weight(`${at}.up`, `blk.${layer}.ffn_up.weight`, [inner, stem.hidden]);
  reader.weight(`${at}.down`, `blk.${layer}.ffn_down.weight`, [stem.hidden, inner]);
  return { kind: 'dense', norm, inner, activation: 'silu' };
}

/** A missing tensor that the family's own reading explains better than a shape could. */
export function missingTensor(reader: FamilyReader, tensor: string, why: string): CorruptFileError {
  const name = reader.fullTensor(tensor);
  return new CorruptFileError(`${reader.file.name}: the tensor ${name} is missing; ${why}`, { data: { tensor: name } });
}
