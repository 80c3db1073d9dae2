/**
 * A byte-level BPE vocabulary of any size: it can encode every text (256 byte tokens, a few merges) and shows every
 * sampled token as readable text, but it was not trained on anything.
 */

import { InternalError } from '../errors.ts';
import { type MetadataEntries, meta } from '../format/gguf-writer.ts';

/** Token types as GGUF numbers them. */
const NORMAL = 1;
const CONTROL = 3;
const UNUSED = 5;

const CHATML =
  "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}" +
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}';

const SPECIALS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];

/** Pairs to merge, the first ones first; every part is a byte or made by an earlier pair. `Ġ` stands for a space. */
const MERGES = [
  'Ġ t',
  'h e',
  'i n',
  'Ġ a',
  'r e',
  'o n',
  'Ġt he',
  'e r',
  'Ġ s',
  'a t',
  'Ġ w',
  'Ġ o',
  'e n',
  'Ġ c',
  'i t',
  'i s',
  'a n',
  'o r',
  'e s',
  'Ġ b',
  'e d',
  'Ġ f',
  'in g',
  'Ġ p',
  'o u',
  'Ġa n',
  'a l',
  'a r',
  'Ġt o',
  'Ġ m',
  'Ġo f',
  'Ġ in',
  'Ġ d',
  'Ġ h',
  'Ġan d',
  'Ġ Ġ',
  'ĠĠ ĠĠ',
];

/**
 * GPT-2's way to show bytes as characters: printable ones as they are, the others in order from U+0100 on, those that
 * show themselves first, as in its own vocabulary.
 */
export function byteCharacters(): string[] {
  const shown: number[] = [];
  for (const [from, to] of [
    [0x21, 0x7e],
    [0xa1, 0xac],
    [0xae, 0xff],
  ] as const) {
    for (let byte = from; byte <= to; byte++) {
      shown.push(byte);
    }
  }
  const hidden = 256 - shown.length;
  return [...shown, ...Array.from({ length: hidden }, (_, i) => 0x100 + i)].map((code) => String.fromCharCode(code));
}

/**
 * The `tokenizer.*` metadata of a vocabulary of `size` tokens whose specials start at `firstSpecial`, which leaves room
 * for the bytes and the merges before them.
 */
export function vocabularyMetadata(size: number, firstSpecial: number): MetadataEntries {
  const tokens = [...byteCharacters(), ...MERGES.map((pair) => pair.replace(' ', ''))];
  if (firstSpecial < tokens.length || size < firstSpecial + SPECIALS.length) {
    throw new InternalError(
      `a vocabulary of ${size} with specials at ${firstSpecial} has no room for ${tokens.length} + 3 tokens`,
    );
  }
  while (tokens.length < firstSpecial) {
    tokens.push(`Ġw${tokens.length}`);
  }
  tokens.push(...SPECIALS);
  const lastSpecial = tokens.length - 1;
  while (tokens.length < size) {
    tokens.push(`[PAD${tokens.length}]`);
  }
  const kinds = Int32Array.from(tokens, (_, id) => (id < firstSpecial ? NORMAL : id <= lastSpecial ? CONTROL : UNUSED));
  return {
    'tokenizer.ggml.model': meta.string('gpt2'),
    'tokenizer.ggml.pre': meta.string('qwen2'),
    'tokenizer.ggml.tokens': meta.array('string', tokens),
    'tokenizer.ggml.token_type': meta.array('i32', kinds),
    'tokenizer.ggml.merges': meta.array('string', MERGES),
    'tokenizer.ggml.bos_token_id': meta.u32(firstSpecial),
    'tokenizer.ggml.eos_token_id': meta.u32(lastSpecial),
    'tokenizer.ggml.padding_token_id': meta.u32(firstSpecial),
    'tokenizer.ggml.add_bos_token': meta.bool(false),
    'tokenizer.chat_template': meta.string(CHATML),
  };
}
