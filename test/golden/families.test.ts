/**
 * Laws 1, 3 and 4 on a tiny model of every family: the reference gives the official logits and hidden states, and a
 * row's result does not depend on the rows around it, on the chunk it came in, or on the mode.
 *
 * The official numbers are Hugging Face transformers' in f32. 2e-4 is a hundred times what f32 sums of these widths
 * round, and far below what a wrong epsilon, pairing or weighting makes.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { families, familyFile, filesOf } from '../support/families.ts';
import { argmax, pagesFor, type ReferenceModel, runRows, withReference } from '../support/reference.ts';
import { type FixtureTensor, f32Of, i32Of, readSafetensors } from '../support/safetensors.ts';

const TOLERANCE = 2e-4;

function worstError(found: Float32Array, expected: Float32Array): number {
  assert.equal(found.length, expected.length);
  // Math.max keeps a NaN, and no comparison with one is true, so it cannot pass.
  return found.reduce((worst, value, i) => Math.max(worst, Math.abs(value - expected[i])), 0);
}

async function checkPrompt(model: ReferenceModel, expected: ReadonlyMap<string, FixtureTensor>): Promise<Float32Array> {
  const tokens = i32Of(expected, 'tokens');
  const logits = await runRows(model, tokens, 0, 'prompt');
  assert.equal(model.graph.hidden.length, model.spec.layers.length + 1);
  model.graph.hidden.forEach((name, layer) => {
    const error = worstError(model.executable.value(name), f32Of(expected, `hidden_${layer}`));
    assert.ok(error <= TOLERANCE, `hidden state ${layer} (${name}) is off by ${error}`);
  });
  const error = worstError(logits, f32Of(expected, 'logits'));
  assert.ok(error <= TOLERANCE, `logits are off by ${error}`);
  return logits;
}

for (const family of families) {
  const expected = readSafetensors(familyFile(family, 'expected.safetensors'));
  const tokens = i32Of(expected, 'tokens');

  // The same weights in each: the container may not show.
  for (const file of filesOf(family)) {
    test(`${family}, ${file}: official logits, hidden states and greedy tokens`, () =>
      withReference(familyFile(family, file), async (model) => {
        const logits = await checkPrompt(model, expected);
        const { vocabulary } = model.spec;
        const greedy = [argmax(logits.subarray(-vocabulary))];
        while (greedy.length < 16) {
          const position = tokens.length + greedy.length - 1;
          greedy.push(argmax(await runRows(model, greedy.slice(-1), position, 'step')));
        }
        assert.deepEqual(greedy, [...i32Of(expected, 'greedy')]);
      }));
  }

  test(`${family}: chunks, single steps and scattered pages change no bit`, () =>
    withReference(familyFile(family, 'model.gguf'), async (model) => {
      const whole = await runRows(model, tokens, 0, 'prompt');
      const { vocabulary } = model.spec;

      let chunked: number[] = [];
      for (let start = 0; start < tokens.length; start += 7) {
        chunked = chunked.concat(...(await runRows(model, tokens.subarray(start, start + 7), start, 'prompt')));
      }
      assert.deepEqual(Float32Array.from(chunked), whole, 'chunks of seven');

      for (let t = 0; t < tokens.length; t++) {
        const logits = await runRows(model, tokens.subarray(t, t + 1), t, 'step', pagesFor(t + 1, 3));
        assert.deepEqual(logits, whole.subarray(t * vocabulary, (t + 1) * vocabulary), `step ${t}, in page 3`);
      }
    }));
}

test('sequences that share a run do not see one another, and past a page the right page is read', () =>
  withReference(
    familyFile('mixtral', 'model.gguf'),
    async (model) => {
      const text = Array.from({ length: 150 }, (_, i) => (i * 37 + 11) % 500);
      const alone = await runRows(model, text, 0, 'prompt', Int32Array.of(0, 1, 2));
      const { vocabulary } = model.spec;
      const row = (t: number) => alone.subarray(t * vocabulary, (t + 1) * vocabulary);

      // The same text twice, in pages that alternate, and then one step row of each sequence in one run.
      await runRows(model, text.slice(0, 149), 0, 'prompt', Int32Array.of(7, 3, 5));
      await runRows(model, text.slice(0, 70), 0, 'prompt', Int32Array.of(4, 6));
      const logits = await model.executable.run({
        mode: 'step',
        tokens: Int32Array.of(text[149], text[70]),
        positions: Int32Array.of(149, 70),
        sequences: Int32Array.of(0, 1),
        pageTables: [Int32Array.of(7, 3, 5), Int32Array.of(4, 6)],
        wanted: Int32Array.of(0, 1),
      });
      assert.deepEqual(logits.subarray(0, vocabulary), row(149));
      assert.deepEqual(logits.subarray(vocabulary), row(70));
    },
    8,
  ));
