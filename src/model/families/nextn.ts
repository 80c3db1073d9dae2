/**
 * The layer that predicts further ahead as GGUF names it: `blk.N.nextn.*` beside the tensors of an ordinary layer, after the
 * last one.
 */

import type { FamilyReader } from '../family-reader.ts';
import type { LayerSpec, MtpSpec } from '../spec.ts';
import type { Stem } from './common.ts';

const UNUSED = 'belongs to a layer that predicts further ahead (MTP); the next token does not need it';

/**
 * Claims what predicts one token further ahead, where that is wanted and the file has one such layer. Else the layers after
 * `from` are named as ignored.
 * @param ahead how many such layers the file counts
 * @param readBlock claims the block's own tensors, those of layer `from`
 * @throws CorruptFileError `corrupt_file` for a tensor of another shape
 */
export function readLayersAhead(
  reader: FamilyReader,
  { from, ahead, stem }: { readonly from: number; readonly ahead: number; readonly stem: Stem },
  readBlock: () => LayerSpec,
): MtpSpec | undefined {
  const { hidden, vocabulary, norm } = stem;
  const nextn = `blk.${from}.nextn`;
  if (!reader.mtp || ahead !== 1 || !reader.hasTensor(`${nextn}.eh_proj.weight`)) {
    ignoreLayersFrom(reader, from);
    return undefined;
  }
  reader.weight('mtp.projection', `${nextn}.eh_proj.weight`, [hidden, 2 * hidden]);
  reader.weight('mtp.embeddingNorm', `${nextn}.enorm.weight`, [hidden]);
  reader.weight('mtp.hiddenNorm', `${nextn}.hnorm.weight`, [hidden]);
  reader.weight('mtp.finalNorm', `${nextn}.shared_head_norm.weight`, [hidden]);
  const ownEmbedding = reader.optional('mtp.embedding', `${nextn}.embed_tokens.weight`, [vocabulary, hidden]);
  const ownHead = reader.optional('mtp.head', `${nextn}.shared_head_head.weight`, [vocabulary, hidden]);
  const layer = readBlock();
  return { layer, embeddingNorm: norm, hiddenNorm: norm, finalNorm: norm, ownEmbedding, ownHead };
}

function ignoreLayersFrom(reader: FamilyReader, from: number): void {
  for (const name of reader.file.tensors.keys()) {
    const layer = /^blk\.(\d+)\./.exec(name)?.[1];
    if (layer !== undefined && Number(layer) >= from) reader.ignoreTensor(name, UNUSED);
  }
}
