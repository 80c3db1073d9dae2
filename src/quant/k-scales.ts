/**
 * The 12 bytes in which Q4_K and Q5_K keep the scale and the minimum, 6 bits each, of their eight groups of 32.
 *
 * | byte | low bits | high bits |
 * |---|---|---|
 * | i (0–3) | 6 bits: scale of group i | the top 2 of scale i + 4 |
 * | 4 + i | 6 bits: minimum of group i | the top 2 of minimum i + 4 |
 * | 8 + i | 4 bits: the rest of scale i + 4 | 4 bits: the rest of minimum i + 4 |
 */

/** The scale (0–63) of a group; `at` is the first of the 12 bytes. */
export function groupScale(bytes: Uint8Array, at: number, group: number): number {
  return group < 4
    ? (bytes[at + group] as number) & 63
    : ((bytes[at + 4 + group] as number) & 15) | (((bytes[at + group - 4] as number) >> 6) << 4);
}

/** The minimum (0–63) of a group; `at` is the first of the 12 bytes. */
export function groupMinimum(bytes: Uint8Array, at: number, group: number): number {
  return group < 4
    ? (bytes[at + 4 + group] as number) & 63
    : ((bytes[at + 4 + group] as number) >> 4) | (((bytes[at + group] as number) >> 6) << 4);
}

/** Writes the 12 bytes from eight scales and eight minima. */
export function packGroupScales(out: Uint8Array, at: number, scales: Uint8Array, minima: Uint8Array): void {
  for (let i = 0; i < 4; i++) {
    const scale = scales[i + 4] as number;
    const minimum = minima[i + 4] as number;
    out[at + i] = (scales[i] as number) | ((scale >> 4) << 6);
    out[at + 4 + i] = (minima[i] as number) | ((minimum >> 4) << 6);
    out[at + 8 + i] = (scale & 15) | ((minimum & 15) << 4);
  }
}
