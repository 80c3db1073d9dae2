/**
 * Which feed brings the next experts. Nothing tells whether a file lies in the system's cache; how long its reads were waited for
 * does. The same bytes come either way.
 */

export type FeedName = 'file' | 'memory';

/** Milliseconds that a byte costs this thread when it is copied, at first: those of a large host. */
const FIRST_COPY_MS = 1 / 8e6;
/** Of fewer bytes the time says nothing: it is that of asking. */
const LEAST_BYTES = 2 ** 16;
/** How much of what was measured last goes into what is expected. */
const LEARN = 0.25;
/** After a read that was slow, the file is looked at again when copying has taken so many times as long. */
const AGAIN = 16;

export interface FeedChoice {
  next(): FeedName;
  /** How long this thread copied so many bytes, or waited for them. */
  learn(feed: FeedName, took: { readonly bytes: number; readonly ms: number }): void;
}

/** Takes the feed that costs this thread less for a byte, by what both have cost so far; the file first. */
export class CheaperFeed implements FeedChoice {
  /** Milliseconds for a byte. */
  #copyMs = FIRST_COPY_MS;
  #readMs = 0;
  /** Milliseconds of the last load that was read. */
  #lastReadMs = 0;
  /** Of copying since. */
  #copiedMs = 0;

  next(): FeedName {
    return this.#readMs <= this.#copyMs || this.#copiedMs > AGAIN * this.#lastReadMs ? 'file' : 'memory';
  }

  learn(feed: FeedName, { bytes, ms }: { readonly bytes: number; readonly ms: number }): void {
    if (bytes < LEAST_BYTES) return;
    const each = ms / bytes;
    if (feed === 'memory') {
      this.#copyMs += LEARN * (each - this.#copyMs);
      this.#copiedMs += ms;
      return;
    }
    // What was known before it was looked at again is out of date.
    const dated = this.#readMs > this.#copyMs || this.#readMs === 0;
    this.#readMs = dated ? each : this.#readMs + LEARN * (each - this.#readMs);
    this.#lastReadMs = ms;
    this.#copiedMs = 0;
  }
}
