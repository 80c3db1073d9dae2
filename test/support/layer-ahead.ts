/**
 * The glm4moe fixture with one more layer, which predicts further ahead: the last layer's tensors once more, and what stands before
 * and behind them made of others'. Nobody trained it: it drafts, and is wrong.
 */

import { meta } from '../../src/format/gguf-writer.ts';
import type { MetadataValue, ModelFile, TensorInfo } from '../../src/format/model-file.ts';

export const metadataAhead: Readonly<Record<string, MetadataValue>> = {
  'glm4moe.block_count': meta.u32(4),
  'glm4moe.nextn_predict_layers': meta.u32(1),
};

export function tensorsAhead(file: ModelFile): Record<string, TensorInfo> {
  const tensors: Record<string, TensorInfo> = {};
  const tensorOf = (name: string): TensorInfo => {
    const tensor = file.tensors.get(name);
    if (tensor === undefined) throw new Error(`the fixture has no ${name}`);
    return tensor;
  };
  const add = (name: string, like: string, shape?: readonly number[]) => {
    const tensor = tensorOf(like);
    const values = (of: readonly number[]) => of.reduce((product, length) => product * length, 1);
    const share = shape === undefined ? 1 : values(shape) / values(tensor.shape);
    tensors[name] = { ...tensor, name, shape: shape ?? tensor.shape, bytes: tensor.bytes * share };
  };
  for (const { name } of file.tensors.values()) {
    if (name.startsWith('blk.2.')) add(name.replace('blk.2.', 'blk.3.'), name);
  }
  const [hidden = 0] = tensorOf('output_norm.weight').shape;
  add('blk.3.nextn.eh_proj.weight', 'token_embd.weight', [hidden, 2 * hidden]);
  for (const part of ['enorm', 'hnorm', 'shared_head_norm']) add(`blk.3.nextn.${part}.weight`, 'output_norm.weight');
  return tensors;
}

export function withLayerAhead(file: ModelFile): ModelFile {
  return {
    ...file,
    metadata: new Map([...file.metadata, ...Object.entries(metadataAhead)]),
    tensors: new Map([...file.tensors, ...Object.entries(tensorsAhead(file))]),
    close: () => file.close(),
  };
}
