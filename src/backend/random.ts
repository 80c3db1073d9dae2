/**
 * Random numbers by counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
 * SC11). A number depends on the seed and its index alone and needs 32-bit arithmetic only, so a GPU draws the same ones.
 */

/** The generator's constants, for every device's text of it. */
export const PHILOX = {
  multipliers: [0xd2511f53, 0xcd9e8d57],
  keySteps: [0x9e3779b9, 0xbb67ae85],
  rounds: 10,
} as const;
const [MULTIPLIER_0, MULTIPLIER_1] = PHILOX.multipliers;
const [KEY_STEP_0, KEY_STEP_1] = PHILOX.keySteps;

/** The upper 32 bits of the 64-bit product of two unsigned 32-bit numbers. */
function multiplyHigh(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const cross = aLow * bHigh + (middle & 0xffff);
  return (aHigh * bHigh + (middle >>> 16) + (cross >>> 16)) >>> 0;
}

export type Block = readonly [number, number, number, number];

/** One block of four unsigned 32-bit numbers. */
export function philox(counter: Block, key: readonly [number, number]): Block {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < PHILOX.rounds; round++) {
    const high0 = multiplyHigh(MULTIPLIER_0, c0);
    const low0 = Math.imul(MULTIPLIER_0, c0) >>> 0;
    const high1 = multiplyHigh(MULTIPLIER_1, c2);
    const low1 = Math.imul(MULTIPLIER_1, c2) >>> 0;
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c1 = low1;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c3 = low0;
    k0 = (k0 + KEY_STEP_0) >>> 0;
    k1 = (k1 + KEY_STEP_1) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/**
 * The number of a seed's sequence at `index`, in [0, 1), a multiple of 2^-24 (exact in f32): the upper 24 bits of the
 * first word of block (index, 0, 0, 0) under the key (seed's low 32 bits, seed's high bits).
 * @param seed a whole number, 0 … 2^53 − 1
 */
export function uniform(seed: number, index: number): number {
  const [word] = philox([index >>> 0, 0, 0, 0], [seed >>> 0, Math.floor(seed / 2 ** 32)]);
  return (word >>> 8) * 2 ** -24;
}

/** A seed drawn by the system's generator: 32 bits, so that a person can type it. */
export function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}
