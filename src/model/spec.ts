/**
 * A model as data. A family reads a file into a `ModelSpec`, `decoder.ts` turns it into a graph; nothing here computes
 * and nothing here knows a device. All of it is JSON-printable.
 *
 * Weights have logical names, which are the same for every family (`i` is the layer's number):
 *
 * | name | shape |
 * |---|---|
 * | `embedding` | [vocabulary, hidden] |
 * | `layers.i.attention.norm` | [hidden] |
 * | `layers.i.attention.query`, `.key`, `.value` | [heads·headDim, hidden], [kvHeads·headDim, hidden], [kvHeads·valueDim, hidden] |
 * | `layers.i.attention.query.bias`, `.key.bias`, `.value.bias`, `.output.bias` | [rows of the weight] |
 * | `layers.i.attention.queryNorm`, `.keyNorm` | [headDim] (`qkNorm: 'head'`) or [heads·headDim], [kvHeads·headDim] (`'full'`) |
 * | `layers.i.attention.sinks` | [heads] |
 * | `layers.i.attention.gate` | [heads, hidden] (`gate.per: 'head'`) or [heads·valueDim, hidden] (`'element'`) |
 * | `layers.i.attention.query.down`, `.query.downNorm` | with a latent and a `queryRank`: [queryRank, hidden], [queryRank] |
 * | `layers.i.attention.query` | with a latent: [heads·(plainDim + rotated), queryRank, or hidden without one] |
 * | `layers.i.attention.latent`, `.latentNorm` | with a latent: [valueDim + rotated, hidden], [valueDim] |
 * | `layers.i.attention.key.up`, `.value.up` | with a latent: [heads, valueDim, plainDim], [heads, headValueDim, valueDim] |
 * | `layers.i.attention.output` | [hidden, heads·valueDim], with a latent [hidden, heads·headValueDim] |
 * | `layers.i.attention.postNorm` | [hidden] |
 * | `layers.i.feedForward.norm`, `.postNorm`, `.routerNorm` | [hidden] |
 * | `layers.i.feedForward.gate`, `.up`, `.down` | [inner, hidden] twice, [hidden, inner] |
 * | `layers.i.beside.norm`, `.gate`, `.up`, `.down`, `.postNorm` | as `feedForward`, of the dense block beside experts |
 * | `layers.i.beside.sumNorm` | [hidden] |
 * | `layers.i.moe.router` | [experts + zeroExperts, hidden] |
 * | `layers.i.moe.router.bias`, `.selectionBias` | [experts + zeroExperts] |
 * | `layers.i.moe.expertScale` | [experts] |
 * | `layers.i.moe.gate`, `.up`, `.down` | [experts, inner, hidden] twice, [experts, hidden, inner] |
 * | `layers.i.moe.gate.bias`, `.up.bias`, `.down.bias` | [experts·inner] twice, [experts·hidden] |
 * | `layers.i.moe.gateScale`, `.outputScale` | [experts]: what gate · x, and what comes of an expert, is multiplied with (`scaled`) |
 * | `layers.i.moe.shared.gate`, `.up`, `.down` | [sharedInner, hidden] twice, [hidden, sharedInner] |
 * | `layers.i.moe.shared.router` | [1, hidden]: the shared expert's own gate |
 * | `layers.i.scale` | [1] |
 * | `finalNorm` | [hidden] |
 * | `head` | [vocabulary, hidden]; absent when `head.tied` |
 * | `mtp.embeddingNorm`, `mtp.hiddenNorm`, `mtp.finalNorm` | [hidden] |
 * | `mtp.projection` | [hidden, 2·hidden] |
 * | `mtp.embedding`, `mtp.head` | [vocabulary, hidden] each; absent where the model's own serve |
 * | `ropeFactors` | [rope dimensions / 2]: what each inverse frequency is divided by |
 */

