/**
 * Sampling on the device: from logits [wanted, vocabulary] and the settings of `sampling-buffer.ts` to a token a row, the same
 * one that the host's sampler draws. Two dispatches, and one before them where a row has penalties or biases; settings may differ from row
 * to row. A row's token depends on its logits, settings and slot alone; shares are f32, so it may be another than the
 * host's only where the random number or a filter falls within rounding of a border.
 */

import { InternalError } from '../../../errors.ts';
import type { ValueName } from '../../../model/graph.ts';
import type { Mode } from '../../kernel.ts';
import type { Binding, Builder } from '../builder.ts';
import { MAX_VOCABULARY } from '../sampling-buffer.ts';
import { adjustDispatch } from './sample-adjust.ts';
import { choiceDispatch } from './sample-choice.ts';
import { partsDispatch } from './sample-parts.ts';
import { PART_WORDS, partsOf, type SampleBuffers } from './sample-text.ts';

const ADJUSTED = 'sample logits';
const PARTS = 'sample parts';

/** Emits the dispatches; runs whose shape has `drawn` rows draw tokens of the leading rows of `logits`. */
export function emitSample(builder: Builder, mode: Mode, logits: ValueName): void {
  const layout = builder.sampling;
  const { vocabulary, rows } = layout;
  if (builder.width(logits) !== vocabulary || vocabulary > MAX_VOCABULARY) {
    throw new InternalError(`tokens were to be sampled from ${builder.width(logits)} logits, of ${vocabulary} tokens`);
  }
  builder.declareBuffer(ADJUSTED, rows * vocabulary * 4);
  builder.declareBuffer(PARTS, rows * partsOf(vocabulary) * PART_WORDS * 4);
  const buffer = (name: string, access: 'read' | 'write'): Binding => ({ kind: 'buffer', name, access });
  const sampling = (part: 'settings' | 'slots' | 'drawn', access: 'read' | 'write'): Binding => ({
    kind: 'sampling',
    part,
    access,
  });
  const buffers: SampleBuffers = {
    logits: [{ kind: 'value', name: logits, access: 'read' }, 'logits', 'u32'],
    adjusted: (access) => [buffer(ADJUSTED, access), 'adjusted', 'u32'],
    parts: (access) => [buffer(PARTS, access), 'parts', 'u32'],
    settings: [sampling('settings', 'read'), 'settings', 'u32'],
    slots: (access) => [sampling('slots', access), 'slots', 'u32'],
    drawn: [sampling('drawn', 'write'), 'drawn', 'u32'],
  };
  builder.dispatch(mode, adjustDispatch(buffers, layout));
  builder.dispatch(mode, partsDispatch(buffers, layout));
  builder.dispatch(mode, choiceDispatch(buffers, layout));
}
