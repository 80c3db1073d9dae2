/**
 * Every message between the main side and the engine's worker. Commands to the worker are announced in shared memory, so
 * that the loop knows of them without going back to its event loop.
 */

import type { DeviceMemoryUse } from '../backend/backend.ts';
import type { SamplerSettings } from '../backend/sampling.ts';
import type { ErrorRecord } from '../errors.ts';
import type { RunStatsSnapshot } from '../experts/stats.ts';
import type { ByteSource } from '../format/source.ts';
import type { Graph } from '../model/graph.ts';
import type { ModelSpec } from '../model/spec.ts';
import type { Weight } from '../model/weights.ts';
import type { DeviceName, Plan, PlannedSpeculation } from '../plan/plan.ts';
import type { ProfileRequest } from './profile.ts';
import type { RoutingBlock } from './routing-recorder.ts';
import type { SpeculationSnapshot } from './speculate/stats.ts';
import type { FinishReason, Profile } from './types.ts';

/** What the worker is started with, before the model is planned: enough to get its device ready. */
export interface EngineBoot {
  /** Devices that the plan is sure to use: their code is loaded and their workers are started while it is made. */
  readonly devices: readonly DeviceName[];
  readonly threads: number;
  /** Int32 [{@link FLAGS}]; absent where the runtime has no shared memory. */
  readonly flags?: SharedArrayBuffer;
}

/** What the worker knows of a source without reading it. */
export type SourceFacts = Pick<ByteSource, 'name' | 'size' | 'repeats' | 'fileAddress'>;

/** Main side → worker, once: the model to prepare. */
export interface PrepareCommand {
  readonly type: 'prepare';
  readonly plan: Plan;
  /** Of `programsOf`, where there are any. */
  readonly programs?: readonly unknown[];
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: readonly Weight[];
  readonly sources: readonly SourceFacts[];
  /** Whether what experts do is counted from the beginning. */
  readonly expertStats?: boolean;
  /** Which experts rows of split layers take, whatever their routers say: [tokens, layers with experts, used]. */
  readonly routing?: Uint16Array;
  /** How often experts were used, [layers with experts][experts]. */
  readonly expertUses?: readonly ArrayLike<number>[];
  /** How tokens are drafted; absent: not at all. */
  readonly speculation?: PlannedSpeculation;
  /** The model that drafts them, where one does; its sources stand behind the model's own. */
  readonly draft?: DraftModel;
}

/** A model that drafts for another one. */
export interface DraftModel {
  readonly plan: Plan;
  readonly programs?: readonly unknown[];
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly weights: readonly Weight[];
  /** Which of the sources is its first. */
  readonly firstSource: number;
}

/** How many commands the main side has posted. */
export const FLAG_COMMANDS = 0;
/** How many `tokens` messages the main side has dealt with. */
export const FLAG_RECEIVED = 1;
export const FLAGS = 2;

export interface GenerateCommand {
  readonly type: 'generate';
  readonly request: number;
  readonly session: number;
  /** The whole prompt. */
  readonly prompt: Int32Array;
  /** Rows of the session's timeline that stay, a prefix of the prompt; the rest is forgotten. */
  readonly keep: number;
  readonly sampler: SamplerSettings;
  readonly maxTokens: number;
  readonly endTokens: readonly number[];
}

/** Main side → worker, announced. */
export type Command =
  | GenerateCommand
  /** Ends a request; of its session's timeline at most `keep` rows stay. Answered with `finish` if it was in work. */
  | { readonly type: 'cancel'; readonly request: number; readonly keep: number }
  | { readonly type: 'close'; readonly session: number }
  | { readonly type: 'logits'; readonly request: number; readonly tokens: Int32Array }
  | ({ readonly type: 'profile'; readonly request: number } & ProfileRequest)
  /** `reset`: counts begin anew afterwards. */
  | { readonly type: 'expert-stats'; readonly request: number; readonly reset: boolean }
  | { readonly type: 'speculation-stats'; readonly request: number; readonly reset: boolean }
  | { readonly type: 'device-memory'; readonly request: number }
  /** Rows' experts are posted as `routing` from now on, or, once all of them are, no more. */
  | { readonly type: 'record-routing'; readonly request: number; readonly on: boolean }
  | { readonly type: 'dispose' };

/** Main side → worker, not announced: a `routing` message has been dealt with. */
export interface RoutingTaken {
  readonly type: 'routing-taken';
}

/** Main side → worker, not announced: the answer to a `read`. `bytes` where the target was not shared. */
export interface ReadReply {
  readonly type: 'read-done';
  readonly read: number;
  readonly bytes?: Uint8Array;
  readonly error?: ErrorRecord;
}

export interface ReadRequest {
  readonly type: 'read';
  readonly read: number;
  readonly source: number;
  readonly offset: number;
  readonly length: number;
  /** Shared memory to read straight into. */
  readonly target?: { readonly buffer: SharedArrayBuffer; readonly byteOffset: number };
}

/** What became of a session's timeline, and how long it took. */
export interface Outcome {
  /** Rows in the timeline. */
  readonly length: number;
  /** Of these, the leading ones that were computed as rows of a prompt. */
  readonly promptRows: number;
}

export interface Timing {
  /** Rows of the prompt that the timeline held already. */
  readonly reusedRows: number;
  /** From the first prompt chunk's start to the first token. */
  readonly prefillMs: number;
  /** From the first token to the last one. */
  readonly decodeMs: number;
}

export interface TokenBatch extends Timing {
  readonly request: number;
  readonly tokens: readonly number[];
}

/** Worker → main side. */
export type EngineEvent =
  | { readonly type: 'progress'; readonly bytesDone: number; readonly bytesTotal: number }
  | { readonly type: 'ready'; readonly bytes: number }
  /** The model could not be prepared, or the loop itself broke: nothing more comes. */
  | { readonly type: 'broken'; readonly error: ErrorRecord }
  /** Something failed, and the model goes on without it. */
  | { readonly type: 'fault'; readonly error: ErrorRecord }
  | ReadRequest
  | { readonly type: 'tokens'; readonly batches: readonly TokenBatch[] }
  | ({ readonly type: 'finish'; readonly request: number; readonly reason: FinishReason | 'cancelled' } & Outcome &
      Timing)
  | ({ readonly type: 'failed'; readonly request: number; readonly error: ErrorRecord } & Outcome)
  | { readonly type: 'logits'; readonly request: number; readonly logits: Float32Array }
  | { readonly type: 'profile'; readonly request: number; readonly profile?: Profile }
  | { readonly type: 'expert-stats'; readonly request: number; readonly stats?: RunStatsSnapshot }
  | { readonly type: 'speculation-stats'; readonly request: number; readonly stats?: SpeculationSnapshot }
  | { readonly type: 'device-memory'; readonly request: number; readonly memory?: DeviceMemoryUse }
  | ({ readonly type: 'routing' } & RoutingBlock)
  | { readonly type: 'record-routing'; readonly request: number }
  | { readonly type: 'disposed' };
