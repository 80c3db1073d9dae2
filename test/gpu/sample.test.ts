/**
 * Sampling on the device against the host's sampler: the same token, but for random numbers that fall within rounding of a
 * border; and no row by its neighbours, no token from a row that has none.
 */

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { drawFault, NO_TOKEN, status } from '../../src/backend/gpu/sampling-buffer.ts';
import { uniform } from '../../src/backend/random.ts';
import type { SamplerSettings } from '../../src/backend/sampling.ts';
import { Sampler } from '../../src/engine/sampler.ts';
import { NonFiniteError, UsageError } from '../../src/errors.ts';
import { gaussians, random } from '../conformance/support/blocks.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import { off } from '../support/sampler-off.ts';
import { ROWS, type Row, SamplingRun } from './sampling.ts';

/** Every path of the kernels: nothing kept back, candidates that are sorted, and more of them than can be. */
const ways: readonly Partial<SamplerSettings>[] = [
  { temperature: 0 },
  {},
  { temperature: 0.3 },
  { temperature: 20 },
  { topK: 1 },
  { topK: 5, temperature: 3 },
  { topK: 40, topP: 0.95, minP: 0.05, temperature: 0.8 },
  { topK: 40, topP: 0.6 },
  { topK: 300, temperature: 2 },
  { topK: 3000, topP: 0.97, temperature: 5 },
  // More than are left where some are banned.
  { topK: 40_000, temperature: 2 },
  { topP: 0 },
  { topP: 0.5 },
  { topP: 0.95, temperature: 0.6 },
  { topP: 0.999, temperature: 1.5 },
  { topP: 0.9, minP: 0.02 },
  { minP: 1 },
  { minP: 0.1 },
  { minP: 1e-6, temperature: 3 },
  { minP: 1e-30, topP: 0.999 },
];

type Logits = Float32Array<ArrayBuffer>;

/** Rows of logits: like a model's, with many ties, with bans, with one that leaves nothing to the rest, flat. */
function kindsOf(vocabulary: number): Readonly<Record<string, Logits>> {
  const spread = (by: number, seed: number) => gaussians(vocabulary, random(seed)).map((x) => x * by) as Logits;
  const model = spread(3, vocabulary);
  const peaked = spread(1, vocabulary + 1);
  peaked[vocabulary >> 1] = 30;
  return {
    model,
    ties: spread(2, vocabulary + 2).map((x) => Math.round(x)) as Logits,
    bans: spread(3, vocabulary + 3).map((x, id) => (id % 3 === 0 ? -Infinity : x)) as Logits,
    peaked,
    wide: spread(1e30, vocabulary + 4),
    flat: new Float32Array(vocabulary).fill(-2),
    low: model.map((x) => x - 1e4) as Logits,
  };
}

/** How far a random number or a share may be from a border for f32 to fall on the other side. */
const ROUNDING = 3e-6;

/** What straightforward f64 gives, a full sort and whole sums: the ids in the order of the draw, and which of them is drawn. */
function plainDraw(
  logits: Float32Array,
  { temperature, topK, topP, minP }: SamplerSettings,
  number: number,
): { readonly order: readonly number[]; readonly at: number } {
  const all = [...logits.keys()].filter((id) => (logits[id] as number) > -Infinity);
  const best = all.reduce((most, id) => Math.max(most, logits[id] as number), -Infinity);
  const weight = (id: number, t: number) => Math.exp(((logits[id] as number) - best) / t);
  const massOf = (ids: readonly number[], t: number) => ids.reduce((sum, id) => sum + weight(id, t), 0);
  const where = (ids: readonly number[], t: number, enough: (sum: number) => boolean) => {
    let sum = 0;
    const found = ids.findIndex((id) => {
      sum += weight(id, t);
      return enough(sum);
    });
    return found < 0 ? ids.length - 1 : found;
  };
  const kept = topK > 0 && topK < logits.length;
  if (kept || topP < 1 || minP > 0) {
    all.sort((a, b) => (logits[b] as number) - (logits[a] as number) || a - b);
  }
  let order = kept ? all.slice(0, topK) : all;
  if (topP < 1) {
    const goal = topP * massOf(order, 1);
    order = order.slice(0, where(order, 1, (sum) => sum >= goal) + 1);
  }
  const least = minP > 0 ? Math.fround(best + Math.fround(Math.log(minP))) : -Infinity;
  order = order.filter((id) => (logits[id] as number) >= least);
  const goal = number * massOf(order, temperature);
  // All of them, so that tokens beyond a cut have a place too.
  return { order: all, at: all.indexOf(order[where(order, temperature, (sum) => sum > goal)] as number) };
}

