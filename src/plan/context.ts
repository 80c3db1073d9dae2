/** How long a plan's context is: as asked for, or what fits. */

import { PAGE_ROWS } from '../backend/backend.ts';
import { OutOfMemoryError } from '../errors.ts';
import type { Part } from './parts.ts';
import type { Placed, PlanRequest } from './placer.ts';
import { showBytes, showCount, showPlural } from './show.ts';

/** A default context is not cut below this for want of memory. */
const LEAST_DEFAULT_CONTEXT = 512;

export function chooseContext(given: {
  readonly request: PlanRequest;
  readonly hopedFor: number;
  readonly parts: readonly Part[];
  readonly place: (context: number) => readonly Placed[];
}): { readonly context: number; readonly contextReason: string; readonly placed: readonly Placed[] } {
  const { request, hopedFor, parts, place } = given;
  const { spec, options } = request;
  const tooLarge = (placed: readonly Placed[]) =>
    parts.findIndex(({ memoryBytes = Infinity }, index) => (placed[index] as Placed).total > memoryBytes);
  const refuse = (context: number, placed: readonly Placed[]) => {
    const index = tooLarge(placed);
    return doesNotFit(parts[index] as Part, placed[index] as Placed, context);
  };
  const placed = place(hopedFor);
  const fits = tooLarge(placed) < 0;
  if (options.context !== undefined) {
    if (!fits) throw refuse(hopedFor, placed);
    const beyond =
      hopedFor > spec.trainedContext ? `, beyond the ${showCount(spec.trainedContext)} it was trained with` : '';
    return { context: hopedFor, contextReason: `as asked for${beyond}`, placed };
  }
  if (fits) {
    const contextReason =
      hopedFor === spec.trainedContext
        ? 'the length the model was trained with'
        : `the default; trained with ${showCount(spec.trainedContext)}`;
    return { context: hopedFor, contextReason, placed };
  }
  // Only the cache (and rope tables) grow with the context: cut it in halves until all fits.
  for (
    let context = PAGE_ROWS * Math.floor(hopedFor / 2 / PAGE_ROWS);
    context >= LEAST_DEFAULT_CONTEXT;
    context = PAGE_ROWS * Math.floor(context / 2 / PAGE_ROWS)
  ) {
    const smaller = place(context);
    if (tooLarge(smaller) >= 0) continue;
    const limits = parts.flatMap(({ memoryBytes }) => (memoryBytes === undefined ? [] : [showBytes(memoryBytes)]));
    return { context, contextReason: `what fits in ${limits.join(' and ')}`, placed: smaller };
  }
  const least = Math.min(hopedFor, LEAST_DEFAULT_CONTEXT);
  throw refuse(least, place(least));
}

export function doesNotFit(part: Part, placed: Placed, context: number): OutOfMemoryError {
  const { weightBytes, cacheBytes, bufferBytes, total } = placed;
  const { device, first, end, memoryBytes = Infinity, request } = part;
  const whole = end - first === request.spec.layers.length;
  const what = whole
    ? 'the model does'
    : `${end - first === 1 ? `layer ${first} does` : `layers ${first} to ${end - 1} do`}`;
  const wholeExperts = request.spec.layers.some(
    ({ feedForward }, layer) =>
      feedForward.kind === 'moe' && layer >= first && layer < end && part.split?.includes(layer) !== true,
  );
  const [where, todo] =
    device === 'gpu'
      ? [
          ' on the GPU',
          `allow more (--gpu-memory), use a shorter context, ${wholeExperts ? 'leave experts to the CPU (--cpu-moe), ' : ''}or ` +
            `${end === 1 ? 'use --device cpu' : 'give it fewer layers (-g N or auto)'}`,
        ]
      : ['', 'choose a smaller model or a shorter context, or allow more memory'];
  return new OutOfMemoryError(
    `${what} not fit${where}: ${showBytes(weightBytes)} of weights, ${showBytes(cacheBytes)} of cache for ` +
      `${showPlural(context, 'token')} and ${showBytes(bufferBytes)} of buffers make ${showBytes(total)}, and ` +
      `${showBytes(memoryBytes)} may be used; ${todo}`,
    { data: { needed: total, available: memoryBytes, context, device } },
  );
}
