/** The shapes that synthetic models are written in: an entry each. What a shape's file holds is in layout.ts. */

/** A model of one of the families, with sizes as its configuration names them. */
export interface Shape {
  readonly architecture: 'qwen3moe' | 'olmoe' | 'glm4moe' | 'gpt-oss' | 'qwen3' | 'llama';
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Width of a dense layer; the file states it also where no layer is dense. */
  readonly inner: number;
  /** Absent: every layer is dense. */
  readonly experts?: ExpertShape;
  readonly vocabulary: number;
  /** Id of `<|endoftext|>`; `<|im_start|>` and `<|im_end|>` follow it, and ids after those are unused. */
  readonly firstSpecial: number;
  readonly ropeBase: number;
  readonly epsilon: number;
  readonly context: number;
}

export interface ExpertShape {
  readonly count: number;
  readonly used: number;
  /** Width inside an expert. */
  readonly inner: number;
  /** Experts that every token goes through, and leading layers that are dense; both of `glm4moe` only. */
  readonly shared?: number;
  readonly denseLayers?: number;
}

/** Qwen3-30B-A3B, and Qwen3-Coder-30B-A3B. */
const qwen3With30b: Shape = {
  architecture: 'qwen3moe',
  layers: 48,
  hidden: 2048,
  heads: 32,
  kvHeads: 4,
  headDim: 128,
  inner: 6144,
  experts: { count: 128, used: 8, inner: 768 },
  vocabulary: 151936,
  firstSpecial: 151643,
  ropeBase: 1e6,
  epsilon: 1e-6,
  context: 40960,
};

/** GLM-4.5-Air without its layer that predicts further ahead. */
const glm45Air: Shape = {
  architecture: 'glm4moe',
  layers: 46,
  hidden: 4096,
  heads: 96,
  kvHeads: 8,
  headDim: 128,
  inner: 10944,
  experts: { count: 128, used: 8, inner: 1408, shared: 1, denseLayers: 1 },
  vocabulary: 151552,
  firstSpecial: 151329,
  ropeBase: 1e6,
  epsilon: 1e-5,
  context: 131072,
};

export const shapes: Readonly<Record<string, Shape>> = {
  /** 18.6 GB: what the real model weighs. */
  'qwen3-30b-a3b': qwen3With30b,
  /** 2.6 GB: too large for any cache, small enough for a laptop. */
  'qwen3-30b-a3b-6l': { ...qwen3With30b, layers: 6 },
  /** 4.2 GB. */
  'olmoe-1b-7b': {
    architecture: 'olmoe',
    layers: 16,
    hidden: 2048,
    heads: 16,
    kvHeads: 16,
    headDim: 128,
    inner: 1024,
    experts: { count: 64, used: 8, inner: 1024 },
    vocabulary: 50304,
    firstSpecial: 50279,
    ropeBase: 1e4,
    epsilon: 1e-5,
    context: 4096,
  },
  /** 12.1 GB, experts in MXFP4. */
  'gpt-oss-20b': {
    architecture: 'gpt-oss',
    layers: 24,
    hidden: 2880,
    heads: 64,
    kvHeads: 8,
    headDim: 64,
    inner: 2880,
    experts: { count: 32, used: 4, inner: 2880 },
    vocabulary: 201088,
    firstSpecial: 199999,
    ropeBase: 150000,
    epsilon: 1e-5,
    context: 131072,
  },
  /** 70 GB. */
  'glm-4.5-air': glm45Air,
  /** 8.6 GB. */
  'glm-4.5-air-6l': { ...glm45Air, layers: 6 },
  /** 5.0 GB, dense. */
  'qwen3-8b': {
    architecture: 'qwen3',
    layers: 36,
    hidden: 4096,
    heads: 32,
    kvHeads: 8,
    headDim: 128,
    inner: 12288,
    vocabulary: 151936,
    firstSpecial: 151643,
    ropeBase: 1e6,
    epsilon: 1e-6,
    context: 40960,
  },
  /** 4.9 GB, dense. */
  'llama-3.1-8b': {
    architecture: 'llama',
    layers: 32,
    hidden: 4096,
    heads: 32,
    kvHeads: 8,
    headDim: 128,
    inner: 14336,
    vocabulary: 128256,
    firstSpecial: 128000,
    ropeBase: 5e5,
    epsilon: 1e-5,
    context: 131072,
  },
  /** 3 MB: for tests. */
  'tiny-moe': {
    architecture: 'qwen3moe',
    layers: 2,
    hidden: 256,
    heads: 4,
    kvHeads: 2,
    headDim: 64,
    inner: 512,
    experts: { count: 12, used: 3, inner: 256 },
    vocabulary: 392,
    firstSpecial: 388,
    ropeBase: 1e4,
    epsilon: 1e-6,
    context: 512,
  },
};
