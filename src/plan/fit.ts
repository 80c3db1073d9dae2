/** How many layers a GPU takes, and how many of their experts: in its memory, and in what it binds at once. */

import { OutOfMemoryError } from '../errors.ts';
import { canBeApart } from '../model/experts-graph.ts';
import { doesNotFit } from './context.ts';
import { expertOption } from './devices.ts';
import { type ExpertChoice, expertChoice, planExperts, slotBytes } from './experts.ts';
import { chooseRows, cutsFor, type Part, partsOf, placePart, type Shared, sharedBy } from './parts.ts';
import { hopedContext, type PlanRequest } from './placer.ts';
import { bindsAtOnce } from './placers/gpu.ts';
import { showPlural } from './show.ts';

/** What a GPU takes of a model. */
export interface Taken {
  /** Layers, from the first on. */
  readonly count: number;
  /** Absent: all experts of these. */
  readonly experts?: ExpertChoice;
  /** Why it is not more, or not the other way, where that is not obvious. */
  readonly layersReason?: string;
}

/** How many times as many layers without their experts are worth more than layers with all of them. */
const WORTH = 2;

/**
 * @param gpuLayers `auto`: all layers with all of their experts; else, of a model with experts that can be computed apart, all
 * layers with some of them; else as many layers as can be, from the first on
 * @throws OutOfMemoryError `out_of_memory` when `auto` finds room for not even one layer
 */
export function whatGpuTakes(request: PlanRequest, gpuLayers: number | 'auto'): Taken {
  const room = new Room(request);
  return gpuLayers === 'auto' ? whatFits(request, room) : { count: gpuLayers, experts: room.asked(gpuLayers) };
}

function whatFits(request: PlanRequest, room: Room): Taken {
  const layers = request.spec.layers.length;
  // What is asked of experts is no fault of layers that have none.
  const asked = (count: number) => (count === layers || hasExperts(request, count) ? room.asked(count) : undefined);
  if (room.fits(layers, asked(layers))) return { count: layers, experts: asked(layers) };
  const countOf = (experts: (count: number) => ExpertChoice | undefined) =>
    most(layers, (count) => room.fits(count, experts(count)));
  // Somebody has said where experts go, or there are none, or they go with their layers.
  if (expertOption(request.options) !== undefined || !hasExperts(request, layers) || !canAllBeApart(request)) {
    return room.taking(countOf(asked), asked);
  }
  const some = (count: number) => someExperts(request, count);
  // Whatever is left for slots, there may be none.
  const none = (count: number) => someExperts(request, count, 'none');
  if (room.fits(layers, none(layers))) return { count: layers, experts: some(layers) };
  const [whole, split] = [countOf(asked), countOf(none)];
  if (split === 0 || split < WORTH * whole) return room.taking(whole, asked);
  return {
    count: split,
    experts: some(split),
    layersReason:
      `as many as fit without all of their experts, since ${whole === 0 ? 'not one fits' : `only ${showPlural(whole, 'layer')} would fit`} with them: ` +
      'prompts, whose experts pass through the GPU, gain more by more layers',
  };
}

/** The largest count below `limit` for which `fits` holds, as it does for all smaller ones; 0: for none. */
function most(limit: number, fits: (count: number) => boolean): number {
  let found = 0;
  for (let over = limit; over - found > 1; ) {
    const count = (found + over) >> 1;
    if (fits(count)) found = count;
    else over = count;
  }
  return found;
}

/** Of the first `count` layers as many experts as there is memory for, or so many. */
function someExperts({ spec }: PlanRequest, count: number, size?: ExpertChoice['size']): ExpertChoice | undefined {
  const layers = spec.layers
    .slice(0, count)
    .flatMap(({ feedForward }, layer) => (feedForward.kind === 'moe' ? [layer] : []));
  return layers.length === 0 ? undefined : { layers, policy: 'slru', size };
}

/** What a GPU has room for. */
class Room {
  readonly #request: PlanRequest;

  constructor(request: PlanRequest) {
    this.#request = request;
  }

  /**
   * The experts that were asked for, of the first `count` layers; undefined: all of them, asked for or not.
   * @throws UsageError `usage` for what cannot be had
   */
  asked(count: number): ExpertChoice | undefined {
    const choice = expertChoice(this.#request, count);
    // As many as there is memory for may be all: then no layer ever stops.
    return choice?.size === undefined && choice !== undefined && this.fits(count) ? undefined : choice;
  }

  fits(count: number, experts?: ExpertChoice): boolean {
    return this.#failure(count, experts) === undefined;
  }

  /** @throws OutOfMemoryError `out_of_memory` where it is no layer */
  taking(count: number, experts: (count: number) => ExpertChoice | undefined): Taken {
    const failure = count === 0 ? this.#failure(1, experts(1)) : undefined;
    if (failure !== undefined) throw failure;
    return { count, experts: experts(count) };
  }

  #failure(count: number, experts?: ExpertChoice): OutOfMemoryError | undefined {
    const request = this.#request;
    const parts = partsOf(request, cutsFor(count, request.spec.layers.length, experts?.layers));
    const part = parts[0] as Part;
    try {
      const context = hopedContext(request);
      const shared = sharedWith(request, parts, experts);
      const placed = placePart(part, shared, chooseRows(part, shared), context);
      return placed.total <= (part.memoryBytes ?? Infinity) ? undefined : doesNotFit(part, placed, context);
    } catch (error) {
      if (error instanceof OutOfMemoryError) return error;
      throw error;
    }
  }
}

/** Whether one of the first `count` layers has experts. */
function hasExperts({ spec }: PlanRequest, count: number): boolean {
  return spec.layers.slice(0, count).some(({ feedForward }) => feedForward.kind === 'moe');
}

function canAllBeApart({ spec }: PlanRequest): boolean {
  return spec.layers.every(({ feedForward }) => feedForward.kind !== 'moe' || canBeApart(feedForward.moe));
}

/** What all parts share, the slots of split experts among it: as many as were asked for, or as the GPU's memory has left. */
export function sharedWith(request: PlanRequest, parts: readonly Part[], split: ExpertChoice | undefined): Shared {
  const shared = sharedBy(request, parts);
  if (split === undefined) return shared;
  const given = { request, promptRows: shared.promptRows, largest: bindsAtOnce(request) };
  const [part] = parts as [Part];
  const { memoryBytes } = part;
  if (split.size !== undefined || memoryBytes === undefined) {
    return { ...shared, experts: planExperts(split, { ...given, budget: Number.POSITIVE_INFINITY }) };
  }
  // More slots may take more slabs, and these have a part that is no cache: what is too much is taken from the budget again.
  let budget = memoryBytes;
  const slot = slotBytes(request, split);
  for (;;) {
    const tried = { ...shared, experts: planExperts(split, { ...given, budget }) };
    const over = placePart(part, tried, chooseRows(part, tried), hopedContext(request)).total - memoryBytes;
    if (over <= 0 || budget === 0) return tried;
    // By a slot at the least: less would change nothing.
    budget = Math.max(0, budget - Math.max(over, slot));
  }
}
