/**
 * Text from files, kept without loss. Valid UTF-8 becomes the string it means; a byte that is not part of valid UTF-8
 * becomes the lone surrogate U+DC00 + byte (which valid UTF-8 never yields), so that vocabularies which hold raw bytes
 * survive and {@link utf8Bytes} gives back exactly the bytes that were there.
 */

// A byte order mark is an ordinary character here: tokenizers do have it as a token.
const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const encoder = new TextEncoder();

/** The text of `bytes`, or undefined where they are not UTF-8. */
export function strictUtf8(bytes: Uint8Array): string | undefined {
  try {
    return strict.decode(bytes);
  } catch {
    return undefined;
  }
}

/** The text of `bytes`; each byte outside valid UTF-8 becomes U+DC00 + byte. */
export function losslessUtf8(bytes: Uint8Array): string {
  const text = strictUtf8(bytes);
  if (text !== undefined) {
    return text;
  }
  let out = '';
  for (let at = 0; at < bytes.length; ) {
    const length = sequenceLength(bytes, at);
    out += length === 0 ? String.fromCharCode(0xdc00 + bytes[at]) : strict.decode(bytes.subarray(at, at + length));
    at += Math.max(length, 1);
  }
  return out;
}

/** The bytes that {@link losslessUtf8} read `text` from. */
export function utf8Bytes(text: string): Uint8Array {
  if (text.isWellFormed()) {
    return encoder.encode(text);
  }
  const out: number[] = [];
  for (const character of text) {
    const code = character.codePointAt(0) ?? 0;
    if (code >= 0xdc80 && code <= 0xdcff) {
      out.push(code - 0xdc00);
    } else {
      out.push(...encoder.encode(character));
    }
  }
  return Uint8Array.from(out);
}

/** Bytes of the well-formed sequence at `at` (Unicode 16, table 3-7), or 0 where there is none. */
function sequenceLength(bytes: Uint8Array, at: number): number {
  const lead = bytes[at];
  if (lead < 0x80) {
    return 1;
  }
  const length =
    lead >= 0xc2 && lead <= 0xdf ? 2 : lead >= 0xe0 && lead <= 0xef ? 3 : lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
  if (length === 0 || at + length > bytes.length) {
    return 0;
  }
  // Overlong forms, surrogates and code points past U+10FFFF show in the second byte.
  const second = bytes[at + 1];
  const low = lead === 0xe0 ? 0xa0 : lead === 0xf0 ? 0x90 : 0x80;
  const high = lead === 0xed ? 0x9f : lead === 0xf4 ? 0x8f : 0xbf;
  if (second < low || second > high) {
    return 0;
  }
  for (let index = 2; index < length; index++) {
    if ((bytes[at + index] & 0xc0) !== 0x80) {
      return 0;
    }
  }
  return length;
}
