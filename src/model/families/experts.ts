/** The mixture-of-experts block as GGUF names it: routing from metadata, experts as one stacked tensor or one each. */

import { Refusal } from '../../errors.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import type { MoeBlockSpec, MoeSpec, NormSpec, RouterSpec, SharedExpertSpec } from '../spec.ts';
import { missingTensor, type Stem } from './common.ts';

/** What a family knows about its router. A fact that is absent must be in the file. */
export interface RouterFacts {
  readonly gating: RouterSpec['gating'];
  readonly selectionBias: boolean;
  readonly normalise?: boolean;
  readonly scale?: number;
}

export interface Routing {
  readonly experts: number;
  readonly used: number;
  readonly router: RouterSpec;
}

/** GGUF's numbers for gating functions. */
const gatings: ReadonlyMap<number, RouterSpec['gating']> = new Map([
  [1, 'softmax'],
  [2, 'sigmoid'],
]);

/**
 * Reads how experts are chosen. What the file says wins over the family's facts.
 * @throws CorruptFileError `corrupt_file`
 * @throws Refusal `refused` for a gating function that is not known
 */
export function readRouting(reader: FamilyReader, facts: RouterFacts): Routing {
  const experts = reader.count('expert_count', { min: 1, max: MOST });
  const used = reader.count('expert_used_count', { min: 1, max: experts });
  let gating: RouterSpec['gating'] = facts.gating;
  if (reader.has('expert_gating_func')) {
    const code = reader.count('expert_gating_func', { min: 0, max: 2 ** 31 - 1 });
    const known = gatings.get(code);
    if (known === undefined) {
      throw new Refusal(
        `${reader.file.name}: ${reader.fullKey('expert_gating_func')} is ${code}, which is not supported; ` +
          `supported are ${[...gatings].map(([number, name]) => `${number} (${name})`).join(', ')}`,
      );
    }
    gating = known;
  }
  const router: RouterSpec = {
    gating,
    selectionBias: facts.selectionBias,
    groups: readGroups(reader, { experts, used, rankedBy: gating === 'sigmoid' ? 'twoBest' : 'best' }),
    normalise: reader.flag('expert_weights_norm', { default: facts.normalise }),
    scale: reader.positiveFloat('expert_weights_scale', { default: facts.scale }),
  };
  return { experts, used, router };
}

/** Groups limit the choice (arXiv 2405.04434, device-limited routing). One group, or all of them kept, limits nothing. */
function readGroups(
  reader: FamilyReader,
  { experts, used, rankedBy }: { experts: number; used: number; rankedBy: 'best' | 'twoBest' },
): RouterSpec['groups'] {
  const count = reader.count('expert_group_count', { min: 0, max: experts, default: 0 });
  const groupsUsed = reader.count('expert_group_used_count', { min: 0, max: Math.max(count, 1), default: count });
  if (count <= 1) return undefined;
  if (experts % count !== 0) {
    throw reader.corruptKey(
      'expert_group_count',
      String(count),
      `a divisor of ${reader.fullKey('expert_count')}, which is ${experts}`,
    );
  }
  if (groupsUsed === count) return undefined;
  if (groupsUsed * (experts / count) < used) {
    throw reader.corruptKey(
      'expert_group_used_count',
      String(groupsUsed),
      `groups enough for ${used} experts (each holds ${experts / count})`,
    );
  }
  return { count, used: groupsUsed, rankedBy };
}

/** A shared expert as wide as `expert_shared_count` experts of `inner`; none where that is 0. Nothing gates it. */
export function readSharedCount(reader: FamilyReader, inner: number): SharedExpertSpec | undefined {
  const count = reader.count('expert_shared_count', { min: 0, max: MOST });
  return count === 0 ? undefined : { inner: inner * count, gated: false };
}

/** Claims a layer's router and experts. @throws CorruptFileError `corrupt_file` */
export function readExperts(
  reader: FamilyReader,
  layer: number,
  stem: Stem,
  parts: {
    readonly norm: NormSpec;
    readonly routing: Routing;
    readonly inner: number;
    readonly shared?: SharedExpertSpec;
  },
): MoeBlockSpec {
  const { norm, inner, shared } = parts;
  const { experts, used, router } = parts.routing;
  const { hidden } = stem;
  const at = `layers.${layer}.moe`;
  const blk = `blk.${layer}`;
  if (!reader.hasTensor(`${blk}.ffn_gate_inp.weight`) && reader.hasTensor(`${blk}.ffn_gate.weight`)) {
    throw missingTensor(
      reader,
      `${blk}.ffn_gate_inp.weight`,
      `${reader.fullKey('expert_count')} is ${experts}, but layer ${layer} (${blk}) holds the weights of a dense layer`,
    );
  }
  reader.weight(`${at}.router`, `${blk}.ffn_gate_inp.weight`, [experts, hidden]);
  if (router.selectionBias) claimSelectionBias(reader, layer, experts);
  for (const part of ['gate', 'up', 'down'] as const) {
    const shape = part === 'down' ? [experts, hidden, inner] : [experts, inner, hidden];
    // Files from before GGUF had stacked experts hold a tensor for each.
    if (reader.hasTensor(`${blk}.ffn_${part}.0.weight`)) {
      const names = Array.from({ length: experts }, (_, expert) => `${blk}.ffn_${part}.${expert}.weight`);
      reader.stacked(`${at}.${part}`, names, shape);
    } else {
      reader.weight(`${at}.${part}`, `${blk}.ffn_${part}_exps.weight`, shape);
    }
  }
  const scaled = reader.optional(`${at}.gateScale`, `${blk}.ffn_exps.gate_scale`, [experts]);
  if (scaled) reader.weight(`${at}.outputScale`, `${blk}.ffn_exps.output_scale`, [experts]);
  if (shared !== undefined) claimSharedExpert(reader, layer, hidden, shared);
  const plain: MoeSpec = { experts, used, inner, activation: 'silu', router, shared };
  const moe: MoeSpec = scaled ? { ...plain, scaled } : plain;
  return { kind: 'moe', norm, moe };
}

function claimSelectionBias(reader: FamilyReader, layer: number, experts: number): void {
  const [name, tensor] = [`layers.${layer}.moe.selectionBias`, `blk.${layer}.exp_probs_b.bias`];
  // Some writers store it as a matrix of one row.
  if (reader.shapeOf(tensor)?.length === 2) reader.row(name, tensor, experts);
  else reader.weight(name, tensor, [experts]);
}

function claimSharedExpert(reader: FamilyReader, layer: number, hidden: number, shared: SharedExpertSpec): void {
  const at = `layers.${layer}.moe.shared`;
  const blk = `blk.${layer}`;
  reader.weight(`${at}.gate`, `${blk}.ffn_gate_shexp.weight`, [shared.inner, hidden]);
  reader.weight(`${at}.up`, `${blk}.ffn_up_shexp.weight`, [shared.inner, hidden]);
  reader.weight(`${at}.down`, `${blk}.ffn_down_shexp.weight`, [hidden, shared.inner]);
  if (shared.gated) {
    // One row, which some writers store as a vector: then it is a stack of one.
    const tensor = `${blk}.ffn_gate_inp_shexp.weight`;
    if (reader.shapeOf(tensor)?.length === 2) reader.weight(`${at}.router`, tensor, [1, hidden]);
    else reader.stacked(`${at}.router`, [tensor], [1, hidden]);
  }
}
