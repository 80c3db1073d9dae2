/**
 * The main side of the engine's worker: starts it, answers its reads, posts commands and hands events to the request they
 * belong to. Whatever ends the worker ends every request with an error; nothing waits for an answer that cannot come.
 */

import type { DeviceMemoryUse } from '../backend/backend.ts';
import { ConclaveError, DisposedError, InternalError, recordError, reviveError } from '../errors.ts';
import type { RunStatsSnapshot } from '../experts/stats.ts';
import type { ByteSource } from '../format/source.ts';
import type { Graph } from '../model/graph.ts';
import type { ModelSpec } from '../model/spec.ts';
import type { Weights } from '../model/weights.ts';
import type { Plan } from '../plan/plan.ts';
import type { Platform, PlatformWorker } from '../platform/platform.ts';
import { answerRead } from './port-source.ts';
import type { ProfileRequest } from './profile.ts';
import {
  type Command,
  type DraftModel,
  type EngineBoot,
  type EngineEvent,
  FLAG_COMMANDS,
  FLAG_RECEIVED,
  FLAGS,
  type GenerateCommand,
  type PrepareCommand,
  type ReadRequest,
  type RoutingTaken,
} from './protocol.ts';
import { RequestStream } from './request-stream.ts';
import { type RoutingBlock, RoutingReceiver } from './routing-recorder.ts';
import type { SpeculationSnapshot } from './speculate/stats.ts';
import type { Profile } from './types.ts';

/** How long a loop may take to end its run before the worker is ended under it. */
const DISPOSE_MS = 2000;

/** An engine's worker that is getting ready while its model is still being read and planned. */
export interface BootedEngine {
  readonly worker: PlatformWorker;
  readonly flags?: SharedArrayBuffer;
}

/** Starts a worker for a model to come; terminate it if none does. */
export function bootEngine(
  platform: Pick<Platform, 'spawnWorker'>,
  boot: Pick<EngineBoot, 'devices' | 'threads'>,
): BootedEngine {
  const flags =
    typeof SharedArrayBuffer === 'undefined' ? undefined : new SharedArrayBuffer(FLAGS * Int32Array.BYTES_PER_ELEMENT);
  return { worker: platform.spawnWorker('engine-worker', { ...boot, flags } satisfies EngineBoot), flags };
}

export interface EngineStart {
  readonly booted: BootedEngine;
  readonly plan: Plan;
  /** Of `programsOf`, where there are any. */
  readonly programs?: readonly unknown[];
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: Weights;
  /** By `TensorInfo.source`. They stay the caller's to close, after {@link EngineClient.dispose}. */
  readonly sources: readonly ByteSource[];
  /** As in `PrepareCommand`. */
  readonly expertStats?: boolean;
  readonly routing?: Uint16Array;
  readonly expertUses?: readonly ArrayLike<number>[];
  /** What drafts for it, whose sources are then behind its own in `sources`. */
  readonly draft?: DraftModel;
  onProgress?(progress: { readonly bytesDone: number; readonly bytesTotal: number }): void;
  onFault?(error: ConclaveError): void;
  readonly signal?: AbortSignal;
}

export class EngineClient {
  readonly #worker: PlatformWorker;
  readonly #sources: readonly ByteSource[];
  readonly #flags: Int32Array | undefined;
  readonly #onProgress: EngineStart['onProgress'];
  readonly #onFault: EngineStart['onFault'];
  readonly #streams = new Map<number, RequestStream>();
  /** Requests that are answered once. */
  readonly #questions = new Map<number, Pick<PromiseWithResolvers<unknown>, 'resolve' | 'reject'>>();
  readonly #reads = new Set<Promise<void>>();
  readonly #ready = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<void>();
  /** Takes which experts rows use, while that is recorded. */
  #routing: RoutingReceiver | undefined;
  #nextRequest = 0;
  /** Things somebody waits for; while there are any the worker keeps the process alive. */
  #waits = 0;
  #disposing: Promise<void> | undefined;
  /** Why nothing can be asked any more. */
  #closed: ConclaveError | undefined;
  /** Bytes that the backend holds at the most. */
  bytes = 0;

  /**
   * Prepares a model in a booted worker, which is its own from then on.
   * @throws what the backend raises; `signal.reason` when aborted.
   */
  static async start(options: EngineStart): Promise<EngineClient> {
    const { signal } = options;
    const client = new EngineClient(options);
    if (signal?.aborted === true) client.#ready.reject(signal.reason);
    const abort = () => client.#ready.reject(signal?.reason);
    signal?.addEventListener('abort', abort);
    try {
      await client.#keepAlive(client.#ready.promise);
      return client;
    } catch (error) {
      await client.#end(new DisposedError('the engine'));
      throw error;
    } finally {
      signal?.removeEventListener('abort', abort);
    }
  }

