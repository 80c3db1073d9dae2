/**
 * What a token is drawn by: the settings that every device's sampler takes, the numbers that follow from them in f32, so that
 * all devices compare the same ones, and the errors for logits that no token can be drawn from.
 */

import { NonFiniteError, UsageError } from '../errors.ts';

/** Sampling options with every value decided; plain data that crosses to the engine's worker. */
export interface SamplerSettings {
  /** 0: greedy. */
  readonly temperature: number;
  /** 0: off. */
  readonly topK: number;
  /** 1: off. */
  readonly topP: number;
  /** 0: off. */
  readonly minP: number;
  /** 1: off. */
  readonly repeatPenalty: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly penaltyWindow: number;
  /** [id, what is added], an id at most once; −Infinity bans a token. */
  readonly logitBias: readonly (readonly [number, number])[];
  readonly seed: number;
}

/** What the repetition penalty multiplies a logit by: a product is rounded alike everywhere, a quotient is not. */
export function repeatFactors({ repeatPenalty }: Pick<SamplerSettings, 'repeatPenalty'>): {
  readonly above0: number;
  readonly below0: number;
} {
  return { above0: Math.fround(1 / repeatPenalty), below0: Math.fround(repeatPenalty) };
}

/** How far below the best logit one may lie that is `minP` times as likely. */
export function minPDistance(minP: number): number {
  return Math.fround(Math.log(minP));
}

/** @param value absent: NaN or an infinity, nobody knows which */
export function notFiniteError(token: number, value?: number): NonFiniteError {
  return new NonFiniteError(`the logit of token ${token} is ${value ?? 'not finite'}`, { data: { token } });
}

/** No logit is above −Infinity. `banned`: before the biases one was. */
export function nothingLeftError(banned: boolean): NonFiniteError | UsageError {
  return banned
    ? new UsageError('logitBias bans every token; leave at least one')
    : new NonFiniteError('every logit is -Infinity');
}
