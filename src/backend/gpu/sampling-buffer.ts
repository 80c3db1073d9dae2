/**
 * What sampling on the device keeps between runs, in three buffers. `settings`: how each row of a submission is drawn,
 * written by the host once a submission, as the step buffer is. `slots`: what the penalties of a request look back on, written
 * by the host when a request takes a slot; from then on the device appends each token that it draws, so that tokens which
 * the host has not seen yet count too. `drawn`: the tokens, and what was wrong with a row's logits.
 */

import { type ConclaveError, InternalError } from '../../errors.ts';
import type { Draw } from '../backend.ts';
import { minPDistance, notFiniteError, nothingLeftError, repeatFactors, type SamplerSettings } from '../sampling.ts';

/** Entries of a logit bias that a slot holds. */
export const MAX_BIASES = 1024;
/** Tokens of a vocabulary at the most: what the kernels' one workgroup a row looks over. */
export const MAX_VOCABULARY = 2 ** 19;

/** Stands in `drawn` where no token could be drawn. */
export const NO_TOKEN = 0xffffffff;

/** What stands beside a drawn token; anything less is the first token whose logit is NaN or +Infinity. */
export const status = {
  drawn: 0xffffffff,
  /** Every logit is −Infinity. */
  nothing: 0xfffffffe,
  /** Every logit is −Infinity after the biases. */
  banned: 0xfffffffd,
} as const;

/** Words of a row's settings. Numbers are f32 where they are not counts. */
export const setting = {
  mode: 0,
  /** Whether penalties or biases change the row's logits, and its slot is read and appended to. */
  adjusts: 1,
  slot: 2,
  /** Tokens in the slot before this draw: where it is appended. */
  seen: 3,
  /** From which of them on the repetition penalty counts, and from which on presence and frequency. */
  windowStart: 4,
  generatedStart: 5,
  biases: 6,
  index: 7,
  seedLow: 8,
  seedHigh: 9,
  inverseTemperature: 10,
  topK: 11,
  topP: 12,
  minPDistance: 13,
  repeatAbove0: 14,
  repeatBelow0: 15,
  presence: 16,
  frequency: 17,
  /** Always 0, which no compiler knows: it keeps a product and a sum from becoming one fused operation. */
  zero: 18,
  /** Where in `drawn` the token goes. */
  place: 19,
} as const;
export const SETTINGS_WORDS = 20;

export const mode = { none: 0, greedy: 1, all: 2, best: 3 } as const;

/** Sizes in words (u32). */
export interface SamplingLayout {
  readonly vocabulary: number;
  /** Tokens that a slot holds; in `slots` the biases [MAX_BIASES][id, f32] follow on them. */
  readonly context: number;
  /** Rows of a run that a token is drawn for. */
  readonly rows: number;
  readonly slots: number;
  readonly slotWords: number;
  /** [rows][SETTINGS_WORDS] */
  readonly settingsWords: number;
  /** Places for drawn tokens. */
  readonly places: number;
  /** [places] tokens (the host and later runs read them), then [places] of `status`. */
  readonly drawnWords: number;
}

export function samplingLayout(given: {
  readonly vocabulary: number;
  readonly context: number;
  readonly rows: number;
  readonly slots: number;
}): SamplingLayout {
  const { context, rows } = given;
  const places = Math.max(rows, given.slots);
  return {
    ...given,
    slotWords: context + 2 * MAX_BIASES,
    settingsWords: rows * SETTINGS_WORDS,
    places,
    drawnWords: 2 * places,
  };
}

/** Bytes of the three buffers. */
export function samplingBytes({ settingsWords, slots, slotWords, drawnWords }: SamplingLayout): number {
  return 4 * (settingsWords + slots * slotWords + drawnWords);
}

/** Whether the device draws by these settings: true, or why not, as a phrase. Nothing else says so. */
export function samplesOnDevice(
  { logitBias }: SamplerSettings,
  { vocabulary }: { readonly vocabulary: number },
): true | string {
  if (vocabulary > MAX_VOCABULARY) return `takes vocabularies of up to ${MAX_VOCABULARY} tokens, found ${vocabulary}`;
  return logitBias.length <= MAX_BIASES || `takes up to ${MAX_BIASES} logit biases, found ${logitBias.length}`;
}

/** Whether logits are changed before a token is drawn from them, which takes a slot. */
export function needsSlot(settings: SamplerSettings): boolean {
  return looksBack(settings) || settings.logitBias.length > 0;
}

function looksBack({ repeatPenalty, presencePenalty, frequencyPenalty }: SamplerSettings): boolean {
  return repeatPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
}

/**
 * A slot as a request starts with it: its words from `slot * slotWords` on.
 * @param tokens prompt and answer as far as the host has seen it; all tokens that were drawn for the request
 */
