/**
 * The plan: plain data that says, before loading, what runs where, with which kernel, in how many bytes. All sizes are in
 * bytes.
 */

import type { Slab } from '../backend/gpu/slab.ts';
import type { CacheType, Mode } from '../backend/kernel.ts';
import type { PolicyName } from '../experts/policies.ts';
import type { PrefetchName } from '../experts/prefetch.ts';
import type { OperationKind, WeightName } from '../model/graph.ts';
import type { FormatId } from '../quant/index.ts';
import type { Speculation, SpeculationOption } from './speculation.ts';

export type DeviceName = 'cpu' | 'gpu' | 'reference';

/** `auto`: the GPU where there is one that takes the model, else the CPU. `gpu:N`: the N-th GPU, in the driver's order. */
export type DeviceOption = DeviceName | 'auto' | `gpu:${number}`;

/** What a person may ask for; everything has a default. */
export interface PlanOptions {
  /** Default: `cpu`, or `gpu` where `gpuLayers` gives it any. */
  readonly device?: DeviceOption;
  /**
   * Layers that run on the GPU, from the first on; the CPU has the rest. As many as the model has, or more: all of it. 0:
   * none. `auto` (or −1), the default of a GPU: all that fit in `gpuMemoryBytes`.
   */
  readonly gpuLayers?: number | 'auto';
  /** Bytes of the GPU's memory that may be used; default: what there is, which WebGPU does not tell. */
  readonly gpuMemoryBytes?: number;
  /**
   * Of the layers on the GPU, how many experts it holds, the CPU having the others: `slru:25%`, `lfu:2048`, `static:4GiB` (a
   * policy, and slots in all, a share of all experts, or bytes). Default: all; where the memory is known not to do, `slru` with
   * what is left of it.
   */
  readonly expertCache?: string;
  /** Leaves the experts of the layers on the GPU to the CPU: all, or those of the first so many layers. */
  readonly cpuMoe?: true | number;
  /**
   * How often experts were used, [layers with experts][experts]: which of them have slots at first, the most used, and with
   * `static` for good. Default: as many of each layer as of any other. Of use where experts are split.
   */
  readonly expertUses?: readonly ArrayLike<number>[];
  /**
   * Which experts are brought to slots before those that the cache's policy would bring: none (`off`, the default); those that a
   * layer used in the step before (`previous`); those that its router names when it is given what the layer before leaves
   * (`gate`). How often they were right stands in the statistics.
   */
  readonly expertPrefetch?: PrefetchName;
  /** Slots (`64`), or a share of them (`25%`), that the experts used most in the first 256 tokens keep for good. Default: none. */
  readonly expertPin?: string;
  /** Whether the GPU's driver checks bounds and commands although every kernel was tested without: slower. Default false. */
  readonly gpuChecks?: boolean;
  /** Worker threads of the CPU pool; default: the cores the platform offers. */
  readonly threads?: number;
  /** Context length in tokens; default: the smallest of the trained length, 8,192 and what fits. */
  readonly context?: number;
  /** Rows a prompt chunk; default 512, and 2,048 on a GPU with subgroup matrices. */
  readonly batch?: number;
  /** KV cache element type; default f32 on the CPU while that takes at most half of the weights' bytes, else f16. */
  readonly cache?: CacheType;
  /** Sessions whose full contexts the cache holds at once; default 1. Shorter ones share it. */
  readonly sessions?: number;
  /** Upper bound of one arena (one WebAssembly memory of the CPU's), in bytes; default 4 GiB − 64 KiB. */
  readonly arenaBytes?: number;
  /** Metadata keys (or tensors) under the architecture prefix to ignore although nobody knows them. */
  readonly ignoreKeys?: readonly string[];
  /** Bytes of the machine's own memory that may be used; default: what the platform says is free. */
  readonly memoryBytes?: number;
  /**
   * How tokens are drafted, which a step then checks several of: it decides how fast an answer comes, never what it says. Default
   * `off`. Drafting stops by itself while it does not pay.
   */
  readonly speculation?: SpeculationOption;
}

/** What drafts tokens, and how many at a time. */
export interface PlannedSpeculation {
  readonly source: Speculation['source'];
  readonly drafts: number;
  /** The model that drafts, which has a plan of its own; `bytes` are beside those of the plan that this is part of. */
  readonly model?: { readonly name: string; readonly architecture: string; readonly bytes: number };
}

export interface PlannedOperation {
  /** −1: before the layers. The number of layers: after them. */
  readonly layer: number;
  readonly kind: OperationKind;
  /** It belongs to what predicts further ahead. */
  readonly mtp?: true;
  /** The value that it makes, by its name in the graph. */
  readonly output: string;
  readonly device: DeviceName;
  /** The chosen row for each mode. */
  readonly rows: Readonly<Record<Mode, string>>;
}

export interface PlannedWeight {
  /** Its logical name, the same in all families: `layers.3.moe.gate`. */
  readonly name: WeightName;
  readonly format: FormatId;
  /** Outermost first: [rows, columns], [experts, rows, columns], [length]. */
  readonly shape: readonly number[];
  /** Bytes at its home, padding included. */
  readonly bytes: number;
  readonly device: DeviceName;
  /** Repacking at store time; it never changes a value. */
  readonly layout?: string;
  /** Before that its bytes are gathered, as they are read, from where the file has them; nor does this change a value. */
  readonly gathered?: true;
  /** CPU: which arena. */
  readonly arena?: number;
}

