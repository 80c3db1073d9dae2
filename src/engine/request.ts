/** A request in the engine: what was asked for, and how far it has come. */

import type { SamplerSettings } from '../backend/sampling.ts';
import type { Timeline } from './kv-cache.ts';
import type { Sampler } from './sampler.ts';

export interface RequestOptions {
  readonly id: number;
  readonly timeline: Timeline;
  /** The whole prompt; its first rows are those that the timeline holds, and at least one is not. */
  readonly prompt: Int32Array;
  readonly settings: SamplerSettings;
  /** By these settings; it has seen the prompt. */
  readonly sampler: Sampler;
  readonly maxTokens: number;
  /** Tokens that end the answer. */
  readonly endTokens: ReadonlySet<number>;
}

export class Request {
  readonly id: number;
  readonly timeline: Timeline;
  readonly prompt: Int32Array;
  readonly settings: SamplerSettings;
  readonly sampler: Sampler;
  readonly maxTokens: number;
  readonly endTokens: ReadonlySet<number>;
  /** Rows of its prompt that the timeline held when it came. */
  readonly reusedRows: number;
  /** The timeline's length before the last chunk of the prompt that was sent. */
  chunkStart = 0;
  /** Tokens drawn, those on their way included. */
  drawn = 0;
  /** Those that have come. The last one's row comes after it: it is in the timeline once a further one is drawn. */
  readonly answer: number[] = [];
  /** Where the device draws for it; absent: the host does. */
  slot: number | undefined;
  /** The device drew nothing from its logits: the host says why. */
  refused = false;
  /** What still comes for it counts no more. */
  ended = false;
  /** Times in milliseconds; 0 until then. */
  startedAt = 0;
  firstTokenAt = 0;
  lastTokenAt = 0;

  constructor(options: RequestOptions) {
    this.id = options.id;
    this.timeline = options.timeline;
    this.reusedRows = options.timeline.length;
    this.prompt = options.prompt;
    this.settings = options.settings;
    this.sampler = options.sampler;
    this.maxTokens = options.maxTokens;
    this.endTokens = options.endTokens;
  }

  /** Tokens that have come. */
  get generated(): number {
    return this.answer.length;
  }

  /** Rows of the prompt and of the tokens that have come and were run on: what runs ahead of that may be in vain. */
  get sureRows(): number {
    return this.generated === 0 ? this.prompt.length : this.prompt.length + this.generated - 1;
  }

  /** Forgets the rows that ran ahead. */
  dropRunAhead(): void {
    this.timeline.rewind(this.sureRows);
  }
}
