/** A world for commands: a library whose models answer what a test says, and streams that keep what is written. */

import { PassThrough } from 'node:stream';
import type { Context, Library } from '../../src/cli/context.ts';
import type {
  DeviceMemory,
  ExpertStatistics,
  GenerateOptions,
  LoadOptions,
  Model,
  Part,
  Profile,
  Prompt,
  RoutedRows,
  Session,
  SpeculationStatistics,
} from '../../src/engine/types.ts';
import type { SourceInput } from '../../src/format/source.ts';
import type { Plan } from '../../src/plan/plan.ts';

/** The plan of every fake model. */
export const plan: Plan = {
  architecture: 'fake',
  device: 'reference',
  parts: [
    { device: 'reference', first: 0, end: 2, features: [], bytes: { weights: 1, cache: 1, buffers: 1, total: 3 } },
  ],
  threads: 1,
  features: [],
  context: 64,
  contextReason: 'asked for',
  maxRows: { prompt: 8, step: 64, wanted: 64 },
  cache: { type: 'f32', pages: 1, pageRows: 64, bytes: 1 },
  arenas: [],
  arenaBytes: 0,
  operations: [],
  weights: [],
  buffers: [],
  ignored: [],
  bytes: { weights: 1, cache: 1, buffers: 1, total: 3 },
  bytesPerToken: 1000,
  reproducible: true,
};

/** What a fake model was asked. */
export interface Asked {
  readonly source: SourceInput;
  readonly load: LoadOptions;
  readonly prompts: { prompt: Prompt; options: GenerateOptions }[];
  readonly profiles: { readonly tokens: number; readonly rows: string }[];
  /** Whether statistics were reset, asked by asked. */
  readonly stats: boolean[];
  sessions: number;
  disposed: number;
}

/** What a fake model tells beside its answers. */
export interface Told {
  /** Where its time goes. */
  readonly profile?: Profile;
  /** What its experts did. */
  readonly experts?: ExpertStatistics;
  /** What it took of a GPU's memory. */
  readonly memory?: DeviceMemory;
  /** Ids that each of its answers hands on, of two layers of four experts, one used. */
  readonly routing?: readonly number[];
  /** What its drafts came to. */
  readonly speculation?: SpeculationStatistics;
}

/** A model whose answer to a prompt is what `answer` yields; it keeps what it was asked. */
export function fakeLibrary(
  answer: (prompt: Prompt, options: GenerateOptions) => AsyncIterable<string> | Iterable<string>,
  { profile, experts, routing, memory, speculation }: Told = {},
) {
  const asked: Asked[] = [];
  const library: Library = {
    async planModel() {
      return { plan, info: { name: 'fake', architecture: 'fake', parameters: 1, context: 64, vocabulary: 100 } };
    },
    async load(source, load = {}) {
      const record: Asked = { source, load, prompts: [], profiles: [], stats: [], sessions: 0, disposed: 0 };
      asked.push(record);
      let onRows: ((rows: RoutedRows) => void | Promise<void>) | undefined;
      load.onProgress?.({ bytesDone: 50, bytesTotal: 100 });
      load.onProgress?.({ bytesDone: 100, bytesTotal: 100 });
      const model: Partial<Model> = {
        info: { name: 'fake', architecture: 'fake', parameters: 1, context: 64, vocabulary: 100 },
        plan: { ...plan, ...(speculation === undefined ? {} : { speculation }), explain: () => '' },
        session: () => {
          record.sessions++;
          return {
            async *generate(prompt: Prompt, options: GenerateOptions = {}) {
              const ids = Uint16Array.from(routing ?? []);
              await onRows?.({ rows: ids.length / 2, ids, layers: 2, used: 1 });
              yield* generate(record, prompt, options);
            },
            dispose: async () => {},
          } as unknown as Session;
        },
        async profile(tokens, { rows = 'prompt' } = {}) {
          record.profiles.push({ tokens: tokens.length, rows });
          return profile;
        },
        async expertStats({ reset = false } = {}) {
          record.stats.push(reset);
          return experts;
        },
        async deviceMemory() {
          return memory;
        },
        async speculationStats({ reset = false } = {}) {
          record.stats.push(reset);
          return speculation;
        },
        async recordRouting(to) {
          onRows = to;
          return { shape: { layers: 2, experts: 4, used: 1 }, stop: async () => {} };
        },
        async dispose() {
          record.disposed++;
        },
      };
      return model as Model;
    },
  };
  async function* generate(record: Asked, prompt: Prompt, options: GenerateOptions): AsyncGenerator<Part> {
    record.prompts.push({ prompt: structuredClone(prompt), options });
    let text = '';
    let count = 0;
    for await (const piece of answer(prompt, options)) {
      options.signal?.throwIfAborted();
      text += piece;
      count++;
      yield { type: 'text', text: piece, tokens: [count] };
    }
    const completionTokens = options.ignoreEos === true ? options.maxTokens! : count;
    const usage = {
      promptTokens: 7,
      cachedTokens: 2,
      completionTokens,
      prefillMs: 10,
      decodeMs: 20,
      prefillTokensPerSecond: 500,
      decodeTokensPerSecond: 150,
      seed: 42,
    };
    yield { type: 'finish', reason: 'stop', text, tokens: [1], usage };
  }
  return { library, asked };
}

export interface World {
  readonly context: Context;
  readonly stdin: PassThrough;
  out(): string;
  err(): string;
  interrupt(): void;
}

/** Streams that are kept, and a Ctrl-C to press. @param terminal whether they say that they are one */
export function world(library: Library, terminal = false): World {
  const stdin = Object.assign(new PassThrough(), { isTTY: terminal });
  const stdout = Object.assign(new PassThrough(), { isTTY: terminal });
  const stderr = Object.assign(new PassThrough(), { isTTY: terminal, columns: 80 });
  let handlers: (() => void)[] = [];
  const text = { out: '', err: '' };
  stdout.on('data', (chunk: Buffer) => {
    text.out += chunk;
  });
  stderr.on('data', (chunk: Buffer) => {
    text.err += chunk;
  });
  return {
    stdin,
    out: () => text.out,
    err: () => text.err,
    interrupt: () => handlers.at(-1)?.(),
    context: {
      stdin,
      stdout,
      stderr,
      library: async () => library,
      onInterrupt(handler) {
        handlers.push(handler);
        return () => {
          handlers = handlers.filter((each) => each !== handler);
        };
      },
      exit: (code) => {
        throw new Error(`exit ${code}`);
      },
    },
  };
}
