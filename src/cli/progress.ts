/** The bar that shows a long work going on, on a terminal only; elsewhere nothing is drawn. */

import type { OutputStream } from './context.ts';
import { showBytes, showCount, showRate, showTime } from './format.ts';

/** Redrawing more often than this only costs time. */
const REDRAW_MS = 50;
const CLEAR_LINE = '\r\x1b[2K';

/** How much is done, of how much. */
export interface Done {
  readonly done: number;
  readonly total: number;
}

/** What is done, and how its amounts are told. */
export interface Work {
  readonly doing: string;
  readonly numbers: (state: Done & { readonly elapsedMs: number }) => string;
}

/** A model, in bytes. */
export const loading: Work = {
  doing: 'loading',
  numbers({ done, total, elapsedMs }) {
    const rate = elapsedMs > 0 ? showRate(((done / elapsedMs) * 1000) / 1e6, 'MB') : showRate(Number.NaN, 'MB');
    return `${showBytes(done)} of ${showBytes(total)}, ${rate}`;
  },
};

/** A trace, in tokens. */
export const replaying: Work = {
  doing: 'replaying',
  numbers: ({ done, total }) => `${showCount(done)} of ${showCount(total)} tokens`,
};

export interface Progress {
  update(done: Done): void;
  /** Takes the bar away; with `what` a line is left that says what was loaded, how many bytes and how fast. */
  finish(what?: string): void;
}

/** `now` is a clock in ms. */
export function startProgress(
  stream: OutputStream,
  { work = loading, now = () => performance.now() }: { readonly work?: Work; readonly now?: () => number } = {},
): Progress {
  if (stream.isTTY !== true) return { update() {}, finish() {} };
  const startMs = now();
  let drawnMs = -Infinity;
  let drawn = false;
  let last = 0;
  return {
    update({ done, total }) {
      last = done;
      const nowMs = now();
      if (nowMs - drawnMs < REDRAW_MS) return;
      drawnMs = nowMs;
      drawn = true;
      stream.write(CLEAR_LINE + bar(work, { done, total, elapsedMs: nowMs - startMs, width: stream.columns ?? 80 }));
    },
    finish(what) {
      if (drawn) stream.write(CLEAR_LINE);
      drawn = false;
      const elapsedMs = now() - startMs;
      if (what !== undefined) stream.write(`${what}: ${showBytes(last)} in ${showTime(elapsedMs)}\n`);
    },
  };
}

/** One line of at most `width` columns, the bar as wide as what is left of it (8 … 32). */
export function bar(
  { doing, numbers: tell }: Work,
  state: Done & { readonly elapsedMs: number; readonly width: number },
): string {
  const { done, total, width } = state;
  const share = total > 0 ? Math.min(1, done / total) : 0;
  const numbers = tell(state);
  // The word, the two edges and spaces come on top; the last column stays free so that no terminal wraps.
  const room = Math.min(32, width - numbers.length - `${doing} [] `.length - 1);
  if (room < 8) return numbers.slice(0, Math.max(0, width - 1));
  const full = Math.round(share * room);
  return `${doing} [${'#'.repeat(full)}${'.'.repeat(room - full)}] ${numbers}`;
}