/** Whether rounding explains a token: it lies between those that are drawn when number and share are a little off. */
function isAtBorder(logits: Float32Array, settings: SamplerSettings, index: number, token: number): boolean {
  const number = uniform(settings.seed, index);
  const sides = [-ROUNDING, 0, ROUNDING];
  const places = sides.flatMap((a) =>
    sides.map((b) => {
      const near = { ...settings, topP: settings.topP === 1 ? 1 : settings.topP * (1 + b) };
      return plainDraw(logits, near, Math.min(Math.max(number + a, 0), 1 - 2 ** -24));
    }),
  );
  const place = (places[0] as { order: readonly number[] }).order.indexOf(token);
  const found = places.map(({ at }) => at);
  return place >= Math.min(...found) && place <= Math.max(...found);
}

interface Case {
  readonly what: string;
  readonly logits: Logits;
  readonly settings: SamplerSettings;
  readonly index: number;
}

const rowOf = ({ logits, settings, index }: Case): Row => ({
  logits,
  draw: { settings, slot: 0, prompt: 0, index },
});

/** Draws all cases, {@link ROWS} in a run, and compares them with the host's; returns how many were not the same. */
async function differences(run: SamplingRun, cases: readonly Case[]): Promise<number> {
  let different = 0;
  for (let first = 0; first < cases.length; first += ROWS) {
    const some = cases.slice(first, first + ROWS);
    const { tokens, states } = await run.draw(some.map(rowOf));
    some.forEach(({ what, logits, settings, index }, row) => {
      assert.equal(states[row], status.drawn, what);
      const token = tokens[row] as number;
      const expected = new Sampler(settings).sample(logits, index);
      if (token === expected) return;
      different++;
      const found = `${what}, draw ${index} of seed ${settings.seed}: token ${token}, the host's is ${expected}`;
      assert.notEqual(settings.temperature, 0, found);
      assert.ok(isAtBorder(logits, settings, index, token), found);
    });
  }
  return different;
}

function casesOf(vocabulary: number, draws: number): Case[] {
  return Array.from({ length: draws }, (_, draw) =>
    Object.entries(kindsOf(vocabulary)).flatMap(([kind, logits]) =>
      ways.map((way, number) => ({
        what: `${kind} logits of ${vocabulary}, ${JSON.stringify(way)}`,
        logits,
        settings: { ...off, ...way, seed: 1000 * number + 7 },
        index: draw,
      })),
    ),
  ).flat();
}

const CONTEXT = 1500;
after(closeGpuTestDevice);

