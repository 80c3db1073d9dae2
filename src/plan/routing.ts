/** Of a planned model's layers with experts: what they have in common, and which of them let the host know what they choose. */

import { Refusal, UsageError } from '../errors.ts';
import type { ModelSpec } from '../model/spec.ts';
import type { Plan } from './plan.ts';

export interface RoutedModel {
  /** Layers with experts, ascending. */
  readonly layers: readonly number[];
  /** Of each of them. */
  readonly experts: number;
  /** Experts that a row uses in a layer. */
  readonly used: number;
  /**
   * Layers whose choices the host learns: those of the CPU and of the reference, and on the GPU those whose experts are split. A
   * GPU that has all of a layer's experts chooses where it multiplies, and nobody reads it.
   */
  readonly seen: readonly number[];
}

/** @returns undefined for a model without experts, and for one whose layers have different numbers of them */
export function routedModel(plan: Plan, spec: ModelSpec): RoutedModel | undefined {
  const all = spec.layers.flatMap(({ feedForward }, layer) =>
    feedForward.kind === 'moe' ? [{ layer, ...feedForward.moe }] : [],
  );
  const [first] = all;
  if (first === undefined) return undefined;
  const { experts, used } = first;
  if (all.some((moe) => moe.experts !== experts || moe.used !== used)) return undefined;
  const split = new Set(plan.experts?.layers);
  const seen = plan.operations.flatMap(({ kind, layer, device }) =>
    kind === 'moe' && (device !== 'gpu' || split.has(layer)) ? [layer] : [],
  );
  return { layers: all.map(({ layer }) => layer), experts, used, seen: [...new Set(seen)].sort((a, b) => a - b) };
}

/** Why nothing, or not all, is known of what a model's experts do, as a phrase; undefined where all is. */
export function whyUnseen(plan: Plan, routed: RoutedModel | undefined): string | undefined {
  if (routed === undefined) {
    return plan.operations.some(({ kind }) => kind === 'moe')
      ? 'its layers have different numbers of experts'
      : 'it has no experts';
  }
  const unseen = routed.layers.length - routed.seen.length;
  if (unseen === 0) return undefined;
  return `${unseen === routed.layers.length ? 'all' : unseen} of its ${routed.layers.length} layers with experts are whole on the GPU, which tells nobody what it chooses`;
}

/** Routing that was recorded, for the rows of split layers to take whatever their routers say. */
export interface GivenTrace {
  readonly layers: number;
  readonly experts: number;
  readonly used: number;
  /** [tokens, layers, used] */
  readonly ids: Uint16Array;
}

/** What is to be done with a model's routing, besides obeying it. */
export interface RoutingUse {
  readonly expertStats?: boolean;
  readonly recordRouting?: boolean;
  readonly routing?: GivenTrace;
}

/**
 * What is known of a model whose routing can be recorded.
 * @throws Refusal `refused` for any other
 */
export function recordedModel(plan: Plan, routed: RoutedModel | undefined): RoutedModel {
  if (plan.speculation !== undefined) {
    throw new Refusal(
      'the routing of a model whose tokens are drafted cannot be recorded: rows of drafts that do not come true would be in the trace; ' +
        'leave --spec out',
    );
  }
  const why = whyUnseen(plan, routed);
  if (routed !== undefined && why === undefined) return routed;
  throw new Refusal(
    `the routing of this model cannot be recorded: ${why}; it can on the CPU, on the reference, or with split experts (--expert-cache, --cpu-moe)`,
  );
}

/**
 * That a plan can do what was asked of its routing.
 * @throws UsageError `usage` where nothing can be counted, and for routing that is none of the model's; Refusal `refused` where
 * nothing can be recorded
 */
export function checkRoutingUse(
  plan: Plan,
  spec: ModelSpec,
  { expertStats, recordRouting, routing }: RoutingUse,
): void {
  const routed = routedModel(plan, spec);
  if (recordRouting === true) recordedModel(plan, routed);
  if (expertStats === true && (routed === undefined || routed.seen.length === 0)) {
    throw new UsageError(
      `expertStats (--expert-stats) has nothing to count: ${whyUnseen(plan, routed)}; ` +
        'what is counted runs on the CPU, on the reference, or with split experts (--expert-cache, --cpu-moe)',
      { data: { option: 'expertStats' } },
    );
  }
  if (routing === undefined) return;
  if (plan.experts === undefined || routed === undefined) {
    throw new UsageError(
      'routing (--routing) is of use only where experts are split between GPU and CPU: with --device gpu and --expert-cache or --cpu-moe',
      { data: { option: 'routing' } },
    );
  }
  if (plan.experts.prefetch === 'gate') {
    throw new UsageError(
      'routing (--routing) and expertPrefetch gate (--expert-prefetch): what routers say is not what rows then use; leave one of them out',
      { data: { option: 'routing' } },
    );
  }
  checkTraceShape('routing (--routing)', routing, routed);
  if (routing.ids.length < routed.layers.length * routed.used) {
    throw new UsageError('routing (--routing): found not one token; record a longer trace', {
      data: { option: 'routing' },
    });
  }
}

/** @throws UsageError `usage` for a trace of another model */
export function checkTraceShape(
  what: string,
  found: Pick<GivenTrace, 'layers' | 'experts' | 'used'>,
  { layers, experts, used }: Pick<RoutedModel, 'layers' | 'experts' | 'used'>,
): void {
  if (found.layers === layers.length && found.experts === experts && found.used === used) return;
  throw new UsageError(
    `${what}: found ${found.layers} layers of ${found.experts} experts, ${found.used} used, expected the model's ${layers.length} ` +
      `layers of ${experts}, ${used} used; the trace is of another model`,
    { data: { found: [found.layers, found.experts, found.used], expected: [layers.length, experts, used] } },
  );
}
