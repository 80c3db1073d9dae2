/** What the engine says about one request, in order, for one reader. */

import type { EngineEvent, Outcome, TokenBatch } from './protocol.ts';

export type FinishEvent = Extract<EngineEvent, { type: 'finish' }>;
export type RequestItem = { readonly type: 'tokens'; readonly batch: TokenBatch } | FinishEvent;

export class RequestStream {
  readonly id: number;
  /** What the timeline holds once the engine has let go of the request; nothing when the engine broke. Never rejects. */
  readonly settled: Promise<Outcome>;
  readonly #settle: (outcome: Outcome) => void;
  #items: RequestItem[] = [];
  #error: { readonly error: unknown } | undefined;
  #wake: (() => void) | undefined;

  constructor(id: number) {
    this.id = id;
    const { promise, resolve } = Promise.withResolvers<Outcome>();
    this.settled = promise;
    this.#settle = resolve;
  }

  push(item: RequestItem): void {
    this.#items.push(item);
    if (item.type === 'finish') this.#settle(item);
    this.#wake?.();
  }

  /** Ends the stream for its reader with `error`, before anything that is still in it. */
  fail(error: unknown): void {
    this.#error ??= { error };
    this.#wake?.();
  }

  /** The engine has let go of the request. */
  settle(outcome: Outcome): void {
    this.#settle(outcome);
  }

  /** The next item; one call at a time. Rejects with what {@link fail} was given. */
  async next(): Promise<RequestItem> {
    for (;;) {
      if (this.#error !== undefined) throw this.#error.error;
      const item = this.#items.shift();
      if (item !== undefined) return item;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }
}