export interface ModelSpec {
  /** The family's file name and GGUF's `general.architecture`. */
  readonly architecture: string;
  readonly vocabulary: number;
  readonly hidden: number;
  /** The context length it was trained with, in tokens. */
  readonly trainedContext: number;
  /** Absent: embeddings are taken as they are. */
  readonly embedding?: EmbeddingSpec;
  readonly layers: readonly LayerSpec[];
  /** What the output of each attention and each feed-forward block is multiplied with before it is added; absent: 1. */
  readonly residualScale?: number;
  readonly finalNorm: NormSpec;
  readonly head: HeadSpec;
  /** Drafts tokens, where that is wanted; never has a say in what the model gives. */
  readonly mtp?: MtpSpec;
}

export interface EmbeddingSpec {
  /** What embeddings are multiplied with. */
  readonly scale: number;
}

export interface LayerSpec {
  readonly attention: AttentionSpec;
  readonly feedForward: FeedForwardSpec;
  /** The residual stream is multiplied with the weight `scale` at the layer's end. */
  readonly scaled?: true;
  /**
   * Experts beside the feed-forward block, over the same normed rows; what they give is added at the end of the next layer
   * (shortcut-connected experts, arXiv 2404.05019).
   */
  readonly shortcut?: MoeSpec;
}

/** RMS norm: x / √(mean(x²) + epsilon) · weight. */
export interface NormSpec {
  readonly epsilon: number;
}

export interface AttentionSpec {
  readonly norm: NormSpec;
  readonly heads: number;
  readonly kvHeads: number;
  /** Width of a query and of a key. */
  readonly headDim: number;
  /** Width of a value. */
  readonly valueDim: number;
  /** What scores are multiplied with before the softmax; usually 1/√headDim. */
  readonly scale: number;
  /** Absent: no rotation in this layer. */
  readonly rope?: RopeSpec;
  readonly qkNorm?: QkNormSpec;
  /** A norm on each head's value, without weights. */
  readonly valueNorm?: NormSpec;
  /** There is no projection for values: they are the keys' projection, before its norm and rotation. */
  readonly valueIsKey?: true;
  /** Absent: a row sees all positions up to its own. */
  readonly reach?: ReachSpec;
  /** Each head has a score of its own, the weight `sinks`, that takes part in the softmax and brings no value. */
  readonly sinks?: true;
  /** Absent: scores are as sharp at every position. */
  readonly temperature?: TemperatureSpec;
  /** What heads have mixed is multiplied with act(W_g · x), x the block's normed input, before the output projection. */
  readonly gate?: GateSpec;
  /** A norm on the block's output, before it is added to the residual stream. */
  readonly postNorm?: NormSpec;
  /**
   * Multi-head latent attention, which makes queries, keys and values in its own way: without `qkNorm`, `valueNorm`,
   * `valueIsKey`, `gate` and biases of theirs. Absent: they are projected as they are.
   */
  readonly latent?: LatentSpec;
  /** Which projections carry a bias. */
  readonly bias: { readonly query: boolean; readonly key: boolean; readonly value: boolean; readonly output: boolean };
}

/** A norm on queries and keys: each head by itself, or the whole projection at once. */
export interface QkNormSpec {
  readonly over: 'head' | 'full';
  readonly epsilon: number;
  /** Without weights (Llama 4). */
  readonly unweighted?: true;
  /** After the rotation; absent: before it. */
  readonly afterRope?: true;
}

/** How far back a row sees: `window`: the last `length` positions, its own among them; `chunk`: those of its own chunk. */
export interface ReachSpec {
  readonly kind: 'window' | 'chunk';
  /** In positions. */
  readonly length: number;
}

/** Scores at position p are multiplied with 1 + scale · ln(1 + ⌊(p + 1) / length⌋) (arXiv 2501.19399, as Llama 4 has it). */
export interface TemperatureSpec {
  readonly length: number;
  readonly scale: number;
}

