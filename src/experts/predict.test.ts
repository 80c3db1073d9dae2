import assert from 'node:assert/strict';
import { test } from 'node:test';
import { PreviousStep, RouterAhead } from './predict.ts';

test('the step before predicts each layer for itself, and says how often it was right', () => {
  const predictor = new PreviousStep();
  assert.deepEqual([...predictor.predict(0)], []);
  assert.deepEqual(predictor.observe(0, [3, 1, 3, 2]), { named: 0, used: 3, right: 0 });
  assert.deepEqual([...predictor.predict(0)], [3, 1, 2]);
  assert.deepEqual([...predictor.predict(1)], []);
  assert.deepEqual(predictor.observe(0, [2, 5]), { named: 3, used: 2, right: 1 });
  assert.deepEqual([...predictor.predict(0)], [2, 5]);
});

test('a router ahead predicts what it named last, of several rows each one’s best before any one’s second', () => {
  const predictor = new RouterAhead();
  assert.deepEqual(predictor.observe(4, [2]), { named: 0, used: 1, right: 0 });
  predictor.named(4, [0, 1, 3, 0], 2);
  assert.deepEqual([...predictor.predict(4)], [0, 3, 1]);
  assert.deepEqual(predictor.observe(4, [3, 2, 2, 0]), { named: 3, used: 3, right: 2 });
  assert.deepEqual([...predictor.predict(4)], [0, 3, 1]);
  assert.deepEqual([...predictor.predict(5)], []);
});
