/**
 * The engine's loop: prepares the model in its worker, then runs the scheduler's turns for as long as there is work. While
 * it works it goes back to its event loop only when a command has been announced.
 */

import type { Backend, DeviceBandwidth, Executable, PrepareRequest } from '../backend/backend.ts';
import { prepareParts } from '../backend/parts.ts';
import { type ConclaveError, recordError } from '../errors.ts';
import { GivenIds } from '../experts/given-routing.ts';
import type { DeviceName, Plan } from '../plan/plan.ts';
import { type RoutedModel, routedModel } from '../plan/routing.ts';
import type { WorkerPort } from '../platform/platform.ts';
import { ExpertObserver } from './expert-observer.ts';
import { PagePool, Timeline } from './kv-cache.ts';
import { Mail } from './mail.ts';
import { PortSources } from './port-source.ts';
import { profileRows } from './profile.ts';
import type {
  Command,
  EngineBoot,
  EngineEvent,
  GenerateCommand,
  Outcome,
  PrepareCommand,
  ReadReply,
  RoutingTaken,
  Timing,
} from './protocol.ts';
import { Request } from './request.ts';
import { Sampler, SamplerWorkspace } from './sampler.ts';
import { Scheduler } from './scheduler.ts';
import type { Speculator } from './speculate/speculator.ts';
import { startSpeculation, weightsByName } from './speculate/start.ts';

/** `tokens` messages that may be on their way before the loop gathers tokens instead of posting each. */
const MESSAGES_AHEAD = 4;
/** Milliseconds between `tokens` messages at the least: each costs a tenth of a small model's step. */
const MESSAGE_INTERVAL_MS = 20;
/** A progress message is posted for every so many parts of the whole. */
const PROGRESS_PARTS = 200;

/** Gives the backend of a device. */
export type BackendFor = (device: DeviceName) => Promise<Backend>;

/** Prepares the model and serves until it is disposed or breaks. Never rejects: what goes wrong is posted. */
export async function runEngine(port: WorkerPort, backendFor: BackendFor): Promise<void> {
  const post = (event: EngineEvent, transfer?: readonly Transferable[]) => port.postMessage(event, transfer);
  const boot = port.data as EngineBoot;
  const sources = new PortSources(post);
  const mail = new Mail(boot.flags);
  const prepare = Promise.withResolvers<PrepareCommand>();
  let executable: Executable | undefined;
  let loop: EngineLoop | undefined;
  port.onMessage((message) => {
    const received = message as Command | PrepareCommand | ReadReply | RoutingTaken;
    if (received.type === 'read-done') sources.settle(received);
    else if (received.type === 'routing-taken') loop?.routingTaken();
    else if (received.type === 'prepare') prepare.resolve(received);
    else {
      // The loop hears of it when the run that it waits for has failed.
      if (received.type === 'dispose') executable?.abandon?.();
      mail.deliver(received);
    }
  });
  try {
    // Loaded while the plan is made.
    await Promise.all(boot.devices.map(backendFor));
    const data = await prepare.promise;
    const { plan, programs, spec, graph } = data;
    const routed = routedModel(plan, spec);
    const onFault = (error: ConclaveError) => post({ type: 'fault', error: recordError(error) });
    const all = data.sources.map((source, index) => sources.source(index, source));
    executable = await prepareParts(
      {
        plan,
        programs,
        spec,
        graph,
        weights: weightsByName(data.weights),
        sources: all,
        ...(routed === undefined ? {} : givenTo(routed, data)),
        onProgress: throttle(post),
        onFault,
      },
      backendFor,
    );
    const speculator = await startSpeculation(data, { executable, sources: all, backendFor, onFault });
    post({ type: 'ready', bytes: executable.bytes + (speculator?.bytes ?? 0) });
    loop = new EngineLoop({ post, mail, data, routed, executable, speculator });
    await loop.run();
    await speculator?.dispose();
    await executable.dispose();
    post({ type: 'disposed' });
  } catch (error) {
    post({ type: 'broken', error: recordError(error) });
  }
}

/** What is known of the experts that rows take, as the backend reads it. */
function givenTo(
  { layers, used }: RoutedModel,
  { routing, expertUses }: PrepareCommand,
): Pick<PrepareRequest, 'routing' | 'expertUses'> {
  return {
    routing: routing && new GivenIds(routing, layers, used),
    expertUses: expertUses && ((layer, expert) => expertUses[layers.indexOf(layer)]?.[expert] ?? 0),
  };
}

function throttle(
  post: (event: EngineEvent) => void,
): (progress: { readonly bytesDone: number; readonly bytesTotal: number }) => void {
  let next = 0;
  return ({ bytesDone, bytesTotal }) => {
    if (bytesDone < next && bytesDone < bytesTotal) return;
    next = bytesDone + bytesTotal / PROGRESS_PARTS;
    post({ type: 'progress', bytesDone, bytesTotal });
  };
}

