/** A model without weights over the real engine: a worker, its loop, sessions. Its tokens are character codes. */

import { bootEngine, EngineClient } from '../../src/engine/engine-client.ts';
import { LoadedModel } from '../../src/engine/model.ts';
import type { LoadOptions, SamplingOptions } from '../../src/engine/types.ts';
import type { ByteSource } from '../../src/format/source.ts';
import type { Graph } from '../../src/model/graph.ts';
import type { ModelSpec } from '../../src/model/spec.ts';
import type { Plan } from '../../src/plan/plan.ts';
import { spawnNodeWorker } from '../../src/platform/node.ts';
import type { PlatformWorker } from '../../src/platform/platform.ts';
import type { Tokenizer } from '../../src/tokenizer/index.ts';

/** Ids 0 … 127; those from 120 on bring the faults of `fake-engine-worker.ts`, 0 ends an answer. */
export const VOCABULARY = 128;
/** Bans what ends or breaks, so that answers run as long as they are let. */
export const SAFE: SamplingOptions = {
  logitBias: Object.fromEntries([0, 120, 121, 122, 123].map((id) => [id, -Infinity])),
};

export interface FakeModelOptions extends Pick<LoadOptions, 'onFault' | 'onProgress' | 'signal'> {
  /** `fake`, or `refused`, `dies`, `never`: how preparing goes; `profiled`: it tells where its time goes; `draws`: it draws tokens itself; `limps`: something failed without which it goes on. */
  readonly architecture?: string;
  readonly context?: number;
  readonly pages?: number;
  readonly sources?: readonly ByteSource[];
  readonly sampling?: SamplingOptions;
  onWorker?(worker: PlatformWorker): void;
}

/** A model without operations, as the engine is told of it. */
export function fakePlan({ architecture = 'fake', context = 512, pages = 64 } = {}): {
  readonly plan: Plan;
  readonly spec: ModelSpec;
  readonly graph: Graph;
} {
  return {
    plan: {
      architecture,
      device: 'reference',
      parts: [
        { device: 'reference', first: 0, end: 0, features: [], bytes: { weights: 0, cache: 0, buffers: 0, total: 0 } },
      ],
      threads: 1,
      features: [],
      context,
      contextReason: 'asked for',
      maxRows: { prompt: 32, step: 64, wanted: 64 },
      cache: { type: 'f32', pages, pageRows: 64, bytes: 0 },
      arenas: [],
      arenaBytes: 0,
      operations: [],
      weights: [],
      buffers: [],
      ignored: [],
      bytes: { weights: 0, cache: 0, buffers: 0, total: 0 },
      bytesPerToken: 0,
      reproducible: true,
    },
    spec: {
      architecture,
      vocabulary: VOCABULARY,
      hidden: 1,
      trainedContext: context,
      layers: [],
      finalNorm: { epsilon: 1e-6 },
      head: { tied: true },
    },
    graph: { operations: [], widths: {}, logits: 'logits', hidden: [] },
  };
}

export async function fakeModel(options: FakeModelOptions = {}): Promise<LoadedModel> {
  const {
    architecture = 'fake',
    context = 512,
    pages = 64,
    sources = [],
    sampling = {},
    onWorker,
    onProgress,
    onFault,
    signal,
  } = options;
  const { plan, spec, graph } = fakePlan({ architecture, context, pages });
  const platform = {
    spawnWorker(entry: string, data: unknown) {
      const worker = spawnNodeWorker(new URL('./fake-engine-worker.ts', import.meta.url), entry, data);
      onWorker?.(worker);
      return worker;
    },
  };
  const engine = await EngineClient.start({
    booted: bootEngine(platform, { devices: ['reference'], threads: 1 }),
    plan,
    spec,
    graph,
    weights: new Map(),
    sources,
    onProgress,
    onFault,
    signal,
  });
  return new LoadedModel({
    file: {
      container: 'gguf',
      version: 3,
      name: 'fake',
      metadata: new Map(),
      tensors: new Map(),
      sources,
      async close() {},
    },
    engine,
    tokenizer: fakeTokenizer,
    templates: {
      render: async (messages) => ({
        text: messages.map(({ role, content }) => `${role}:${content}\n`).join(''),
        content: [],
      }),
      async dispose() {},
    },
    sampling,
    info: { name: 'fake', architecture, parameters: 0, context, vocabulary: VOCABULARY },
    plan: { ...plan, explain: () => 'a fake plan' },
  });
}

const fakeTokenizer: Tokenizer = {
  vocabularySize: VOCABULARY,
  encode: (text) => Array.from(text, (character) => character.charCodeAt(0)),
  encodeTemplated: ({ text }) => Array.from(text, (character) => character.charCodeAt(0)),
  decode: (tokens) => String.fromCharCode(...tokens),
  stream: () => ({ push: (token) => String.fromCharCode(token), flush: () => '' }),
  endOfGeneration: new Set([0]),
  addBos: false,
  addEos: false,
  text: (id) => String.fromCharCode(id),
  isSpecial: (id) => id === 0,
  controlTexts: [],
  namedTokens: {},
  consumedKeys: [],
  summary: () => ({
    model: 'fake',
    tokens: VOCABULARY,
    merges: 0,
    types: {},
    endOfGeneration: [],
    addBos: false,
    addEos: false,
    addSpacePrefix: false,
    chatTemplateLength: 0,
  }),
};
