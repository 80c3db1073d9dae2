/**
 * `gemma4`: Gemma 4: as Gemma 3, with wider heads where a layer sees everything, norms on values, and scores that are not
 * scaled. Layers with experts have a dense block beside them on the same residual stream, a router with a norm of its own,
 * and a scale for each expert. Models with inputs for each layer, or layers that share keys and values, are refused.
 */

import { Refusal } from '../../errors.ts';
import type { Family } from '../family.ts';
import { type FamilyReader, MOST } from '../family-reader.ts';
import type { AttentionSpec, DenseBlockSpec, FeedForwardSpec, LayerSpec, MoeBlockSpec } from '../spec.ts';
import { type Heads, noBias, readAttention, readBlockCount, readHeads, readStem, type Stem } from './common.ts';
import { type Routing, readRouting } from './experts.ts';
import { gemmaEmbedding, readCappedHead, readGemmaDense, readNorm, readWholeRope } from './gemma.ts';
import { readWindowRope, readWindows } from './windows.ts';

export const gemma4: Family = {
  architecture: 'gemma4',

  read(reader) {
    const stem = readStem(reader);
    const layerCount = readBlockCount(reader);
    refuseUnless0(reader, 'attention.shared_kv_layers', 'layers that share keys and values');
    refuseUnless0(reader, 'embedding_length_per_layer_input', 'embeddings for each layer');
    const whole = readHeads(reader, stem.hidden, layerCount);
    const windowed: Heads = {
      ...whole,
      headDim: reader.count('attention.key_length_swa', { min: 1, max: MOST }),
      valueDim: reader.count('attention.value_length_swa', { min: 1, max: MOST }),
    };
    const windows = readWindows(reader, layerCount, { period: 6, whole: 'last' });
    const ropes = { whole: readWholeRope(reader, whole, true), windowed: readWindowRope(reader, windowed) };
    const inner = reader.counts('feed_forward_length', layerCount, { min: 1, max: MOST });
    const sparse = reader.count('expert_count', { min: 0, max: MOST, default: 0 }) > 0;
    if (!sparse) reader.count('expert_used_count', { min: 0, max: 0, default: 0 });
    const routing = sparse
      ? readRouting(reader, { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 })
      : undefined;
    const expertInner = sparse ? reader.count('expert_feed_forward_length', { min: 1, max: MOST }) : 0;
    const layers = Array.from({ length: layerCount }, (_, layer): LayerSpec => {
      const reach = windows[layer];
      const heads = reach === undefined ? whole : windowed;
      const rope = reach === undefined ? ropes.whole : ropes.windowed;
      const own = readOwnAttention(reader, layer, stem, heads);
      const attention = { ...own, rope, ...(reach === undefined ? {} : { reach }) };
      const width = inner[layer] as number;
      const feedForward: FeedForwardSpec =
        routing && reader.hasTensor(`blk.${layer}.ffn_gate_inp.weight`)
          ? readExpertsBeside(reader, layer, stem, { routing, inner: expertInner, denseInner: width })
          : readGemmaDense(reader, layer, stem, { inner: width, block: 'feedForward', postNorm: 'post_ffw_norm' });
      const scaled = reader.optional(`layers.${layer}.scale`, `blk.${layer}.layer_output_scale.weight`, [1]);
      return scaled ? { attention, feedForward, scaled } : { attention, feedForward };
    });
    const { vocabulary, hidden, trainedContext, norm: finalNorm } = stem;
    const embedding = gemmaEmbedding(stem);
    const head = readCappedHead(reader, stem);
    return { architecture: 'gemma4', vocabulary, hidden, trainedContext, embedding, layers, finalNorm, head };
  },
};

/** @throws Refusal `refused` for what is not supported and therefore has to be none */
function refuseUnless0(reader: FamilyReader, key: string, what: string): void {
  const count = reader.count(key, { min: 0, max: MOST, default: 0 });
  if (count === 0) return;
  throw new Refusal(`${reader.file.name}: ${reader.fullKey(key)} is ${count}; ${what} are not supported, only 0 is`, {
    data: { key: reader.fullKey(key), found: count },
  });
}

function readOwnAttention(reader: FamilyReader, layer: number, stem: Stem, heads: Heads): AttentionSpec {
  const { norm } = stem;
  const { epsilon } = norm;
  const name = `layers.${layer}.attention.postNorm`;
  const valueIsKey = !reader.hasTensor(`blk.${layer}.attn_v.weight`);
  const facts = { norm, qkNorm: { over: 'head', epsilon }, bias: noBias } as const;
  return {
    ...readAttention(reader, layer, stem, heads, valueIsKey ? { ...facts, valueIsKey } : facts),
    scale: 1,
    valueNorm: { epsilon },
    postNorm: readNorm(reader, name, `blk.${layer}.post_attention_norm.weight`, stem),
  };
}

/** Claims a layer's experts, their router and the dense block beside them. @throws CorruptFileError `corrupt_file` */
function readExpertsBeside(
  reader: FamilyReader,
  layer: number,
  stem: Stem,
  parts: { readonly routing: Routing; readonly inner: number; readonly denseInner: number },
): MoeBlockSpec {
  const { routing, inner, denseInner } = parts;
  const { experts, used } = routing;
  const { hidden } = stem;
  const blk = `blk.${layer}`;
  const at = `layers.${layer}`;
  const norm = (name: string, tensor: string) => readNorm(reader, `${at}.${name}`, `${blk}.${tensor}`, stem);
  reader.weight(`${at}.moe.router`, `${blk}.ffn_gate_inp.weight`, [experts, hidden]);
  reader.weight(`${at}.moe.expertScale`, `${blk}.ffn_down_exps.scale`, [experts]);
  const fused = `${blk}.ffn_gate_up_exps.weight`;
  if (reader.hasTensor(fused)) {
    reader.halves([`${at}.moe.gate`, `${at}.moe.up`], fused, [experts, inner, hidden]);
  } else {
    reader.weight(`${at}.moe.gate`, `${blk}.ffn_gate_exps.weight`, [experts, inner, hidden]);
    reader.weight(`${at}.moe.up`, `${blk}.ffn_up_exps.weight`, [experts, inner, hidden]);
  }
  reader.weight(`${at}.moe.down`, `${blk}.ffn_down_exps.weight`, [experts, hidden, inner]);
  const dense = readGemmaDense(reader, layer, stem, {
    inner: denseInner,
    block: 'beside',
    postNorm: 'post_ffw_norm_1',
  });
  return {
    kind: 'moe',
    norm: norm('feedForward.norm', 'pre_ffw_norm_2.weight'),
    postNorm: norm('feedForward.postNorm', 'post_ffw_norm_2.weight'),
    routerNorm: { ...norm('feedForward.routerNorm', 'ffn_gate_inp.scale'), scale: 1 / Math.sqrt(hidden) },
    beside: { ...blockOf(dense), sumNorm: norm('beside.sumNorm', 'post_ffw_norm.weight') },
    moe: { experts, used, inner, activation: 'geluTanh', router: { ...routing.router, expertScale: true } },
  };
}

function blockOf({ norm, inner, activation, postNorm }: DenseBlockSpec): DenseBlockSpec {
  return { norm, inner, activation, postNorm };
}