interface LoopOptions {
  readonly post: (event: EngineEvent, transfer?: readonly Transferable[]) => void;
  readonly mail: Mail;
  readonly data: PrepareCommand;
  /** Absent: the model has no experts, or some that nothing is told of. */
  readonly routed: RoutedModel | undefined;
  readonly executable: Executable;
  /** Absent: nothing is drafted. */
  readonly speculator: Speculator | undefined;
}

class EngineLoop {
  readonly #post: LoopOptions['post'];
  readonly #mail: Mail;
  readonly #plan: Plan;
  readonly #vocabulary: number;
  readonly #executable: Executable;
  readonly #speculator: Speculator | undefined;
  readonly #scheduler: Scheduler;
  readonly #pool: PagePool;
  readonly #timelines = new Map<number, Timeline>();
  readonly #workspace = new SamplerWorkspace();
  /** Tokens that are not posted yet. */
  readonly #outbox = new Map<Request, number[]>();
  #tokenMessages = 0;
  #lastPostAt = -Infinity;
  #bandwidth: DeviceBandwidth | undefined;
  readonly #experts: ExpertObserver;

  constructor({ post, mail, data, routed, executable, speculator }: LoopOptions) {
    this.#post = post;
    this.#mail = mail;
    this.#plan = data.plan;
    this.#vocabulary = data.spec.vocabulary;
    this.#executable = executable;
    this.#speculator = speculator;
    this.#pool = new PagePool(data.plan.cache.pages);
    this.#pool.onShortage = (needed, asking) => this.#reclaim(needed, asking);
    this.#scheduler = new Scheduler({
      executable,
      context: data.plan.context,
      promptRows: data.plan.maxRows.prompt,
      stepRows: Math.min(data.plan.maxRows.step, data.plan.maxRows.wanted),
      vocabulary: data.spec.vocabulary,
      speculator,
      now: () => performance.now(),
      onToken: (request, token) => {
        const waiting = this.#outbox.get(request);
        if (waiting === undefined) this.#outbox.set(request, [token]);
        else waiting.push(token);
      },
      onFinish: (request, reason) =>
        this.#end(request, {
          type: 'finish',
          request: request.id,
          reason,
          ...timing(request),
          ...outcome(request.timeline),
        }),
      onError: (request, error) =>
        this.#end(request, {
          type: 'failed',
          request: request.id,
          error: recordError(error),
          ...outcome(request.timeline),
        }),
    });
    this.#experts = new ExpertObserver({
      executable,
      routed,
      counts: data.expertStats === true,
      post: (block) => post({ type: 'routing', ...block }, [block.ids.buffer]),
    });
  }

  /** The main side is done with a block of recorded routing. */
  routingTaken(): void {
    this.#experts.taken();
  }

  /** Returns when it is told to dispose. */
  async run(): Promise<void> {
    for (;;) {
      for (const command of await this.#mail.take(!this.#scheduler.busy)) {
        if (command.type === 'dispose') return;
        await this.#obey(command);
      }
      if (this.#scheduler.busy) {
        await this.#scheduler.turn();
        if (this.#timeToPost()) this.#postTokens();
      }
      await this.#experts.settle(!this.#scheduler.busy);
    }
  }

  async #obey(command: Exclude<Command, { type: 'dispose' }>): Promise<void> {
    switch (command.type) {
      case 'generate':
        this.#generate(command);
        break;
      case 'cancel': {
        const request = this.#scheduler.remove(command.request);
        if (request === undefined) break;
        request.timeline.rewind(command.keep);
        this.#outbox.delete(request);
        const { id } = request;
        this.#post({
          type: 'finish',
          request: id,
          reason: 'cancelled',
          ...timing(request),
          ...outcome(request.timeline),
        });
        break;
      }
      case 'close':
        this.#timelines.get(command.session)?.rewind(0);
        this.#timelines.delete(command.session);
        break;
      case 'logits':
        await this.#scheduler.settle();
        await this.#logits(command.request, command.tokens);
        break;
      case 'profile':
        await this.#scheduler.settle();
        await this.#profile(command);
        break;
      case 'expert-stats':
        this.#post({ type: 'expert-stats', request: command.request, stats: this.#experts.stats?.snapshot() });
        if (command.reset) this.#experts.stats?.reset();
        break;
      case 'speculation-stats': {
        const stats = this.#speculator?.snapshot(command);
        this.#post({ type: 'speculation-stats', request: command.request, stats });
        break;
      }
      case 'device-memory':
        this.#post({ ...command, memory: this.#executable.memory });
        break;
      case 'record-routing':
        await this.#scheduler.settle();
        await this.#experts.record(command.on);
        this.#post({ type: 'record-routing', request: command.request });
        break;
    }
  }

  #generate({ request: id, session, prompt, keep, sampler: settings, maxTokens, endTokens }: GenerateCommand): void {
    const timeline = this.#timelines.get(session) ?? new Timeline(this.#pool, this.#plan.context);
    // In order of use: the ones at the front have rested longest.
    this.#timelines.delete(session);
    this.#timelines.set(session, timeline);
    // It may hold less than the session believes, if its pages were wanted elsewhere meanwhile.
    timeline.rewind(keep);
    const sampler = new Sampler(settings, this.#workspace);
    sampler.observePrompt(prompt);
    try {
      this.#scheduler.add(
        new Request({ id, timeline, prompt, settings, sampler, maxTokens, endTokens: new Set(endTokens) }),
      );
    } catch (error) {
      this.#post({ type: 'failed', request: id, error: recordError(error), ...outcome(timeline) });
    }
  }

  /** Takes the pages of sessions that rest, those that have rested longest first; they read their prompts again. */
  #reclaim(needed: number, asking: Timeline): void {
    for (const timeline of this.#timelines.values()) {
      if (this.#pool.free >= needed) return;
      if (timeline !== asking && !this.#scheduler.holds(timeline)) timeline.rewind(0);
    }
  }

  /** All rows' logits of a prompt by itself, in runs of as many rows as the plan gives logits for at once. */
  async #logits(request: number, tokens: Int32Array): Promise<void> {
    const timeline = new Timeline(this.#pool, this.#plan.context);
    const rowsAtOnce = Math.min(this.#plan.maxRows.wanted, this.#plan.maxRows.prompt);
    try {
      const logits = new Float32Array(tokens.length * this.#vocabulary);
      timeline.reserve(tokens.length);
      for (let first = 0; first < tokens.length; first += rowsAtOnce) {
        const rows = Math.min(rowsAtOnce, tokens.length - first);
        const counting = Int32Array.from({ length: rows }, (_, row) => row);
        const part = await this.#executable.run({
          mode: 'prompt',
          tokens: tokens.subarray(first, first + rows),
          positions: counting.map((row) => first + row),
          sequences: new Int32Array(rows),
          pageTables: [timeline.pageTable],
          wanted: counting,
        });
        logits.set(part.subarray(0, rows * this.#vocabulary), first * this.#vocabulary);
        timeline.advance(rows, 'prompt');
      }
      this.#post({ type: 'logits', request, logits }, [logits.buffer]);
    } catch (error) {
      this.#post({ type: 'failed', request, error: recordError(error), length: 0, promptRows: 0 });
    } finally {
      timeline.rewind(0);
    }
  }

  async #profile({ request, ...asked }: Extract<Command, { type: 'profile' }>): Promise<void> {
    const executable = this.#executable;
    const timeline = new Timeline(this.#pool, this.#plan.context);
    try {
      const promptRows = this.#plan.maxRows.prompt;
      const run = await this.#experts.unwatched(() => profileRows(asked, { executable, timeline, promptRows }));
      // Measured once: it takes memory, and nothing changes it.
      if (run !== undefined) this.#bandwidth ??= await executable.bandwidth?.();
      this.#post({ type: 'profile', request, profile: run && { ...run, bandwidth: this.#bandwidth } });
    } catch (error) {
      this.#post({ type: 'failed', request, error: recordError(error), length: 0, promptRows: 0 });
    } finally {
      timeline.rewind(0);
    }
  }

  #end(request: Request, event: EngineEvent): void {
    if (this.#outbox.has(request)) this.#postTokens();
    this.#post(event);
  }

  /** Not too often, not faster than the main side reads; but nothing waits for a chunk of a prompt, which may take long. */
  #timeToPost(): boolean {
    if (this.#outbox.size === 0 || this.#tokenMessages - this.#mail.tokensReceived >= MESSAGES_AHEAD) return false;
    return this.#scheduler.promptsWaiting || performance.now() - this.#lastPostAt >= MESSAGE_INTERVAL_MS;
  }

  #postTokens(): void {
    const batches = Array.from(this.#outbox, ([request, tokens]) => ({
      request: request.id,
      tokens,
      ...timing(request),
    }));
    this.#outbox.clear();
    this.#lastPostAt = performance.now();
    this.#tokenMessages++;
    this.#post({ type: 'tokens', batches });
  }
}

function timing(request: Request): Timing {
  const { reusedRows, startedAt, firstTokenAt, lastTokenAt } = request;
  return { reusedRows, prefillMs: Math.max(0, firstTokenAt - startedAt), decodeMs: lastTokenAt - firstTokenAt };
}

function outcome({ length, promptRows }: Timeline): Outcome {
  return { length, promptRows };
}