for (const [vocabulary, draws] of [
  [7, 4],
  [1000, 4],
  // The last of its parts has three ids.
  [49_155, 1],
] as const) {
  describe(`a vocabulary of ${vocabulary}`, () => {
    let run: SamplingRun;
    before(async () => {
      run = await SamplingRun.make(await gpuTestDevice(), vocabulary, CONTEXT);
    });
    after(() => run.dispose());

    test('draws the tokens that the host draws, greedy ones always, others but for one in a thousand at borders', async () => {
      const cases = casesOf(vocabulary, draws);
      const different = await differences(run, cases);
      assert.ok(different <= Math.ceil(cases.length / 1000), `${different} of ${cases.length} draws are others`);
    });

    test('a row draws the same alone, elsewhere, and beside a bad one', async () => {
      const cases = casesOf(vocabulary, 1).slice(0, ways.length);
      const { tokens } = await run.draw(cases.map(rowOf));
      const bad: Row = { ...rowOf(cases[0] as Case), logits: new Float32Array(vocabulary).fill(NaN) };
      const turned = await run.draw([bad, ...cases.map(rowOf).reverse()]);
      assert.deepEqual([...turned.tokens].slice(1).reverse(), [...tokens]);
      assert.equal(turned.tokens[0], NO_TOKEN);
      for (const row of [0, 1, 6, 13]) {
        const alone = await run.draw([rowOf(cases[row] as Case)]);
        assert.equal(alone.tokens[0], tokens[row], (cases[row] as Case).what);
      }
    });

    test('penalties and biases: tokens that the host has not seen count, the window moves, slots are apart', async () => {
      await checkSequences(run);
    });

    test('a number is that of the whole seed and of the index, and what the host draws stays untouched', async () => {
      await checkNumbers(run);
    });

    test('what is not finite is named with its first token, what leaves nothing is told apart', async () => {
      await checkFaults(run);
    });
  });
}

/** Draws step after step without reading a token in between, as the engine encodes ahead, and compares at the end. */
async function checkSequences(run: SamplingRun): Promise<void> {
  const { vocabulary } = run.layout;
  const steps = vocabulary > 10_000 ? 5 : 14;
  const next = random(vocabulary + 9);
  const tokenAt = (most: number) => Math.floor(next() * Math.min(most, vocabulary));
  const adjusting: readonly Partial<SamplerSettings>[] = [
    { repeatPenalty: 1.3, temperature: 0 },
    { repeatPenalty: 1.1, penaltyWindow: 3, temperature: 0 },
    { repeatPenalty: 0.7, penaltyWindow: CONTEXT, topK: 20 },
    { presencePenalty: 1.5, temperature: 0 },
    { frequencyPenalty: 0.3, presencePenalty: -0.1, temperature: 0 },
    { frequencyPenalty: 0.7, topP: 0.9 },
    {
      logitBias: [
        [0, -Infinity],
        [vocabulary - 1, 2.5],
        [3, 1 / 3],
      ],
      temperature: 0,
    },
    {
      repeatPenalty: 1.2,
      presencePenalty: 0.4,
      frequencyPenalty: 0.1,
      penaltyWindow: 40,
      logitBias: [
        [2, -Infinity],
        [1, 1],
      ],
      minP: 0.01,
    },
    { repeatPenalty: 1.2, penaltyWindow: 0 },
    { topK: 10 },
  ];
  const requests = adjusting.map((way, number) => ({
    settings: { ...off, ...way, seed: number + 2 ** 40 },
    // Not the row's number; and some are long, some empty.
    slot: run.layout.slots - 1 - 2 * number,
    prompt: Int32Array.from({ length: number % 3 === 0 ? 1400 : number }, () => tokenAt(2000)),
  }));
  for (const { settings, slot, prompt } of requests) run.takeSlot(slot, settings, prompt);
  const logits = Array.from({ length: steps }, () =>
    requests.map(() => gaussians(vocabulary, next).map((x) => x * 1.5) as Logits),
  );
  const submitted = logits.map((rows, index) =>
    run.submit(
      requests.map(({ settings, slot, prompt }, row) => ({
        logits: rows[row] as Logits,
        draw: { settings, slot, prompt: prompt.length, index, place: slot },
      })),
    ),
  );
  const found = await Promise.all(submitted.map((step) => step.read()));
  requests.forEach(({ settings, prompt }, row) => {
    const sampler = new Sampler(settings);
    sampler.observePrompt(prompt);
    const expected = logits.map((rows, index) => {
      const token = sampler.sample(rows[row] as Logits, index);
      sampler.observe(token);
      return token;
    });
    assert.deepEqual(
      found.map(({ tokens }) => tokens[row]),
      expected,
      JSON.stringify(adjusting[row]),
    );
  });
}

