/** The bar that shows a model loading, on a terminal only; elsewhere nothing is drawn. */

import type { OutputStream } from './context.ts';
import { showBytes, showRate, showTime } from './format.ts';

/** Redrawing more often than this only costs time. */
const REDRAW_MS = 50;
const CLEAR_LINE = '\r\x1b[2K';

export interface Progress {
  update(progress: { readonly bytesDone: number; readonly bytesTotal: number }): void;
  /** Takes the bar away; with `what` a line is left that says what was loaded, how much and how fast. */
  finish(what?: string): void;
}

/** `now` is a clock in ms. */
export function startProgress(stream: OutputStream, now: () => number = () => performance.now()): Progress {
  if (stream.isTTY !== true) return { update() {}, finish() {} };
  const startMs = now();
  let drawnMs = -Infinity;
  let drawn = false;
  let bytes = 0;
  return {
    update({ bytesDone, bytesTotal }) {
      bytes = bytesDone;
      const nowMs = now();
      if (nowMs - drawnMs < REDRAW_MS) return;
      drawnMs = nowMs;
      drawn = true;
      stream.write(
        CLEAR_LINE + bar({ bytesDone, bytesTotal, elapsedMs: nowMs - startMs, width: stream.columns ?? 80 }),
      );
    },
    finish(what) {
      if (drawn) stream.write(CLEAR_LINE);
      const elapsedMs = now() - startMs;
      if (what !== undefined) stream.write(`${what}: ${showBytes(bytes)} in ${showTime(elapsedMs)}\n`);
    },
  };
}

/** One line of at most `width` columns, the bar as wide as what is left of it (8 … 32). */
export function bar(state: {
  readonly bytesDone: number;
  readonly bytesTotal: number;
  readonly elapsedMs: number;
  readonly width: number;
}): string {
  const { bytesDone, bytesTotal, elapsedMs, width } = state;
  const share = bytesTotal > 0 ? Math.min(1, bytesDone / bytesTotal) : 0;
  const rate = elapsedMs > 0 ? showRate(((bytesDone / elapsedMs) * 1000) / 1e6, 'MB') : showRate(Number.NaN, 'MB');
  const numbers = `${showBytes(bytesDone)} of ${showBytes(bytesTotal)}, ${rate}`;
  // "loading ", the two edges and a space come on top; the last column stays free so that no terminal wraps.
  const room = Math.min(32, width - numbers.length - 'loading [] '.length - 1);
  if (room < 8) return numbers.slice(0, Math.max(0, width - 1));
  const full = Math.round(share * room);
  return `loading [${'#'.repeat(full)}${'.'.repeat(room - full)}] ${numbers}`;
}
