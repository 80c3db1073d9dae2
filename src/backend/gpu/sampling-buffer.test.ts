import assert from 'node:assert/strict';
import { test } from 'node:test';
import { off as unfiltered } from '../../../test/support/sampler-off.ts';
import { InternalError, NonFiniteError, UsageError } from '../../errors.ts';
import type { SamplerSettings } from '../sampling.ts';
import {
  drawFault,
  drawShape,
  MAX_BIASES,
  MAX_VOCABULARY,
  mode,
  needsSlot,
  type PlacedDraw,
  SETTINGS_WORDS,
  samplesOnDevice,
  samplingLayout,
  setting,
  status,
  writeDraws,
  writeSlot,
} from './sampling-buffer.ts';

/** The largest seed. */
const off: SamplerSettings = { ...unfiltered, seed: 2 ** 53 - 1 };
const layout = samplingLayout({ vocabulary: 100, context: 50, rows: 4, slots: 3 });
const drawOf = (settings: Partial<SamplerSettings>, given: Partial<PlacedDraw> = {}): PlacedDraw => ({
  settings: { ...off, ...settings },
  slot: 0,
  prompt: 0,
  index: 0,
  ...given,
});
const biases = (count: number) => Array.from({ length: count }, (_, id) => [id, -1] as const);

/** A row of settings as the device reads it. */
function written(draw: PlacedDraw) {
  const words = new Uint32Array(layout.settingsWords);
  assert.equal(writeDraws([undefined, draw], layout, words), 2 * SETTINGS_WORDS);
  assert.equal(words[setting.mode], mode.none);
  const floats = new Float32Array(words.buffer);
  const at = (name: keyof typeof setting) => SETTINGS_WORDS + setting[name];
  return {
    word: (name: keyof typeof setting) => words[at(name)],
    float: (name: keyof typeof setting) => floats[at(name)],
  };
}

test('what the device does not take is said, on both sides of each bound', () => {
  assert.equal(samplesOnDevice({ ...off, logitBias: biases(MAX_BIASES) }, { vocabulary: MAX_VOCABULARY }), true);
  assert.match(
    String(samplesOnDevice({ ...off, logitBias: biases(MAX_BIASES + 1) }, { vocabulary: 2000 })),
    /up to 1024 logit biases, found 1025/,
  );
  assert.match(String(samplesOnDevice(off, { vocabulary: MAX_VOCABULARY + 1 })), /up to 524288 tokens, found 524289/);
});

test('filters that are off or keep all make the plain draw, a temperature of 0 the greedy one', () => {
  assert.equal(written(drawOf({})).word('mode'), mode.all);
  assert.equal(written(drawOf({ topK: 100 })).word('mode'), mode.all);
  assert.equal(written(drawOf({ topK: 99 })).word('mode'), mode.best);
  assert.equal(written(drawOf({ topK: 100, minP: 0.1 })).word('topK'), 0);
  assert.equal(written(drawOf({ topP: 0.9 })).word('mode'), mode.best);
  assert.equal(written(drawOf({ topP: 0.9, temperature: 0 })).word('mode'), mode.greedy);
});

test('any temperature leaves the best logit a weight', () => {
  for (const temperature of [1e-300, 5e-324, 1e-3, 1, 1e300]) {
    const inverse = written(drawOf({ temperature })).float('inverseTemperature') as number;
    assert.equal(Math.exp(0 * inverse), 1);
  }
  assert.equal(written(drawOf({})).float('minPDistance'), -Infinity);
});

test('a token goes to the place that is named, else to that of its row', () => {
  assert.equal(written(drawOf({})).word('place'), 1);
  assert.equal(written(drawOf({}, { place: 3 })).word('place'), 3);
});

test('a seed is two words, an index its lower one', () => {
  const row = written(drawOf({}, { index: 2 ** 40 + 3 }));
  assert.deepEqual([row.word('seedHigh'), row.word('seedLow'), row.word('index')], [2 ** 21 - 1, 2 ** 32 - 1, 3]);
});

test('what a penalty counts from: its window, the answer, or nothing where it is off', () => {
  const given = { slot: 2, prompt: 20, index: 5 };
  const starts = (settings: Partial<SamplerSettings>) => {
    const row = written(drawOf(settings, given));
    return [row.word('windowStart'), row.word('generatedStart'), row.word('seen')];
  };
  assert.deepEqual(starts({ repeatPenalty: 2, penaltyWindow: 10 }), [15, 25, 25]);
  assert.deepEqual(starts({ repeatPenalty: 2, penaltyWindow: 50 }), [0, 25, 25]);
  assert.deepEqual(starts({ presencePenalty: 1 }), [25, 20, 25]);
  assert.deepEqual(starts({ frequencyPenalty: 1, repeatPenalty: 2, penaltyWindow: 0 }), [25, 20, 25]);
});

test('a slot is taken only for what changes logits, and holds what that looks at', () => {
  assert.equal(needsSlot({ ...off, topK: 5, penaltyWindow: 9 }), false);
  for (const settings of [{ repeatPenalty: 1.1 }, { presencePenalty: 1 }, { frequencyPenalty: 1 }]) {
    assert.equal(needsSlot({ ...off, ...settings }), true);
    assert.deepEqual([...writeSlot({ ...off, ...settings }, [7, 8, 9], layout)], [7, 8, 9]);
    assert.deepEqual(drawShape([undefined, drawOf(settings)]), { drawn: 2, adjusts: true });
  }
  const biased: SamplerSettings = { ...off, logitBias: [[9, -Infinity]] };
  assert.equal(needsSlot(biased), true);
  const words = writeSlot(biased, [7], layout);
  assert.equal(words.length, layout.slotWords);
  assert.equal(words[layout.context], 9);
  assert.equal(new Float32Array(words.buffer)[layout.context + 1], -Infinity);
  assert.deepEqual(drawShape([undefined, drawOf({})]), { drawn: 2, adjusts: false });
  assert.deepEqual(drawShape([undefined, undefined]), { drawn: 0, adjusts: false });
});

test('nothing is written beyond a slot, a context or the rows', () => {
  const broken: readonly (() => unknown)[] = [
    () => writeSlot({ ...off, repeatPenalty: 2 }, new Int32Array(51), layout),
    () => writeSlot({ ...off, logitBias: biases(MAX_BIASES + 1) }, [], layout),
    () => written(drawOf({ repeatPenalty: 2 }, { slot: 3 })),
    () => written(drawOf({}, { place: 4 })),
    () => written(drawOf({ repeatPenalty: 2 }, { prompt: 40, index: 11 })),
    () => writeDraws(new Array<undefined>(5).fill(undefined), layout, new Uint32Array(layout.settingsWords)),
  ];
  for (const write of broken) assert.throws(write, InternalError);
});

test('a fault is the error that the host’s sampler throws', () => {
  assert.equal(drawFault(status.drawn), undefined);
  assert.ok(drawFault(status.nothing) instanceof NonFiniteError);
  assert.ok(drawFault(status.banned) instanceof UsageError);
  const fault = drawFault(5);
  assert.ok(fault instanceof NonFiniteError && fault.data.token === 5 && /token 5 is not finite/.test(fault.message));
});