export function writeSlot(
  settings: SamplerSettings,
  tokens: ArrayLike<number>,
  { context, slotWords }: SamplingLayout,
): Uint32Array<ArrayBuffer> {
  const { logitBias } = settings;
  if (tokens.length > context) {
    throw new InternalError(`a slot was to hold ${tokens.length} tokens of a context of ${context}`);
  }
  if (logitBias.length > MAX_BIASES) {
    throw new InternalError(`a slot was to hold ${logitBias.length} biases, at most ${MAX_BIASES}`);
  }
  const words = new Uint32Array(logitBias.length > 0 ? slotWords : tokens.length);
  if (looksBack(settings)) words.set(tokens);
  const floats = new Float32Array(words.buffer);
  logitBias.forEach(([id, bias], entry) => {
    words[context + 2 * entry] = id;
    floats[context + 2 * entry + 1] = bias;
  });
  return words;
}

/** A draw and where its token goes; its slot is of no meaning there unless {@link needsSlot}. */
export interface PlacedDraw extends Draw {
  /**
   * Where in `drawn` the token goes, no other row's place; default: the row's number. A request that keeps one place finds
   * its token there whatever runs of others come in between.
   */
  readonly place?: number;
}

/** What the shape of a run says of its draws. */
export function drawShape(draws: readonly (PlacedDraw | undefined)[]): {
  readonly drawn: number;
  readonly adjusts: boolean;
} {
  const some = draws.some((draw) => draw !== undefined);
  return {
    drawn: some ? draws.length : 0,
    adjusts: draws.some((draw) => draw !== undefined && needsSlot(draw.settings)),
  };
}

/**
 * Writes how the leading rows of `wanted` are drawn; undefined leaves a row's logits to the host.
 * @returns how many words matter
 */
export function writeDraws(
  draws: readonly (PlacedDraw | undefined)[],
  layout: SamplingLayout,
  words: Uint32Array,
): number {
  const floats = new Float32Array(words.buffer, words.byteOffset, words.length);
  if (draws.length > layout.rows) {
    throw new InternalError(`${draws.length} tokens are to be drawn in one run, at most ${layout.rows}`);
  }
  words.fill(0, 0, draws.length * SETTINGS_WORDS);
  draws.forEach((draw, row) => {
    if (draw !== undefined) writeDraw({ place: row, ...draw }, layout, { words, floats, at: row * SETTINGS_WORDS });
  });
  return draws.length * SETTINGS_WORDS;
}

function writeDraw(
  { settings, slot, prompt, index, place }: Required<PlacedDraw>,
  layout: SamplingLayout,
  to: { readonly words: Uint32Array; readonly floats: Float32Array; readonly at: number },
): void {
  const { words, floats, at } = to;
  const { temperature, topK, topP, minP, penaltyWindow, presencePenalty, frequencyPenalty, logitBias, seed } = settings;
  const adjusts = needsSlot(settings);
  const seen = prompt + index;
  if (adjusts && (slot >= layout.slots || seen > layout.context)) {
    throw new InternalError(`slot ${slot} of ${layout.slots} has ${seen} tokens; the context is ${layout.context}`);
  }
  if (place >= layout.places) throw new InternalError(`a token was to be drawn to place ${place} of ${layout.places}`);
  const kept = topK > 0 && topK < layout.vocabulary;
  const filters = kept || topP < 1 || minP > 0;
  const repeats = repeatFactors(settings);
  words[at + setting.mode] = temperature === 0 ? mode.greedy : filters ? mode.best : mode.all;
  words[at + setting.adjusts] = adjusts ? 1 : 0;
  words[at + setting.slot] = slot;
  words[at + setting.seen] = seen;
  words[at + setting.place] = place;
  words[at + setting.windowStart] = settings.repeatPenalty === 1 ? seen : Math.max(0, seen - penaltyWindow);
  words[at + setting.generatedStart] = presencePenalty === 0 && frequencyPenalty === 0 ? seen : prompt;
  words[at + setting.biases] = logitBias.length;
  words[at + setting.index] = index;
  words[at + setting.seedLow] = seed;
  words[at + setting.seedHigh] = Math.floor(seed / 2 ** 32);
  // Not infinite, so that the best logit, at a distance of 0, has the weight 1.
  floats[at + setting.inverseTemperature] = Math.min(1 / temperature, 3e38);
  words[at + setting.topK] = kept ? topK : 0;
  floats[at + setting.topP] = Math.min(topP, 1);
  floats[at + setting.minPDistance] = minPDistance(minP);
  floats[at + setting.repeatAbove0] = repeats.above0;
  floats[at + setting.repeatBelow0] = repeats.below0;
  floats[at + setting.presence] = presencePenalty;
  floats[at + setting.frequency] = frequencyPenalty;
}

/** What is to be thrown for a row's word of `status`; undefined when its token was drawn. */
export function drawFault(word: number): ConclaveError | undefined {
  if (word === status.drawn) return undefined;
  if (word === status.nothing || word === status.banned) return nothingLeftError(word === status.banned);
  return notFiniteError(word);
}
