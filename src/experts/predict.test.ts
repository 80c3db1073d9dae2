import assert from 'node:assert/strict';
import { test } from 'node:test';
import { PreviousStep, RouterAhead } from './predict.ts';

test('the step before predicts each layer for itself, and says how often it was right', () => {
  const predictor = new PreviousStep();
  assert.deepEqual([...predictor.predict(0)], []);
  assert.deepEqual(predictor.observe(0, [3, 1, 3, 2]), { predicted: 0, used: 0 });
  assert.deepEqual([...predictor.predict(0)], [3, 1, 2]);
  assert.deepEqual([...predictor.predict(1)], []);
  assert.deepEqual(predictor.observe(0, [2, 5]), { predicted: 3, used: 1 });
  assert.deepEqual([...predictor.predict(0)], [2, 5]);
});

test('a router ahead predicts the best of its scores, ties to the lower, and NaN last', () => {
  const predictor = new RouterAhead(2);
  predictor.scored(4, Float32Array.of(1, 3, 3, Number.NaN, -Infinity), 5);
  assert.deepEqual([...predictor.predict(4)], [1, 2]);
  predictor.scored(4, Float32Array.of(Number.NaN, 0, -1, Number.NaN, Number.NaN), 5);
  assert.deepEqual([...predictor.predict(4)], [1, 2]);
  assert.deepEqual(predictor.observe(4, [2, 0]), { predicted: 2, used: 1 });
  // What was said of one step says nothing of the next.
  assert.deepEqual([...predictor.predict(4)], []);
});

test('of several rows each one’s best come before any one’s second', () => {
  const predictor = new RouterAhead(2);
  predictor.scored(0, Float32Array.of(9, 8, 0, 0, 7, 0, 0, 9), 4);
  assert.deepEqual([...predictor.predict(0)], [0, 3, 1]);
});

test('no more experts are predicted than there are', () => {
  const predictor = new RouterAhead(8);
  predictor.scored(0, Float32Array.of(1, 2), 2);
  assert.deepEqual([...predictor.predict(0)], [1, 0]);
});
