/** Tokenizers for tests: the vocabularies under test/fixtures/tokenizer, and small ones made on the spot. */

import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { openGguf } from '../../src/format/gguf.ts';
import { meta } from '../../src/format/gguf-writer.ts';
import type { MetadataValue } from '../../src/format/model-file.ts';
import { memorySource } from '../../src/format/source.ts';
import { byteCharacters } from '../../src/tokenizer/byte-level.ts';
import { readTokenizer, type Tokenizer } from '../../src/tokenizer/index.ts';

const folder = new URL('../fixtures/tokenizer/', import.meta.url);

export type FixtureVocabulary = 'gpt-2' | 'llama-bpe' | 'llama-spm' | 'qwen2';
export const fixtureVocabularies: readonly FixtureVocabulary[] = ['gpt-2', 'llama-bpe', 'llama-spm', 'qwen2'];

/** The tokenizer of `<name>.gguf.gz`. */
export async function fixtureTokenizer(name: FixtureVocabulary): Promise<Tokenizer> {
  const bytes = new Uint8Array(gunzipSync(readFileSync(new URL(`${name}.gguf.gz`, folder))));
  const fileName = `${name}.gguf`;
  const file = await openGguf({ file: memorySource(bytes, fileName), fileName });
  return readTokenizer(file.metadata, fileName);
}

/** Texts with the ids that they must give. */
export function fixtureCases(
  name: FixtureVocabulary,
): readonly { readonly text: string; readonly ids: readonly number[] }[] {
  const texts = readFileSync(new URL(`${name}.inp`, folder), 'utf8').split('\n__ggml_vocab_test__\n');
  const lines = readFileSync(new URL(`${name}.out`, folder), 'utf8').split('\n');
  return texts.map((text, i) => ({ text, ids: (lines[i]?.match(/\d+/g) ?? []).map(Number) }));
}

/** A JSON fixture, compressed. */
export function fixtureJson(name: string): unknown {
  return JSON.parse(gunzipSync(readFileSync(new URL(name, folder))).toString('utf8'));
}

interface SmallVocabulary {
  /** `left right`; the joined token is added where it is not there yet. */
  readonly merges?: readonly string[];
  readonly control?: readonly string[];
  readonly userDefined?: readonly string[];
  readonly more?: Readonly<Record<string, MetadataValue>>;
}

/** Metadata of a byte-level vocabulary: the 256 bytes, what merges make, then the special tokens. */
export function smallBytePairs({ merges = [], control = [], userDefined = [], more = {} }: SmallVocabulary) {
  const normal = [...new Set([...byteCharacters, ...merges.map((merge) => merge.replace(' ', ''))])];
  const tokens = [...normal, ...control, ...userDefined];
  const types = [...normal.map(() => 1), ...control.map(() => 3), ...userDefined.map(() => 4)];
  return new Map<string, MetadataValue>(
    Object.entries({
      'tokenizer.ggml.model': meta.string('gpt2'),
      'tokenizer.ggml.pre': meta.string('gpt-2'),
      'tokenizer.ggml.tokens': meta.array('string', tokens),
      'tokenizer.ggml.token_type': meta.array('i32', Int32Array.from(types)),
      'tokenizer.ggml.merges': meta.array('string', merges),
      ...more,
    }),
  );
}

/** Metadata of a SentencePiece vocabulary: `[text, score, type]`, in order. */
export function smallSentencePiece(
  tokens: readonly (readonly [string, number, number])[],
  more: Readonly<Record<string, MetadataValue>> = {},
) {
  return new Map<string, MetadataValue>(
    Object.entries({
      'tokenizer.ggml.model': meta.string('llama'),
      'tokenizer.ggml.tokens': meta.array(
        'string',
        tokens.map(([text]) => text),
      ),
      'tokenizer.ggml.scores': meta.array(
        'f32',
        Float32Array.from(tokens, ([, score]) => score),
      ),
      'tokenizer.ggml.token_type': meta.array(
        'i32',
        Int32Array.from(tokens, ([, , type]) => type),
      ),
      ...more,
    }),
  );
}

/** Random numbers from a seed, the same in every run: 0 ≤ n < `below`. */
export function seededRandom(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}
