/**
 * Which layers' experts are split between the GPU and the CPU, and in how many slots the GPU holds some of them: slots are shared
 * out over slabs, each of layers whose experts are alike and small enough to be bound at once.
 */

import { foreseenAfter } from '../backend/gpu/foresee.ts';
import { fuse } from '../backend/gpu/fuse.ts';
import { deviceBytes } from '../backend/gpu/layout.ts';
import { EXPERT_PARTS, expertName, type Slab, slabWeights } from '../backend/gpu/slab.ts';
import { MAX_STEP_ROWS } from '../backend/kernel.ts';
import { InternalError, UsageError } from '../errors.ts';
import { ExpertCache } from '../experts/cache.ts';
import type { PolicyName } from '../experts/policies.ts';
import {
  type CacheSize,
  cacheStatus,
  parseExpertCache,
  parsePins,
  pinsOf,
  recommendedSlots,
  slotsOfSize,
} from '../experts/size.ts';
import type { ModelSpec, MoeSpec } from '../model/spec.ts';
import type { Weights } from '../model/weights.ts';
import { expertOption } from './devices.ts';
import type { PlanRequest } from './placer.ts';
import type { Plan, PlannedExperts } from './plan.ts';
import { showPlural } from './show.ts';

/** Slots of a slab that experts of a prompt pass through: enough that the device is busy while the next ones come. */
const PASSING = 32;
/** Most pairs of a prompt that the CPU computes in a layer's run: many times what it does while other experts are copied. */
const HOST_PAIRS = 4096;
/**
 * Experts brought to slots in a step, at the most: each costs the host about 0.3 ms of copying, most of it while the CPU computes,
 * and saves the CPU what it would read of it in the steps after.
 */
const UPLOADS = 4;

/** Experts that are split, and in how many slots. */
export interface ExpertChoice {
  /** Layers of the GPU's whose experts are split. */
  readonly layers: readonly number[];
  readonly policy: PolicyName;
  /** Absent: as many slots as the memory has left. */
  readonly size?: CacheSize | 'none';
}

/**
 * @param count layers that run on the GPU, from the first on
 * @returns undefined where all experts lie where their layers run
 * @throws UsageError `usage` for options that ask for two things at once, or of a model without experts
 */
export function expertChoice(request: PlanRequest, count: number): ExpertChoice | undefined {
  const { options, spec } = request;
  const { expertCache, cpuMoe } = options;
  const asked = expertOption(options);
  if (asked === undefined) return undefined;
  const { option, flag } = asked;
  if (expertCache !== undefined && cpuMoe !== undefined) {
    throw new UsageError(
      'expertCache (--expert-cache) and cpuMoe (--cpu-moe, --n-cpu-moe) both say where experts go; leave one of them out',
      { data: { option: 'expertCache' } },
    );
  }
  const layers = spec.layers.flatMap(({ feedForward }, layer) =>
    layer < count && feedForward.kind === 'moe' ? [layer] : [],
  );
  if (layers.length === 0) {
    const why = spec.layers.some(({ feedForward }) => feedForward.kind === 'moe')
      ? 'none of its layers with experts is on the GPU'
      : 'it has no experts';
    throw new UsageError(`${option} (${flag}) splits a model's experts between GPU and CPU, and ${why}; leave it out`, {
      data: { option },
    });
  }
  if (expertCache !== undefined) {
    const choice = { layers, ...parseExpertCache(expertCache) };
    return holdsAll(request, choice) ? undefined : choice;
  }
  const own = cpuMoe === true ? layers : layers.filter((layer) => layer < (cpuMoe as number));
  if (own.length === 0) {
    const first = layers[0] as number;
    throw new UsageError(
      `cpuMoe (--n-cpu-moe) leaves the experts of the first ${showPlural(cpuMoe as number, 'layer')} to the CPU, and ` +
        `${cpuMoe === 1 ? 'it has' : 'they have'} none: the first layer with experts is layer ${first}; give it at least ${first + 1}`,
      { data: { option: 'cpuMoe', first } },
    );
  }
  return { layers: own, policy: 'static', size: 'none' };
}

/** Whether a size was asked for that all experts fit into: then no layer need ever stop for the CPU. */
function holdsAll({ spec, weights }: PlanRequest, { layers, size }: ExpertChoice): boolean {
  if (size === undefined || size === 'none') return false;
  const { experts } = moeOf(spec, layers);
  const groups = alike(layers, weights);
  return slotsFor(size, { budget: 0, groups, layers: layers.length, experts }) === layers.length * experts;
}

/** What the layers' experts have in common. */
function moeOf({ layers: all }: ModelSpec, [first]: readonly number[]): MoeSpec {
  const feedForward = all[first as number]?.feedForward;
  if (feedForward?.kind === 'moe') return feedForward.moe;
  throw new InternalError(`the experts of layer ${first} were to be split, and it has none`);
}