  private constructor({
    booted,
    plan,
    programs,
    spec,
    graph,
    weights,
    sources,
    onProgress,
    onFault,
    ...more
  }: EngineStart) {
    const { expertStats, routing, expertUses, draft } = more;
    this.#flags = booted.flags && new Int32Array(booted.flags);
    this.#sources = sources;
    this.#onProgress = onProgress;
    this.#onFault = onFault;
    this.#worker = booted.worker;
    this.#worker.onMessage((message) => this.#receive(message as EngineEvent));
    this.#worker.onError((error) => this.#break(error));
    this.#worker.unref();
    this.#worker.postMessage({
      type: 'prepare',
      plan,
      programs,
      spec,
      graph,
      weights: [...weights.values()],
      sources: sources.map(({ name, size, repeats, fileAddress }) => ({ name, size, repeats, fileAddress })),
      expertStats,
      routing,
      expertUses,
      speculation: plan.speculation,
      draft,
    } satisfies PrepareCommand);
  }

  /** Starts a request; its stream ends with a `finish` item or an error. */
  generate(command: Omit<GenerateCommand, 'type' | 'request'>): RequestStream {
    this.#check();
    const request = this.#nextRequest++;
    const stream = new RequestStream(request);
    this.#streams.set(request, stream);
    void this.#keepAlive(stream.settled);
    this.#command({ type: 'generate', request, ...command });
    return stream;
  }

  /** Ends a request that may still be in work; of its timeline at most `keep` rows stay. See `RequestStream.settled`. */
  cancel(stream: RequestStream, keep: number): void {
    if (this.#streams.has(stream.id)) this.#command({ type: 'cancel', request: stream.id, keep });
  }

  /** Forgets a session's timeline. */
  close(session: number): void {
    if (this.#closed === undefined) this.#command({ type: 'close', session });
  }

  /** [tokens, vocabulary] */
  logits(tokens: Int32Array): Promise<Float32Array> {
    return this.#ask((request) => ({ type: 'logits', request, tokens }));
  }

  /** Gives nothing where the backend knows nothing. */
  profile(asked: ProfileRequest): Promise<Profile | undefined> {
    return this.#ask((request) => ({ type: 'profile', request, ...asked }));
  }

  /** Gives nothing where nothing is counted. */
  expertStats(reset: boolean): Promise<RunStatsSnapshot | undefined> {
    return this.#ask((request) => ({ type: 'expert-stats', request, reset }));
  }

  /** Gives nothing where nothing is drafted. */
  speculationStats(reset: boolean): Promise<SpeculationSnapshot | undefined> {
    return this.#ask((request) => ({ type: 'speculation-stats', request, reset }));
  }

  /** Gives nothing where no device has memory of its own. */
  deviceMemory(): Promise<DeviceMemoryUse | undefined> {
    return this.#ask((request) => ({ type: 'device-memory', request }));
  }

  /**
   * Hands on which experts rows use, of runs that begin after it has settled.
   * @returns what ends it; it throws what `onRows` threw
   */
  async recordRouting(onRows: (block: RoutingBlock) => void | Promise<void>): Promise<() => Promise<void>> {
    const receiver = new RoutingReceiver(onRows);
    await this.#ask((request) => ({ type: 'record-routing', request, on: true }));
    this.#routing = receiver;
    return async () => {
      try {
        await this.#ask((request) => ({ type: 'record-routing', request, on: false }));
      } finally {
        if (this.#routing === receiver) this.#routing = undefined;
      }
      await receiver.finish();
    };
  }

  #ask<Answer>(commandOf: (request: number) => Command): Promise<Answer> {
    this.#check();
    const request = this.#nextRequest++;
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    this.#questions.set(request, { resolve: (answer) => resolve(answer as Answer), reject });
    this.#command(commandOf(request));
    return this.#keepAlive(promise);
  }

  #answer(request: number, answer: unknown): void {
    this.#questions.get(request)?.resolve(answer);
    this.#questions.delete(request);
  }

  /** Ends every request with DisposedError, frees the model and ends the worker. */
  dispose(): Promise<void> {
    this.#disposing ??= this.#dispose();
    return this.#disposing;
  }

  async #dispose(): Promise<void> {
    if (this.#closed !== undefined) return this.#end(this.#closed);
    this.#command({ type: 'dispose' });
    this.#fail(new DisposedError('the model'));
    // A loop in the middle of a long run cannot hear; the worker's end frees everything just as well.
    let timer: ReturnType<typeof setTimeout> | undefined;
    const patience = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, DISPOSE_MS);
    });
    await this.#keepAlive(Promise.race([this.#ended.promise, patience]));
    clearTimeout(timer);
    await this.#end(new DisposedError('the model'));
  }

  #check(): void {
    if (this.#closed !== undefined) throw this.#closed;
  }

  #command(command: Command): void {
    this.#worker.postMessage(command);
    // After the message: the loop must find it when it looks.
    if (this.#flags !== undefined) Atomics.add(this.#flags, FLAG_COMMANDS, 1);
  }

  #receive(event: EngineEvent): void {
    switch (event.type) {
      case 'progress':
        try {
          this.#onProgress?.(event);
        } catch (error) {
          this.#ready.reject(error);
        }
        break;
      case 'fault':
        try {
          this.#onFault?.(reviveError(event.error));
        } catch (error) {
          this.#ready.reject(error);
        }
        break;
      case 'ready':
        this.bytes = event.bytes;
        this.#ready.resolve();
        break;
      case 'broken':
        this.#break(reviveError(event.error));
        break;
      case 'read': {
        const read = this.#read(event);
        this.#reads.add(read);
        void read.then(() => this.#reads.delete(read));
        break;
      }
      case 'tokens':
        for (const batch of event.batches) this.#streams.get(batch.request)?.push({ type: 'tokens', batch });
        if (this.#flags !== undefined) Atomics.add(this.#flags, FLAG_RECEIVED, 1);
        break;
      case 'finish':
        this.#streams.get(event.request)?.push(event);
        this.#streams.delete(event.request);
        break;
      case 'failed': {
        const error = reviveError(event.error);
        this.#questions.get(event.request)?.reject(error);
        this.#questions.delete(event.request);
        const stream = this.#streams.get(event.request);
        this.#streams.delete(event.request);
        stream?.fail(error);
        stream?.settle(event);
        break;
      }
      case 'logits':
        this.#answer(event.request, event.logits);
        break;
      case 'profile':
        this.#answer(event.request, event.profile);
        break;
      case 'speculation-stats':
      case 'expert-stats':
        this.#answer(event.request, event.stats);
        break;
      case 'device-memory':
        this.#answer(event.request, event.memory);
        break;
      case 'routing':
        // Always answered, since the loop waits for it.
        void Promise.resolve(this.#routing?.receive(event)).then(() =>
          this.#worker.postMessage({ type: 'routing-taken' } satisfies RoutingTaken),
        );
        break;
      case 'record-routing':
        this.#answer(event.request, undefined);
        break;
      case 'disposed':
        this.#ended.resolve();
        break;
    }
  }

  async #read(request: ReadRequest): Promise<void> {
    const reply = await answerRead(this.#sources, request);
    if (this.#closed !== undefined) return;
    // A buffer that was made for this answer is given away; one in shared memory was filled in place.
    this.#worker.postMessage(reply, reply.bytes === undefined ? [] : [reply.bytes.buffer as ArrayBuffer]);
  }

  /** The worker is of no more use. */
  #break(error: unknown): void {
    const why =
      error instanceof ConclaveError
        ? error
        : new InternalError(`the engine's worker failed: ${recordError(error).message}`, { cause: error });
    this.#fail(why);
    this.#ended.resolve();
    void this.#worker.terminate();
  }

  /** Everybody who waits gets `error`, and so does whoever asks from now on. */
  #fail(error: ConclaveError): void {
    this.#closed ??= error;
    this.#ready.reject(error);
    for (const stream of this.#streams.values()) {
      stream.fail(error);
      stream.settle({ length: 0, promptRows: 0 });
    }
    this.#streams.clear();
    for (const question of this.#questions.values()) question.reject(error);
    this.#questions.clear();
  }

  async #end(error: ConclaveError): Promise<void> {
    this.#fail(error);
    await this.#worker.terminate();
    // A read in flight still writes to its target and still needs its file.
    await Promise.all(this.#reads);
  }

  async #keepAlive<T>(promise: Promise<T>): Promise<T> {
    if (this.#waits++ === 0) this.#worker.ref();
    try {
      return await promise;
    } finally {
      if (--this.#waits === 0) this.#worker.unref();
    }
  }
}
