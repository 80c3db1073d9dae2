/** The shapes that synthetic models are written in: an entry each. What a shape's file holds is in layout.ts. */

/** A mixture-of-experts model of the `qwen3moe` architecture; sizes as its configuration names them. */
export interface Shape {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly experts: number;
  readonly used: number;
  /** Width inside an expert. */
  readonly expertInner: number;
  /** Width of a dense layer: the file states it, though no layer is dense. */
  readonly inner: number;
  readonly vocabulary: number;
  /** Id of `<|endoftext|>`; `<|im_start|>` and `<|im_end|>` follow it, and ids after those are unused. */
  readonly firstSpecial: number;
  readonly ropeBase: number;
  readonly epsilon: number;
  readonly context: number;
}

/** Qwen3-30B-A3B. */
const qwen3With30b: Shape = {
  layers: 48,
  hidden: 2048,
  heads: 32,
  kvHeads: 4,
  headDim: 128,
  experts: 128,
  used: 8,
  expertInner: 768,
  inner: 6144,
  vocabulary: 151936,
  firstSpecial: 151643,
  ropeBase: 1e6,
  epsilon: 1e-6,
  context: 40960,
};

export const shapes: Readonly<Record<string, Shape>> = {
  /** 18.6 GB: what the real model weighs. */
  'qwen3-30b-a3b': qwen3With30b,
  /** 2.6 GB: too large for any cache, small enough for a laptop. */
  'qwen3-30b-a3b-6l': { ...qwen3With30b, layers: 6 },
  /** 3 MB: for tests. */
  'tiny-moe': {
    layers: 2,
    hidden: 256,
    heads: 4,
    kvHeads: 2,
    headDim: 64,
    experts: 12,
    used: 3,
    expertInner: 256,
    inner: 512,
    vocabulary: 392,
    firstSpecial: 388,
    ropeBase: 1e4,
    epsilon: 1e-6,
    context: 512,
  },
};