/** Layers whose experts are of one shape and format, and the bytes of one of them in a slot. */
interface Alike {
  readonly layers: number[];
  readonly slotBytes: number;
  /** Bytes of the largest of its three parts. */
  readonly partBytes: number;
}

function alike(layers: readonly number[], weights: Weights): readonly Alike[] {
  const groups = new Map<string, number[]>();
  for (const layer of layers) {
    const key = EXPERT_PARTS.map((part) => {
      const weight = weights.get(expertName(layer, part));
      return weight && `${weight.format} ${weight.shape.join('×')}`;
    }).join();
    groups.set(key, [...(groups.get(key) ?? []), layer]);
  }
  return [...groups.values()].map((own): Alike => {
    const parts = slabWeights([{ layers: own, slots: 1, passing: 0 }], weights).map(deviceBytes);
    return {
      layers: own,
      slotBytes: parts.reduce((sum, bytes) => sum + bytes, 0),
      partBytes: Math.max(...parts),
    };
  });
}

/** Bytes of a slot, of the largest kind that there is. */
export function slotBytes({ weights }: PlanRequest, { layers }: ExpertChoice): number {
  return Math.max(...alike(layers, weights).map((group) => group.slotBytes));
}

/**
 * Slots for a choice of experts.
 * @param given.budget bytes that slots may take, where the choice does not say; Infinity: as many as there are experts
 * @param given.largest bytes that are bound at once, at the most
 * @throws UsageError `usage` for a size that is not even one slot
 */
export function planExperts(
  { layers, policy, size }: ExpertChoice,
  given: {
    readonly request: PlanRequest;
    readonly promptRows: number;
    readonly budget: number;
    readonly largest: number;
  },
): PlannedExperts {
  const { request, promptRows, budget, largest } = given;
  const { spec, weights, options } = request;
  const { expertPrefetch, expertPin } = options;
  const { experts, used } = moeOf(spec, layers);
  const groups = alike(layers, weights);
  // Rounded once for all, and down: no group gets more than its part of what was asked for.
  const total = slotsFor(size, { budget, groups, layers: layers.length, experts });
  let before = 0;
  const slabs = groups.flatMap((group): readonly Slab[] => {
    const upTo = (count: number) => Math.floor((total * count) / layers.length);
    const slots = upTo(before + group.layers.length) - upTo(before);
    before += group.layers.length;
    return slabsFor(group.layers, slots, { most: Math.floor(largest / group.partBytes), experts });
  });
  const slots = slabs.reduce((sum, slab) => sum + slab.slots, 0);
  const recommended = recommendedSlots({ layers: layers.length, experts, used });
  const passes = policy === 'static' && slots > 0 ? 'all' : 'balanced';
  const whole = policy === 'static' ? wholeOf({ slabs, experts, uses: usesOf(request) }) : [];
  return {
    layers,
    policy,
    slabs,
    slots,
    whole,
    experts: layers.length * experts,
    recommended,
    status: cacheStatus({ slots, recommended, asked: size === undefined ? recommended : total }),
    first: options.expertUses === undefined ? 'evenly' : 'most used',
    uploads: policy === 'static' ? 0 : UPLOADS,
    prefetch: policy === 'static' || slots === 0 ? 'off' : (expertPrefetch ?? 'off'),
    pins: policy === 'static' || slots === 0 || expertPin === undefined ? 0 : pinsOf(parsePins(expertPin), slots),
    passes,
    hostPairs: Math.max(MAX_STEP_ROWS * used, passes === 'all' ? 0 : Math.min(promptRows * used, HOST_PAIRS)),
  };
}

/** Layers all of whose experts the first fill brings to slots. */
function wholeOf(given: {
  readonly slabs: readonly Slab[];
  readonly experts: number;
  readonly uses: ((layer: number, expert: number) => number) | undefined;
}): readonly number[] {
  const { slabs, experts, uses } = given;
  const groups = slabs.filter(({ slots }) => slots >= experts);
  const first = new ExpertCache({ policy: 'static', experts, groups, uses });
  for (const upload of first.fill()) first.commit(upload);
  return groups.flatMap(({ layers }) => layers).filter((layer) => first.table(layer)?.every((slot) => slot >= 0));
}

/** How often experts were used, as far as that is known. */
function usesOf({ options, spec }: PlanRequest): ((layer: number, expert: number) => number) | undefined {
  const { expertUses: uses } = options;
  if (uses === undefined) return undefined;
  const layers = spec.layers.flatMap(({ feedForward }, layer) => (feedForward.kind === 'moe' ? [layer] : []));
  return (layer, expert) => uses[layers.indexOf(layer)]?.[expert] ?? 0;
}

/**
 * As few slabs as are bound at once and hold so many slots between them, each with its layers' share; where even a slab for each
 * layer does not do, what these hold.
 * @param given.most slots that are bound at once, at the most
 */
