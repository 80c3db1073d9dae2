/** Multi-head latent attention as GGUF names it: its products split by head and one of them transposed, ready to be absorbed. */

import { Refusal } from '../../errors.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import type { AttentionSpec, LatentSpec, NormSpec, RopeSpec } from '../spec.ts';
import { noBias, type Stem } from './common.ts';

/** Widths of latent attention; see {@link LatentSpec}. */
export interface LatentSizes {
  readonly heads: number;
  /** Elements of a key that are rotated. */
  readonly rotated: number;
  readonly latent: number;
  readonly queryRank?: number;
  readonly plainDim: number;
  readonly headValueDim: number;
}

/**
 * @throws CorruptFileError `corrupt_file`
 * @throws Refusal `refused` for a file from before GGUF had the products split
 */
export function readLatentSizes(reader: FamilyReader): LatentSizes {
  if (reader.hasTensor('blk.0.attn_kv_b.weight') && !reader.hasTensor('blk.0.attn_k_b.weight')) {
    throw new Refusal(
      `${reader.file.name}: blk.0.attn_kv_b.weight holds what keys and values are made with in one piece, as older files do, ` +
        'which is not supported; supported are attn_k_b and attn_v_b: convert the model again, or download a newer file',
    );
  }
  const count = (key: string) => reader.count(key, { min: 1, max: MOST });
  const heads = count('attention.head_count');
  const latent = count('attention.kv_lora_rank');
  const rotated = count('rope.dimension_count');
  const rank = reader.has('attention.q_lora_rank') ? { queryRank: count('attention.q_lora_rank') } : {};
  const headDim = count('attention.key_length_mla');
  if (headDim <= rotated) {
    const more = `more than ${reader.fullKey('rope.dimension_count')}, which is ${rotated}`;
    throw reader.corruptKey('attention.key_length_mla', String(headDim), more);
  }
  // What the cache holds is said twice: here it must agree.
  expect(reader, 'attention.head_count_kv', 1, 'the one key head of latent attention');
  expect(reader, 'attention.key_length', latent + rotated, 'kv_lora_rank and rope.dimension_count together');
  expect(reader, 'attention.value_length', latent, 'kv_lora_rank');
  const headValueDim = count('attention.value_length_mla');
  return { heads, rotated, latent, ...rank, plainDim: headDim - rotated, headValueDim };
}

function expect(reader: FamilyReader, key: string, value: number, what: string): void {
  const found = reader.count(key, { min: 1, max: MOST });
  if (found !== value) throw reader.corruptKey(key, String(found), `${value}: ${what}`);
}

/** Claims one layer's latent attention. @throws CorruptFileError `corrupt_file` */
export function readLatentAttention(
  reader: FamilyReader,
  layer: number,
  { hidden }: Stem,
  facts: {
    readonly sizes: LatentSizes;
    readonly norm: NormSpec;
    /** Over the query's rank, and over the latent. */
    readonly latentNorm: NormSpec;
    readonly rope: RopeSpec;
    readonly scale: number;
  },
): AttentionSpec {
  const { heads, rotated, latent, queryRank, plainDim, headValueDim } = facts.sizes;
  const at = `layers.${layer}.attention`;
  const blk = `blk.${layer}`;
  const projected = heads * (plainDim + rotated);
  reader.weight(`${at}.norm`, `${blk}.attn_norm.weight`, [hidden]);
  if (queryRank === undefined) {
    reader.weight(`${at}.query`, `${blk}.attn_q.weight`, [projected, hidden]);
  } else {
    reader.weight(`${at}.query.down`, `${blk}.attn_q_a.weight`, [queryRank, hidden]);
    reader.weight(`${at}.query.downNorm`, `${blk}.attn_q_a_norm.weight`, [queryRank]);
    reader.weight(`${at}.query`, `${blk}.attn_q_b.weight`, [projected, queryRank]);
  }
  reader.weight(`${at}.latent`, `${blk}.attn_kv_a_mqa.weight`, [latent + rotated, hidden]);
  reader.weight(`${at}.latentNorm`, `${blk}.attn_kv_a_norm.weight`, [latent]);
  reader.weight(`${at}.key.up`, `${blk}.attn_k_b.weight`, [heads, latent, plainDim]);
  reader.weight(`${at}.value.up`, `${blk}.attn_v_b.weight`, [heads, headValueDim, latent]);
  reader.weight(`${at}.output`, `${blk}.attn_output.weight`, [hidden, heads * headValueDim]);
  const spec: LatentSpec = {
    ...(queryRank === undefined ? {} : { queryRank }),
    plainDim,
    headValueDim,
    norm: facts.latentNorm,
  };
  return {
    norm: facts.norm,
    heads,
    kvHeads: 1,
    headDim: latent + rotated,
    valueDim: latent,
    scale: facts.scale,
    rope: facts.rope,
    latent: spec,
    bias: noBias,
  };
}
