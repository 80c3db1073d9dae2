/** What a shape's GGUF file holds: its metadata, and its tensors in the formats that the model is usually had in. */

import { type MetadataEntries, meta, type TensorHead } from '../format/gguf-writer.ts';
import { formatOf } from '../quant/index.ts';
import type { ExpertShape, Shape } from './shapes.ts';
import { vocabularyMetadata } from './vocabulary.ts';

export interface SyntheticTensor extends TensorHead {
  /**
   * `weights`: about ±1/√columns. `norm`: about 1. `embedding`: about ±1, as large as what a layer adds to it, so that
   * tokens stay apart and each is routed its own way.
   */
  readonly content: 'weights' | 'norm' | 'embedding';
}

/** Which formats a file's matrices have. */
interface Mixture {
  /** `general.file_type`. */
  readonly fileType: number;
  readonly embedding: string;
  readonly head: string;
  readonly plain: string;
  /** Of value and down projections, where more bits are kept. */
  readonly careful: string;
  /** Of experts; absent: as other matrices. */
  readonly experts?: string;
}

/** llama.cpp's Q4_K_M. */
const q4KM: Mixture = { fileType: 15, embedding: 'Q4_K', head: 'Q6_K', plain: 'Q4_K', careful: 'Q6_K' };
/** Experts as they are published in four bits, everything else in eight. */
const mxfp4: Mixture = {
  fileType: 38,
  embedding: 'Q8_0',
  head: 'Q8_0',
  plain: 'Q8_0',
  careful: 'Q8_0',
  experts: 'MXFP4',
};

/** What the families differ in beyond sizes. */
interface Traits {
  /** Absent: {@link q4KM}. */
  readonly mixture?: Mixture;
  /** Norms of queries and keys: over each head, or over all heads together. */
  readonly qkNorm?: 'head' | 'all';
  /** Of queries, keys and values; `all`: of the output, too, of the router and of experts. */
  readonly biases?: 'inputs' | 'all';
  /** A score a head that brings no value. */
  readonly sinks?: boolean;
  readonly attention?: MetadataEntries;
  /** What the norm before a feed-forward block is called. */
  readonly feedForwardNorm: string;
  /** Columns of a head that are rotated, where the file states them. */
  rotated?(shape: Shape): number;
  /** Factors of the rotation, a tensor of the file (Llama 3.1). */
  readonly ropeFactors?: boolean;
  /** The file has one width of layers, its experts' or the dense ones'. */
  readonly oneWidth?: boolean;
  readonly router?: MetadataEntries;
  /** A bias for the selection of experts. */
  readonly selectionBias?: boolean;
}

const traits: Readonly<Record<Shape['architecture'], Traits>> = {
  qwen3moe: { qkNorm: 'head', feedForwardNorm: 'ffn_norm' },
  qwen3: { qkNorm: 'head', feedForwardNorm: 'ffn_norm' },
  olmoe: { qkNorm: 'all', feedForwardNorm: 'ffn_norm', oneWidth: true },
  llama: { feedForwardNorm: 'ffn_norm', rotated: ({ headDim }) => headDim, ropeFactors: true },
  glm4moe: {
    biases: 'inputs',
    feedForwardNorm: 'post_attention_norm',
    rotated: ({ headDim }) => headDim / 2,
    // 2: sigmoid.
    router: {
      expert_gating_func: meta.u32(2),
      expert_weights_norm: meta.bool(true),
      expert_weights_scale: meta.f32(1),
      expert_group_count: meta.u32(1),
      expert_group_used_count: meta.u32(1),
    },
    selectionBias: true,
  },
  'gpt-oss': {
    mixture: mxfp4,
    biases: 'all',
    sinks: true,
    feedForwardNorm: 'post_attention_norm',
    rotated: ({ headDim }) => headDim,
    attention: {
      'attention.sliding_window': meta.u32(128),
      'rope.scaling.type': meta.string('yarn'),
      'rope.scaling.factor': meta.f32(32),
      'rope.scaling.original_context_length': meta.u32(4096),
    },
  },
};

export function metadataOf(name: string, shape: Shape): MetadataEntries {
  const { architecture, experts } = shape;
  const own = traits[architecture];
  const entries: MetadataEntries = {
    block_count: meta.u32(shape.layers),
    context_length: meta.u32(shape.context),
    embedding_length: meta.u32(shape.hidden),
    feed_forward_length: meta.u32(shape.inner),
    'attention.head_count': meta.u32(shape.heads),
    'attention.head_count_kv': meta.u32(shape.kvHeads),
    'attention.key_length': meta.u32(shape.headDim),
    'attention.value_length': meta.u32(shape.headDim),
    'attention.layer_norm_rms_epsilon': meta.f32(shape.epsilon),
    'rope.freq_base': meta.f32(shape.ropeBase),
    ...(own.rotated === undefined ? {} : { 'rope.dimension_count': meta.u32(own.rotated(shape)) }),
    ...own.attention,
    ...(experts === undefined ? {} : expertEntries(experts, own)),
  };
  return {
    'general.architecture': meta.string(architecture),
    'general.name': meta.string(`${name}, random weights`),
    ...Object.fromEntries(Object.entries(entries).map(([key, value]) => [`${architecture}.${key}`, value])),
    ...vocabularyMetadata(shape.vocabulary, shape.firstSpecial),
    'general.quantization_version': meta.u32(2),
    'general.file_type': meta.u32(mixtureOf(own).fileType),
  };
}

const mixtureOf = ({ mixture = q4KM }: Traits): Mixture => mixture;

