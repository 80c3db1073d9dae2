/** What the Gemmas have in common, as GGUF names it: scaled embeddings, norms behind each block, GELU, a soft cap. */

import type { FamilyReader } from '../family-reader.ts';
import type { DenseBlockSpec, HeadSpec, ModelSpec, NormSpec, RopeSpec } from '../spec.ts';
import { type Heads, readDense, readRope, type Stem } from './common.ts';

/** Embeddings are multiplied with the root of their width. */
export function gemmaEmbedding({ hidden }: Stem): NonNullable<ModelSpec['embedding']> {
  return { scale: Math.sqrt(hidden) };
}

/** The head, with a soft cap where the file has one. @throws CorruptFileError `corrupt_file` */
export function readCappedHead(reader: FamilyReader, { head }: Stem): HeadSpec {
  const key = 'final_logit_softcapping';
  return reader.has(key) ? { ...head, softcap: reader.positiveFloat(key) } : head;
}

/** The rotation of layers that see everything. @throws CorruptFileError `corrupt_file` */
export function readWholeRope(reader: FamilyReader, { headDim }: Heads, factors = false): RopeSpec {
  return readRope(reader, headDim, { pairing: 'half', dimensions: headDim, factors });
}

/** Claims a norm of the residual stream's width. @throws CorruptFileError `corrupt_file` */
export function readNorm(reader: FamilyReader, name: string, tensor: string, { hidden, norm }: Stem): NormSpec {
  reader.weight(name, tensor, [hidden]);
  return norm;
}

/**
 * Claims a dense block with a norm before it and one behind it.
 * @param parts.postNorm what the tensor of the latter is called
 * @throws CorruptFileError `corrupt_file`
 */
export function readGemmaDense(
  reader: FamilyReader,
  layer: number,
  stem: Stem,
  parts: { readonly inner: number; readonly block: 'feedForward' | 'beside'; readonly postNorm: string },
): { readonly kind: 'dense' } & DenseBlockSpec {
  const { inner, block } = parts;
  const at = `layers.${layer}.${block}`;
  const norm = readNorm(reader, `${at}.norm`, `blk.${layer}.ffn_norm.weight`, stem);
  const postNorm = readNorm(reader, `${at}.postNorm`, `blk.${layer}.${parts.postNorm}.weight`, stem);
  return { ...readDense(reader, layer, stem, { norm, inner, block }), activation: 'geluTanh', postNorm };
}