function slabsFor(
  layers: readonly number[],
  slots: number,
  { most, experts }: { readonly most: number; readonly experts: number },
): readonly Slab[] {
  // Of very large experts few are bound at once, and each run of a prompt needs somewhere to pass them through.
  const passing = Math.max(1, Math.min(experts, PASSING, Math.floor(most / 2)));
  const room = Math.max(0, most - passing);
  for (let count = 1; ; count++) {
    const border = (index: number) => Math.floor((layers.length * index) / count);
    const upTo = (layer: number) => Math.floor((slots * layer) / layers.length);
    const slabs = Array.from({ length: count }, (_, index): Slab => {
      const [first, end] = [border(index), border(index + 1)];
      return { layers: layers.slice(first, end), slots: upTo(end) - upTo(first), passing };
    });
    if (slabs.every((slab) => slab.slots <= room)) return slabs;
    if (count === layers.length) return slabs.map((slab) => ({ ...slab, slots: Math.min(slab.slots, room) }));
  }
}

/**
 * That what is said of slots has any to be said of.
 * @throws UsageError `usage`
 */
export function checkSlots(request: PlanRequest, made: Plan): void {
  checkUses(request, made);
  const { expertPrefetch, expertPin } = request.options;
  const { experts, deviceReason } = made;
  const asked = [
    ...(expertPrefetch === undefined || expertPrefetch === 'off'
      ? []
      : [{ option: 'expertPrefetch', flag: '--expert-prefetch' }]),
    ...(expertPin === undefined ? [] : [{ option: 'expertPin', flag: '--expert-pin' }]),
  ];
  // Where `auto` has found no GPU for it, that is said already.
  if (deviceReason !== undefined) return;
  for (const { option, flag } of asked) {
    const why = whyNoSlots(experts);
    if (why !== undefined) throw new UsageError(`${option} (${flag}): ${why}`, { data: { option } });
  }
  if (experts?.prefetch === 'gate' && !canForesee(request, experts.layers)) {
    throw new UsageError(
      'expertPrefetch (--expert-prefetch): of the layers whose experts are split there is none whose router can be asked ahead (gate); use previous',
      { data: { option: 'expertPrefetch' } },
    );
  }
}

/** Why there is nothing to be said of what goes to slots and what stays there. */
function whyNoSlots(experts: PlannedExperts | undefined): string | undefined {
  if (experts === undefined) {
    return 'of use only where experts are split between GPU and CPU; leave it out, or split them (--expert-cache)';
  }
  if (experts.slots === 0) return 'no expert has a slot on the GPU; leave it out, or give it some (--expert-cache)';
  if (experts.policy !== 'static') return undefined;
  return 'what lies in static slots stays there anyway; leave it out, or take another policy (--expert-cache)';
}

function canForesee({ graph }: PlanRequest, split: readonly number[]): boolean {
  const fused = fuse(graph);
  return fused.operations.some((operation) => {
    const next = operation.kind === 'moe' ? foreseenAfter(fused, operation) : undefined;
    return next !== undefined && split.includes(operation.layer) && split.includes(next.layer);
  });
}

/**
 * That what is said of how often experts are used is of this model's experts, and of use.
 * @throws UsageError `usage`
 */
function checkUses({ options, spec }: PlanRequest, made: Plan): void {
  const { expertUses: uses } = options;
  if (uses === undefined) return;
  const refuse = (why: string) =>
    new UsageError(`expertUses (--expert-uses): ${why}`, { data: { option: 'expertUses' } });
  const layers = spec.layers.flatMap(({ feedForward }) =>
    feedForward.kind === 'moe' ? [feedForward.moe.experts] : [],
  );
  if (uses.length !== layers.length || uses.some(({ length }, layer) => length !== layers[layer])) {
    const [found, expected] = [uses.map(({ length }) => length), layers].map((experts) => {
      const each = [...new Set(experts)].join(' or ');
      return `${experts.length} layers of ${each === '' ? 'no' : each} experts`;
    });
    throw refuse(`found ${found}, expected ${expected}; they were counted of another model`);
  }
  // Where `auto` has found no GPU for it, that is said already.
  if (made.deviceReason !== undefined) return;
  if (made.experts === undefined) {
    throw refuse(
      'of use only where experts are split between GPU and CPU; leave it out, or split them (--expert-cache)',
    );
  }
  if (made.experts.slots === 0)
    throw refuse('no expert has a slot on the GPU; leave it out, or give it some (--expert-cache)');
}

/**
 * Slots in all.
 * @throws UsageError `usage` for a size that is not even one
 */
function slotsFor(
  size: ExpertChoice['size'],
  given: {
    readonly budget: number;
    readonly groups: readonly Alike[];
    readonly layers: number;
    readonly experts: number;
  },
): number {
  const { budget, groups, layers, experts } = given;
  if (size === 'none') return 0;
  const pairs = layers * experts;
  const all = groups.reduce((sum, group) => sum + group.layers.length * experts * group.slotBytes, 0);
  if (size !== undefined) return slotsOfSize(size, { layers, experts, expertBytes: all / pairs });
  return Math.floor(Math.min(1, budget / all) * pairs);
}
