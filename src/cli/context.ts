/** What a command may touch of the world: the streams, Ctrl-C, and the library, so that tests can give it others. */

import { fileURLToPath } from 'node:url';
import type { LoadOptions, Model, ModelInfo } from '../engine/types.ts';
import type { SourceInput } from '../format/source.ts';
import type { Plan, PlanOptions } from '../plan/plan.ts';

/** The part of the public API that the commands use. */
export interface Library {
  load(source: SourceInput, options?: LoadOptions): Promise<Model>;
  planModel(source: SourceInput, options?: PlanOptions): Promise<{ readonly plan: Plan; readonly info: ModelInfo }>;
}

export interface OutputStream extends NodeJS.WritableStream {
  readonly isTTY?: boolean;
  readonly columns?: number;
}

export interface InputStream extends NodeJS.ReadableStream {
  readonly isTTY?: boolean;
}

export interface Context {
  readonly stdin: InputStream;
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
  /** Loaded when it is needed: help must not wait for an engine. */
  library(): Promise<Library>;
  /** Calls `handler` at each Ctrl-C until the returned function is called; without a handler the process ends with 130. */
  onInterrupt(handler: () => void): () => void;
  /** Ends the process at once. */
  exit(code: number): never;
}

/** Where the bundled model lies: `models/` of the package, seen from `src/cli` and from `dist/cli` alike. */
export const bundledModel = fileURLToPath(new URL('../../models/lexicon-glm4moe-Q4_K_M.gguf', import.meta.url));

/** Writes and waits while the reader is slower than the writer. */
export async function write(stream: OutputStream, text: string): Promise<void> {
  if (!stream.write(text)) {
    await new Promise<void>((resolve) => {
      const done = () => {
        stream.off('drain', done);
        stream.off('close', done);
        resolve();
      };
      stream.on('drain', done);
      stream.on('close', done);
    });
  }
}