export interface GateSpec {
  readonly activation: GateActivation;
  /** One number for all of a head, or one for each element. */
  readonly per: 'head' | 'element';
}

/** `softplus`: ln(1 + eˣ). */
export type GateActivation = 'sigmoid' | 'softplus';

/**
 * Multi-head latent attention (arXiv 2405.04434, section 2.1). A position's keys and values are products of one latent, and
 * with it all heads share a few rotated elements of their keys. What is cached is the latent and these elements; the
 * products are absorbed: a head's query is brought into the latent's space, and what it mixes are latents, of which the
 * head's values are made afterwards. So there is one key head, `kvHeads` is 1; a key is the latent and behind it the rotated
 * elements, `headDim`; a value is the latent, `valueDim`. `rope` rotates the last `rope.dimensions` of them.
 */
export interface LatentSpec {
  /** Width that queries go through; absent: they are projected at once. */
  readonly queryRank?: number;
  /** Elements of a head's projected query that are not rotated; the rotated ones stand behind them. */
  readonly plainDim: number;
  /** Width of a head's values once they are made of latents. */
  readonly headValueDim: number;
  /** Over the query's rank, and over the latent. */
  readonly norm: NormSpec;
  /** What the latent is multiplied with after its norm; absent: 1. */
  readonly scale?: number;
}

/** Rotary position embedding (arXiv 2104.09864). */
export interface RopeSpec {
  /** `adjacent`: elements 2j and 2j+1 form a pair; `half`: elements j and j + dimensions/2. */
  readonly pairing: 'adjacent' | 'half';
  /** So many elements of a head are rotated, the first ones unless a latent says otherwise; even. */
  readonly dimensions: number;
  readonly base: number;
  readonly scaling: RopeScaling;
}

export type RopeScaling =
  | { readonly kind: 'none' }
  | { readonly kind: 'linear'; readonly factor: number }
  /** The weight `ropeFactors` divides each inverse frequency (how GGUF carries llama3 scaling). */
  | { readonly kind: 'factors' }
  | {
      /** Llama 3.1's rule. */
      readonly kind: 'llama3';
      readonly factor: number;
      readonly lowFrequencyFactor: number;
      readonly highFrequencyFactor: number;
      readonly originalContext: number;
    }
  | {
      /** YaRN (arXiv 2309.00071). */
      readonly kind: 'yarn';
      readonly factor: number;
      readonly originalContext: number;
      readonly betaFast: number;
      readonly betaSlow: number;
      /** What cosines and sines are multiplied with. */
      readonly magnitude: number;
      /** Whether the two correction bounds are rounded outwards to whole dimensions. */
      readonly truncate: boolean;
    };

/** How gate and up become one: act(gate) ⊙ up. `geluTanh` is GELU by its tanh (arXiv 1606.08415). */
export type Activation = 'silu' | 'geluTanh' | ClampedSwiglu;

/** g·σ(alpha·g) ⊙ (u + 1), g = min(gate, limit), u = up within ±limit (gpt-oss). */
export interface ClampedSwiglu {
  readonly kind: 'clampedSwiglu';
  readonly alpha: number;
  readonly limit: number;
}

export type FeedForwardSpec = ({ readonly kind: 'dense' } & DenseBlockSpec) | MoeBlockSpec;

/** x + postNorm(W_down(act(W_gate·n) ⊙ W_up·n)), n = norm(x). */
export interface DenseBlockSpec {
  readonly norm: NormSpec;
  readonly inner: number;
  readonly activation: Activation;
  readonly postNorm?: NormSpec;
}

export interface MoeBlockSpec {
  readonly kind: 'moe';
  readonly norm: NormSpec;
  readonly moe: MoeSpec;
  readonly postNorm?: NormSpec;
  /** The router has an input of its own: norm(x) · scale, weighted with `routerNorm`. Absent: the experts' input. */
  readonly routerNorm?: NormSpec & { readonly scale: number };
  /** A dense block on the same stream: both outputs are added, then normed, before they join the stream (Gemma 4). */
  readonly beside?: DenseBlockSpec & { readonly sumNorm: NormSpec };
}

