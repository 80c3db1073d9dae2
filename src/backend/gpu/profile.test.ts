import assert from 'node:assert/strict';
import { test } from 'node:test';
import { foldLayers, profileRun } from './profile.ts';

test('a kernel of all layers is one, wherever its label names the layer; the longest comes first', () => {
  const folded = foldLayers([
    { label: 'embed', ns: 5 },
    { label: 'layers.0.moe gate and up', ns: 10 },
    { label: 'layers.0.norm layers.0.attention.input', ns: 1 },
    { label: 'layers.11.moe gate and up', ns: 12 },
    { label: 'layers.11.norm layers.11.attention.input', ns: 2 },
    { label: 'layers.12.norm normed', ns: 4 },
  ]);
  assert.deepEqual(folded, [
    { label: 'moe gate and up', dispatches: 2, ns: 22 },
    { label: 'embed', dispatches: 1, ns: 5 },
    { label: 'norm normed', dispatches: 1, ns: 4 },
    { label: 'norm attention.input', dispatches: 2, ns: 3 },
  ]);
});

test('the median of the repetitions counts, by dispatch; the run that warms up does not', async () => {
  const encodes = [1000, 3, 1, 2];
  const times = [
    [10, 7],
    [30, 8],
    [20, 900],
  ];
  let runs = 0;
  const profile = await profileRun({
    repetitions: 3,
    async run() {
      const encodeMs = encodes[runs++] as number;
      return { dispatches: 2, encodeMs, runMs: 10 * encodeMs };
    },
    async time() {
      const [a, b] = times.shift() as [number, number];
      return [
        { label: 'layers.0.a', ns: a },
        { label: 'b', ns: b },
      ];
    },
  });
  assert.equal(runs, 4);
  assert.deepEqual(profile, {
    dispatches: 2,
    encodeMs: 2,
    runMs: 20,
    kernels: [
      { label: 'a', dispatches: 1, ns: 20 },
      { label: 'b', dispatches: 1, ns: 8 },
    ],
  });
});

test('without timestamps there are no kernels', async () => {
  const profile = await profileRun({
    repetitions: 2,
    run: async () => ({ dispatches: 4, encodeMs: 1, runMs: 2 }),
    time: async () => undefined,
  });
  assert.deepEqual(profile, { dispatches: 4, encodeMs: 1, runMs: 2 });
});