function expertEntries({ count, used, inner, shared, denseLayers }: ExpertShape, own: Traits): MetadataEntries {
  return {
    expert_count: meta.u32(count),
    expert_used_count: meta.u32(used),
    ...(own.oneWidth === true ? {} : { expert_feed_forward_length: meta.u32(inner) }),
    ...(shared === undefined ? {} : { expert_shared_count: meta.u32(shared) }),
    ...(denseLayers === undefined ? {} : { leading_dense_block_count: meta.u32(denseLayers) }),
    ...own.router,
  };
}

export function tensorsOf(shape: Shape): SyntheticTensor[] {
  const { hidden, vocabulary, layers } = shape;
  const own = traits[shape.architecture];
  const { embedding, head } = mixtureOf(own);
  const factors = own.ropeFactors === true ? [norm('rope_freqs', shape.headDim / 2)] : [];
  return [
    { name: 'token_embd.weight', format: embedding, shape: [vocabulary, hidden], content: 'embedding' },
    matrix('output', head, [vocabulary, hidden]),
    norm('output_norm', hidden),
    ...factors,
    ...Array.from({ length: layers }, (_, layer) =>
      layerOf(shape, layer).map((tensor) => ({ ...tensor, name: `blk.${layer}.${tensor.name}` })),
    ).flat(),
  ];
}

function layerOf(shape: Shape, layer: number): SyntheticTensor[] {
  const { hidden, heads, kvHeads, headDim, experts } = shape;
  const own = traits[shape.architecture];
  const mixture = mixtureOf(own);
  const { plain } = mixture;
  const careful = hasMoreBits(layer, shape.layers) ? mixture.careful : plain;
  const all = own.biases === 'all';
  const widths = { attn_q: heads * headDim, attn_k: kvHeads * headDim, attn_v: kvHeads * headDim };
  const dense = experts === undefined || layer < (experts.denseLayers ?? 0);
  return [
    norm('attn_norm', hidden),
    ...Object.entries(widths).flatMap(([name, width]) => [
      matrix(name, name === 'attn_v' ? careful : plain, [width, hidden]),
      ...(own.biases === undefined ? [] : [vector(`${name}.bias`, width)]),
    ]),
    ...(own.qkNorm === undefined
      ? []
      : [
          norm('attn_q_norm', own.qkNorm === 'head' ? headDim : widths.attn_q),
          norm('attn_k_norm', own.qkNorm === 'head' ? headDim : widths.attn_k),
        ]),
    ...(own.sinks === true ? [vector('attn_sinks.weight', heads)] : []),
    matrix('attn_output', plain, [hidden, heads * headDim]),
    ...(all ? [vector('attn_output.bias', hidden)] : []),
    norm(own.feedForwardNorm, hidden),
    ...(dense
      ? gated('', [], { hidden, inner: shape.inner, plain, careful })
      : expertsOf(experts, { hidden, own, plain, careful })),
  ];
}

function expertsOf(
  { count, inner, shared }: ExpertShape,
  formats: { readonly hidden: number; readonly own: Traits; readonly plain: string; readonly careful: string },
): SyntheticTensor[] {
  const { hidden, own } = formats;
  const { experts } = mixtureOf(own);
  const routed = experts === undefined ? formats : { ...formats, plain: experts, careful: experts };
  const biases = (part: string, width: number) => matrix(`ffn_${part}_exps.bias`, 'F32', [count, width]);
  return [
    matrix('ffn_gate_inp', 'F32', [count, hidden]),
    ...(own.selectionBias === true ? [vector('exp_probs_b.bias', count)] : []),
    ...(own.biases === 'all' ? [vector('ffn_gate_inp.bias', count)] : []),
    ...gated('_exps', [count], { ...routed, inner }),
    ...(own.biases === 'all' ? [biases('gate', inner), biases('up', inner), biases('down', hidden)] : []),
    ...(shared === undefined ? [] : gated('_shexp', [], { ...formats, inner: inner * shared })),
  ];
}

/** The three matrices of a SwiGLU block, of one or of `outer` stacked ones. */
function gated(
  suffix: string,
  outer: readonly number[],
  {
    hidden,
    inner,
    plain,
    careful,
  }: { readonly hidden: number; readonly inner: number; readonly plain: string; readonly careful: string },
): SyntheticTensor[] {
  return [
    matrix(`ffn_gate${suffix}`, plain, [...outer, inner, hidden]),
    matrix(`ffn_up${suffix}`, plain, [...outer, inner, hidden]),
    matrix(`ffn_down${suffix}`, careful, [...outer, hidden, inner]),
  ];
}

/** The layers whose value and down projections Q4_K_M keeps in Q6_K: the first and last eighth, and every third between. */
export function hasMoreBits(layer: number, layers: number): boolean {
  const eighth = Math.floor(layers / 8);
  return layer < eighth || layer >= Math.floor((7 * layers) / 8) || (layer - eighth) % 3 === 2;
}

/** What llama.cpp writes where columns do not fill the blocks of a K format. */
const fallbacks: Readonly<Record<string, string>> = { Q4_K: 'Q5_0', Q6_K: 'Q8_0' };

function matrix(name: string, wanted: string, shape: readonly number[]): SyntheticTensor {
  const fits = (shape.at(-1) as number) % formatOf(wanted).blockLength === 0;
  const format = fits ? wanted : (fallbacks[wanted] as string);
  return { name: name.endsWith('.bias') ? name : `${name}.weight`, format, shape, content: 'weights' };
}

function norm(name: string, width: number): SyntheticTensor {
  return { name: `${name}.weight`, format: 'F32', shape: [width], content: 'norm' };
}

/** About ±1/√width. */
function vector(name: string, width: number): SyntheticTensor {
  return { name, format: 'F32', shape: [width], content: 'weights' };
}
