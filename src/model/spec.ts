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
 * | `layers.i.attention.output` | [hidden, heads·valueDim] |
 * | `layers.i.feedForward.norm` | [hidden] |
 * | `layers.i.feedForward.gate`, `.up`, `.down` | [inner, hidden] twice, [hidden, inner] |
 * | `layers.i.moe.router` | [experts, hidden] |
 * | `layers.i.moe.selectionBias` | [experts] |
 * | `layers.i.moe.gate`, `.up`, `.down` | [experts, inner, hidden] twice, [experts, hidden, inner] |
 * | `layers.i.moe.gateScale`, `.outputScale` | [experts]: what gate · x, and what comes of an expert, is multiplied with (`scaled`) |
 * | `layers.i.moe.shared.gate`, `.up`, `.down` | [sharedInner, hidden] twice, [hidden, sharedInner] |
 * | `layers.i.moe.shared.router` | [1, hidden]: the shared expert's own gate |
 * | `finalNorm` | [hidden] |
 * | `head` | [vocabulary, hidden]; absent when `head.tied` |
 * | `ropeFactors` | [rope dimensions / 2]: what each inverse frequency is divided by |
 */

export interface ModelSpec {
  /** The family's file name and GGUF's `general.architecture`. */
  readonly architecture: string;
  readonly vocabulary: number;
  readonly hidden: number;
  /** The context length it was trained with, in tokens. */
  readonly trainedContext: number;
  readonly layers: readonly LayerSpec[];
  readonly finalNorm: NormSpec;
  readonly head: HeadSpec;
}

export interface LayerSpec {
  readonly attention: AttentionSpec;
  readonly feedForward: FeedForwardSpec;
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
  /** A norm on queries and keys before the rotation: each head by itself, or the whole projection at once. */
  readonly qkNorm?: { readonly over: 'head' | 'full'; readonly epsilon: number };
  /** Which projections carry a bias. */
  readonly bias: { readonly query: boolean; readonly key: boolean; readonly value: boolean; readonly output: boolean };
}

/** Rotary position embedding (arXiv 2104.09864). */
export interface RopeSpec {
  /** `adjacent`: elements 2j and 2j+1 form a pair; `half`: elements j and j + dimensions/2. */
  readonly pairing: 'adjacent' | 'half';
  /** The first so many elements of a head are rotated; even. */
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

export type Activation = 'silu';

export type FeedForwardSpec =
  | { readonly kind: 'dense'; readonly norm: NormSpec; readonly inner: number; readonly activation: Activation }
  | { readonly kind: 'moe'; readonly norm: NormSpec; readonly moe: MoeSpec };

/** y = Σ w_i·E_i(x) + g·S(x), in rank order; E(x) = W_down(act(W_gate·x) ⊙ W_up·x). */
export interface MoeSpec {
  readonly experts: number;
  /** Experts selected a token. */
  readonly used: number;
  /** Width of an expert's gate and up projections. */
  readonly inner: number;
  readonly activation: Activation;
  readonly router: RouterSpec;
  readonly shared?: SharedExpertSpec;
  /**
   * Whether the matrices of its experts have scales beside their values, as NVFP4's have: E(x) = s_output · W_down(act(s_gate ·
   * W_gate·x) ⊙ W_up·x), an expert's s_output being up's scale times down's.
   */
  readonly scaled?: true;
}

/** How experts are chosen and weighted; see DESIGN §4. Ties go to the lower index. */
export interface RouterSpec {
  readonly gating: 'softmax' | 'sigmoid';
  /** Whether `moe.selectionBias` is added to the scores for the selection (never for the weights). */
  readonly selectionBias: boolean;
  /** Experts are in `count` equal groups, of which the `used` best are kept, ranked by their best or two best members. */
  readonly groups?: { readonly count: number; readonly used: number; readonly rankedBy: 'best' | 'twoBest' };
  /** Whether the selected weights are divided by their sum. */
  readonly normalise: boolean;
  /** What the weights are multiplied with at the end. */
  readonly scale: number;
}

export interface SharedExpertSpec {
  readonly inner: number;
  /** Whether its output is multiplied with σ(w_g·x). */
  readonly gated: boolean;
}

export interface HeadSpec {
  /** Whether the head uses the embedding's weight. */
  readonly tied: boolean;
}
