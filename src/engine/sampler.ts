/**
 * Draws a token from logits. Pure: the same settings, history, logits and index give the same token. Order: penalties,
 * logit bias, top-k, top-p, min-p, temperature; ties go to the lower id. A NaN is an error, never a token. Logits are changed
 * and compared in f32, as a device does it that has no f64; shares are sums in f64.
 */

import { uniform } from '../backend/random.ts';
import { minPDistance, nothingLeftError, repeatFactors, type SamplerSettings } from '../backend/sampling.ts';
import { argmax, Candidates } from './top-k.ts';

/** Memory that samplers of one loop share: nothing the size of a vocabulary is allocated for a token. */
export class SamplerWorkspace {
  readonly candidates = new Candidates();
  #row: Float32Array | undefined;

  /** A copy of `logits` that may be changed, valid until the next one is asked for. */
  copy(logits: Float32Array): Float32Array {
    if (this.#row?.length !== logits.length) this.#row = new Float32Array(logits.length);
    this.#row.set(logits);
    return this.#row;
  }
}

export class Sampler {
  readonly #settings: SamplerSettings;
  readonly #workspace: SamplerWorkspace;
  /** The last tokens seen, a ring, and how often each is in it. Empty when nothing is penalised for it. */
  readonly #window: Int32Array;
  readonly #inWindow = new Map<number, number>();
  #seen = 0;
  /** How often each token was generated; kept only when a penalty needs it. */
  readonly #generated = new Map<number, number>();
  readonly #countsGenerated: boolean;

  constructor(settings: SamplerSettings, workspace = new SamplerWorkspace()) {
    this.#settings = settings;
    this.#workspace = workspace;
    this.#window = new Int32Array(settings.repeatPenalty === 1 ? 0 : settings.penaltyWindow);
    this.#countsGenerated = settings.presencePenalty !== 0 || settings.frequencyPenalty !== 0;
  }

  /** Tells the sampler of the prompt, which the repetition penalty looks back on. */
  observePrompt(tokens: ArrayLike<number>): void {
    for (let i = Math.max(0, tokens.length - this.#window.length); i < tokens.length; i++) this.#remember(tokens[i]!);
  }

  /** Tells the sampler of a generated token. */
  observe(token: number): void {
    this.#remember(token);
    if (this.#countsGenerated) this.#generated.set(token, (this.#generated.get(token) ?? 0) + 1);
  }

  /**
   * @param logits [vocabulary]
   * @param index which token of the answer this is, from 0: the random number's index
   * @throws NonFiniteError `non_finite` for NaN, +Infinity, or when no logit is finite; UsageError `usage` when
   * `logitBias` bans every token.
   */
  sample(logits: Float32Array, index: number): number {
    const { temperature, topK, topP, minP, seed } = this.#settings;
    const row = this.#adjust(logits);
    if (temperature === 0) {
      const best = argmax(row);
      return best === -1 ? this.#nothingLeft(logits) : best;
    }
    const kept = topK > 0 && topK < row.length;
    if (!kept && topP >= 1 && minP <= 0) return this.#drawFromAll(row, logits, uniform(seed, index));
    const { candidates } = this.#workspace;
    if (kept) {
      candidates.take(row, topK);
      candidates.keepTopP(topP, candidates.mass());
      candidates.keepMinP(minP);
    } else {
      this.#takeNucleus(row, logits);
    }
    if (candidates.count === 0) return this.#nothingLeft(logits);
    return candidates.draw(temperature, uniform(seed, index));
  }

  #remember(token: number): void {
    const window = this.#window;
    if (window.length === 0) return;
    const at = this.#seen % window.length;
    if (this.#seen >= window.length) {
      const oldest = window[at]!;
      const count = this.#inWindow.get(oldest)! - 1;
      if (count === 0) this.#inWindow.delete(oldest);
      else this.#inWindow.set(oldest, count);
    }
    window[at] = token;
    this.#seen++;
    this.#inWindow.set(token, (this.#inWindow.get(token) ?? 0) + 1);
  }

  /** Penalties and bias; `logits` itself when there are none. */
  #adjust(logits: Float32Array): Float32Array {
    const { logitBias } = this.#settings;
    if (this.#inWindow.size === 0 && this.#generated.size === 0 && logitBias.length === 0) return logits;
    const row = this.#workspace.copy(logits);
    const { above0, below0 } = repeatFactors(this.#settings);
    for (const token of this.#inWindow.keys()) row[token]! *= row[token]! > 0 ? above0 : below0;
    const presence = Math.fround(this.#settings.presencePenalty);
    const frequency = Math.fround(this.#settings.frequencyPenalty);
    for (const [token, count] of this.#generated) {
      row[token]! -= Math.fround(presence + Math.fround(count * frequency));
    }
    for (const [token, bias] of logitBias) row[token]! += Math.fround(bias);
    return row;
  }

  /** No top-k: the candidates are those that min-p leaves, cut where top-p of the whole row is reached. */
  #takeNucleus(row: Float32Array, logits: Float32Array): void {
    const { topP, minP } = this.#settings;
    const { candidates } = this.#workspace;
    const best = argmax(row);
    if (best === -1) this.#nothingLeft(logits);
    const max = row[best]!;
    const least = Math.fround(max + minPDistance(minP));
    const { length } = row;
    let limit = 0;
    let mass = 0;
    for (let i = 0; i < length; i++) {
      const logit = row[i]!;
      if (logit >= least) limit++;
      mass += Math.exp(logit - max);
    }
    // A nucleus is small as a rule: look for it among few, then among eight times as many.
    for (let count = topP < 1 ? 64 : limit; ; count *= 8) {
      candidates.take(row, Math.min(count, limit));
      if (candidates.keepTopP(topP, mass) || count >= limit) return;
    }
  }

  #drawFromAll(row: Float32Array, logits: Float32Array, random: number): number {
    const { temperature } = this.#settings;
    const best = argmax(row);
    if (best === -1) return this.#nothingLeft(logits);
    const max = row[best]!;
    const { length } = row;
    let mass = 0;
    for (let i = 0; i < length; i++) mass += Math.exp((row[i]! - max) / temperature);
    let left = random * mass;
    for (let i = 0; i < length; i++) {
      left -= Math.exp((row[i]! - max) / temperature);
      if (left < 0) return i;
    }
    // Only rounding comes here.
    return best;
  }

  #nothingLeft(logits: Float32Array): never {
    throw nothingLeftError(argmax(logits) !== -1);
  }
}
