/**
 * The alphabet of byte-level BPE (GPT-2): each of the 256 bytes is written as one printable character, so that a
 * vocabulary of byte strings can be kept as text.
 */

/** Bytes that stand for themselves: printable ASCII and printable Latin-1. The others are written from U+0100 on. */
function isItself(byte: number): boolean {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

function alphabet(): string[] {
  const characters: string[] = [];
  let next = 0x100;
  for (let byte = 0; byte < 256; byte++) characters.push(String.fromCharCode(isItself(byte) ? byte : next++));
  return characters;
}

/** The character of each byte. */
export const byteCharacters: readonly string[] = alphabet();

/** The byte of each character code below 0x144; −1 where the code is no byte's character. */
const byteOfCode = new Int16Array(0x144).fill(-1);
for (const [byte, character] of byteCharacters.entries()) byteOfCode[character.charCodeAt(0)] = byte;

const encoder = new TextEncoder();

/** `bytes` in the alphabet. */
export function toByteText(bytes: Uint8Array): string {
  let text = '';
  for (let i = 0; i < bytes.length; i++) text += byteCharacters[bytes[i]!]!;
  return text;
}

/** The bytes that `text` stands for; a character outside the alphabet stands for its own UTF-8. */
export function fromByteText(text: string): Uint8Array {
  const bytes: number[] = [];
  for (const character of text) {
    const code = character.codePointAt(0)!;
    const byte = code < byteOfCode.length ? byteOfCode[code]! : -1;
    if (byte >= 0) bytes.push(byte);
    else bytes.push(...encoder.encode(character));
  }
  return Uint8Array.from(bytes);
}