async function checkFaults(run: SamplingRun): Promise<void> {
  const { vocabulary } = run.layout;
  const good = gaussians(vocabulary, random(3)) as Logits;
  const having = (...values: readonly (readonly [number, number])[]) => {
    const row = good.slice() as Logits;
    for (const [id, value] of values) row[id] = value;
    return row;
  };
  const nothing = new Float32Array(vocabulary).fill(-Infinity);
  const last = vocabulary - 1;
  const faults: readonly (readonly [Logits, number])[] = [
    [having([last, NaN]), last],
    [having([0, -NaN]), 0],
    [having([5, Infinity], [2, -Infinity]), 5],
    [having([6, NaN], [4, Infinity], [last, NaN]), 4],
    [nothing, status.nothing],
    [having([3, -Infinity]), status.drawn],
    [having([last - 1, 3.4e38]), status.drawn],
  ];
  const ban = Array.from({ length: Math.min(vocabulary, 1000) }, (_, id) => [id, -Infinity] as const);
  const few = nothing.slice();
  for (const [id] of ban) few[id] = 1;
  const settings: readonly SamplerSettings[] = [
    { ...off, temperature: 0 },
    off,
    { ...off, topK: 3, repeatPenalty: 1.1 },
  ];
  settings.forEach((each, slot) => {
    run.takeSlot(slot, each, [1, 4]);
  });
  const rows = settings.flatMap((each, slot) =>
    faults.map(([logits, state]) => ({
      state,
      row: { logits, draw: { settings: each, slot, prompt: 2, index: 0 } },
    })),
  );
  // Banned: the same settings with biases, each in a slot of its own.
  for (const [number, each] of settings.entries()) {
    const banning = { ...each, logitBias: ban };
    run.takeSlot(10 + number, banning, [1, 4]);
    const draw = { settings: banning, slot: 10 + number, prompt: 2, index: 0 };
    rows.push(
      { state: status.banned, row: { logits: few, draw } },
      { state: status.nothing, row: { logits: nothing, draw } },
    );
  }
  const { tokens, states } = await run.draw(rows.map(({ row }) => row));
  rows.forEach(({ state, row: { logits, draw } }, row) => {
    const what = `row ${row}, ${JSON.stringify({ ...draw.settings, logitBias: draw.settings.logitBias.length })}`;
    assert.equal(states[row], state, what);
    const sampler = new Sampler(draw.settings);
    sampler.observePrompt([1, 4]);
    const fault = drawFault(states[row] as number);
    if (state === status.drawn) {
      assert.equal(tokens[row], sampler.sample(logits, 0), what);
      assert.equal(fault, undefined);
      return;
    }
    assert.equal(tokens[row], NO_TOKEN, what);
    // The host's sampler says the same of it.
    assert.ok(fault !== undefined && fault instanceof (state === status.banned ? UsageError : NonFiniteError));
    assert.throws(
      () => sampler.sample(logits, 0),
      (error: unknown) =>
        error instanceof (state === status.banned ? UsageError : NonFiniteError) &&
        error.data.token === fault.data.token,
      what,
    );
  });
}

/** Seeds and indices up to the largest; and a row that the host draws leaves its place as it was. */
async function checkNumbers(run: SamplingRun): Promise<void> {
  const { vocabulary } = run.layout;
  const flat = new Float32Array(vocabulary);
  const numbers = [0, 1, 2 ** 32 - 1, 2 ** 32 + 5, 2 ** 53 - 1];
  const cases = numbers.flatMap((seed) =>
    numbers.map((index): Case => ({ what: '', logits: flat, settings: { ...off, seed }, index })),
  );
  // All logits alike: the token is the number's place among them.
  const first = await run.draw(cases.map(rowOf));
  cases.forEach(({ settings: { seed }, index }, row) => {
    const place = uniform(seed, index) * vocabulary;
    assert.ok(Math.abs((first.tokens[row] as number) + 0.5 - place) < 0.5 + vocabulary * ROUNDING, `${seed}, ${index}`);
  });
  const second = await run.draw(cases.map((_, row) => (row === 5 ? rowOf(cases[6] as Case) : { logits: flat })));
  const expected = [...first.tokens];
  expected[5] = first.tokens[6] as number;
  assert.deepEqual([...second.tokens], expected);
}
