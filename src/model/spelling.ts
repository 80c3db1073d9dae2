/**
 * Families ask for keys and tensors by GGUF's names, whatever the container. A spelling says what the file itself calls
 * them, for messages and for what is told by name.
 */

export interface Spelling {
  /** A metadata key, `llama.block_count`, as the file calls it. */
  key(name: string): string;
  /** A tensor, `blk.0.attn_q.weight`, as the file calls it. */
  tensor(name: string): string;
  /** What says the sizes of tensors: `the metadata under llama.`, `config.json`. */
  readonly sizes: string;
  /** How the tensors of a layer are called: `blk.N.…`. */
  readonly layers: string;
}

/** GGUF's own: names are as they are asked for. */
export function ggufSpelling(architecture: string): Spelling {
  return {
    key: (name) => name,
    tensor: (name) => name,
    sizes: `the metadata under ${architecture}.`,
    layers: 'blk.N.…',
  };
}
