/** How a person writes a number of bytes: `268435456`, `256MiB`, `4GB`, `1.5G`. */

const pattern = /^(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b?$/i;

/** The bytes that `text` says, or undefined where it says none. With an `i` units are powers of 1024, else of 1000. */
export function parseBytes(text: string): number | undefined {
  const match = pattern.exec(text);
  if (match === null) return undefined;
  const power = ' kmgt'.indexOf(match[2]!.toLowerCase() || ' ');
  const value = Math.round(Number(match[1]) * (match[3] === '' ? 1000 : 1024) ** power);
  return Number.isSafeInteger(value) ? value : undefined;
}