export interface PlannedBuffer {
  readonly name: string;
  readonly bytes: number;
  readonly device: DeviceName;
  /** `step`: used anew by every run. `load`: while the model is loaded. */
  readonly lifetime: 'model' | 'step' | 'load';
}

/** Layers that run on one device. A plan has a part for each device, in the order in which they run. */
export interface PlannedPart {
  readonly device: DeviceName;
  /** Layers `first` to `end` − 1. The first part has the embedding as well, the last one the final norm and the head. */
  readonly first: number;
  readonly end: number;
  /** What the device offers to kernels: `simd`, `relaxed-simd`, `relaxed-dot`, `threads` of WebAssembly; a GPU's own. */
  readonly features: readonly string[];
  readonly bytes: Plan['bytes'];
  /** Of its layers those whose experts are not all there. */
  readonly split?: readonly number[];
  /** Layers of other parts whose experts it computes as far as these do not have them. */
  readonly experts?: readonly number[];
  /** Bytes that might be used there: what was asked for, else what the platform said was free. Absent: not known. */
  readonly memoryBytes?: number;
}

/** How experts are split between the GPU's slots and the CPU. */
export interface PlannedExperts {
  /** Layers whose experts are split. */
  readonly layers: readonly number[];
  /** How it is decided which experts have slots. `static`: once, when the model is loaded. */
  readonly policy: PolicyName;
  readonly slabs: readonly Slab[];
  /** Slots in all, and the experts that they are for. */
  readonly slots: number;
  readonly experts: number;
  /** Of the layers those all of whose experts have slots for good: they never wait for the CPU. */
  readonly whole: readonly number[];
  /** Slots with which most picks are there: twice as many as a token takes. */
  readonly recommended: number;
  /** `budget exhausted`: there are fewer because the memory does not hold more. */
  readonly status: 'ok' | 'below recommended' | 'budget exhausted';
  /** Which have slots at first: as many of each layer as of any other, or the most used by what is known of it. */
  readonly first: 'evenly' | 'most used';
  /** Experts that are brought to slots in a step, at the most. */
  readonly uploads: number;
  /** By what those are foreseen that come first. */
  readonly prefetch: PrefetchName;
  /** Slots that the hottest experts keep for good after a warm-up. */
  readonly pins: number;
  /**
   * Which experts of a prompt that have no slot pass through the GPU: all, or as many, those of most rows first, as are copied
   * there while the CPU computes the others.
   */
  readonly passes: 'all' | 'balanced';
  /** Most (row, expert) pairs that the CPU computes in a layer's run. */
  readonly hostPairs: number;
}

export interface Plan {
  readonly architecture: string;
  /** The GPU as soon as a layer runs there; `parts` says which. */
  readonly device: DeviceName;
  /** Why it is the CPU although `auto` was asked for. */
  readonly deviceReason?: string;
  /** Why the GPU has these layers and experts, where `auto` had to choose. */
  readonly layersReason?: string;
  readonly parts: readonly PlannedPart[];
  /** Where experts of the GPU's layers are split between it and the CPU. */
  readonly experts?: PlannedExperts;
  /** Worker threads of the CPU's part; 1 where there is none. */
  readonly threads: number;
  /** What the device offers to kernels; see `parts` for each. */
  readonly features: readonly string[];
  /** The GPU that the plan was made for, as its driver calls it. */
  readonly adapter?: string;
  /** Its number, where one was asked for; absent: the platform's own choice. */
  readonly adapterNumber?: number;
  /** Its own checks of bounds and commands are left out, since every kernel passed its tests without them. */
  readonly unchecked?: boolean;
  /** Tokens. */
  readonly context: number;
  /** Why it is that long, for a person. */
  readonly contextReason: string;
  /** Most rows one run takes, by mode, and most rows whose logits one run gives. */
  readonly maxRows: Readonly<Record<Mode | 'wanted', number>>;
  readonly cache: {
    readonly type: CacheType;
    readonly pages: number;
    /** Tokens a page holds. */
    readonly pageRows: number;
    readonly bytes: number;
  };
  /** Bytes of each arena; empty for devices without arenas. */
  readonly arenas: readonly number[];
  /** Upper bound that was set for one arena, in bytes. */
  readonly arenaBytes: number;
  readonly operations: readonly PlannedOperation[];
  /** One that two devices read, as a tied head does, has a home on each. */
  readonly weights: readonly PlannedWeight[];
  readonly buffers: readonly PlannedBuffer[];
  /** Keys and tensors that are named as ignored, with the reason. */
  readonly ignored: readonly { readonly name: string; readonly reason: string }[];
  readonly bytes: {
    readonly weights: number;
    readonly cache: number;
    readonly buffers: number;
    readonly total: number;
  };
  /** Bytes that might be used, as in `parts`. Absent: not known, or each of several devices has its own. */
  readonly memoryBytes?: number;
  /** Weight bytes that decoding one token reads. */
  readonly bytesPerToken: number;
  /** Absent: nothing is drafted. */
  readonly speculation?: PlannedSpeculation;
  /** A greedy answer is the same alone, among others and after a reused prefix. */
  readonly reproducible: boolean;
}