/** y = Σ w_i·E_i(x) + g·S(x), in rank order; E(x) = W_down(act(W_gate·x) ⊙ W_up·x). */
export interface MoeSpec {
  readonly experts: number;
  /** So many more can be chosen, with ids from `experts` on, that give a row as it is; absent: none. */
  readonly zeroExperts?: number;
  /** Experts selected a token. */
  readonly used: number;
  /** Width of an expert's gate and up projections. */
  readonly inner: number;
  readonly activation: Activation;
  /** The projections of each routed expert carry biases. */
  readonly biases?: true;
  readonly router: RouterSpec;
  readonly shared?: SharedExpertSpec;
  /**
   * Whether the matrices of its experts have scales beside their values, as NVFP4's have: E(x) = s_output · W_down(act(s_gate ·
   * W_gate·x) ⊙ W_up·x), an expert's s_output being up's scale times down's. Only where what becomes of up is in proportion to it.
   */
  readonly scaled?: true;
}

/**
 * How experts are chosen and weighted. Ties go to the lower index. A softmax over the selected logits alone is a softmax
 * over all whose selected weights are divided by their sum.
 */
export interface RouterSpec {
  readonly gating: 'softmax' | 'sigmoid';
  /** Logits are W_r·x + `router.bias`. */
  readonly bias?: true;
  /** Whether `moe.selectionBias` is added to the scores for the selection (never for the weights). */
  readonly selectionBias: boolean;
  /** Experts are in `count` equal groups, of which the `used` best are kept, ranked by their best or two best members. */
  readonly groups?: { readonly count: number; readonly used: number; readonly rankedBy: 'best' | 'twoBest' };
  /** Whether the selected weights are divided by their sum. */
  readonly normalise: boolean;
  /** What the weights are multiplied with at the end. */
  readonly scale: number;
  /** Weights are also multiplied with the chosen expert's own scale. */
  readonly expertScale?: true;
  /** Weights multiply the expert's input instead of its output (Llama 4). */
  readonly weighsInput?: true;
}

export interface SharedExpertSpec {
  readonly inner: number;
  /** Whether its output is multiplied with σ(w_g·x). */
  readonly gated: boolean;
}

export interface HeadSpec {
  /** Whether the head uses the embedding's weight. */
  readonly tied: boolean;
  /** What logits are multiplied with; absent: 1. */
  readonly logitScale?: number;
  /** Logits l then become cap · tanh(l / cap). */
  readonly softcap?: number;
}

/**
 * A head that predicts one token further ahead (multi-token prediction, arXiv 2412.19437 §2.2): of position i it reads the
 * hidden state h_i, and the token that came after it, t_(i+1):
 *
 *     x = projection · [norm(embedding(t_(i+1))), norm(h_i)],  h' = block(x),  logits of t_(i+2) = head · norm(h')
 *
 * A token further is predicted from h' in place of h_(i+1), and the token just predicted.
 */
export interface MtpSpec {
  /** The block, numbered as the layer after the last: its weights are `layers.<layers>.…`. */
  readonly layer: LayerSpec;
  readonly embeddingNorm: NormSpec;
  readonly hiddenNorm: NormSpec;
  readonly finalNorm: NormSpec;
  /** Whether it has an embedding, or a head, of its own; else the model's serve. */
  readonly ownEmbedding: boolean;
  readonly ownHead: boolean;
}

/** Every layer that keeps keys and values, by its number: the model's, and the one that predicts ahead where there is one. */
export function allLayers({ layers, mtp }: Pick<ModelSpec, 'layers' | 'mtp'>): readonly LayerSpec[] {
  return mtp === undefined ? layers : [...layers, mtp.layer];
}
