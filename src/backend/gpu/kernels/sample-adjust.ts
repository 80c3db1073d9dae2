/**
 * Penalties and biases: the logits of rows that have some, changed, into a buffer of their own. A workgroup takes a part of a
 * row and looks over the row's whole slot for tokens that lie in it, so no table of a vocabulary's size is kept or cleared.
 */

import type { Dispatch } from '../builder.ts';
import { MAX_BIASES, mode, type SamplingLayout, SETTINGS_WORDS } from '../sampling-buffer.ts';
import { float, keyText, PART, partsOf, SAMPLE_THREADS, type SampleBuffers, word } from './sample-text.ts';
import { declare } from './snippets.ts';

export function adjustDispatch(buffers: SampleBuffers, layout: SamplingLayout): Dispatch {
  const { vocabulary, context, slotWords } = layout;
  const { text, bindings } = declare([
    buffers.logits,
    buffers.settings,
    buffers.slots('read'),
    buffers.adjusted('write'),
  ]);
  return {
    label: 'sample penalties',
    bindings,
    code: `${text}
${keyText}
// Of each id of the part: bit 31 whether it is in the window, the rest how often it was generated.
var<workgroup> marks: array<atomic<u32>, ${PART}>;

/** The same number, by a way that no compiler can look through: what it is made by is rounded before it is added to. */
fn rounded(x: f32, zero: u32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }

@compute @workgroup_size(${SAMPLE_THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.y;
  let at = row * ${SETTINGS_WORDS}u;
  if (${word('mode')} == ${mode.none}u || ${word('adjusts')} == 0u) { return; }
  let first = workgroup.x * ${PART}u;
  let slot = ${word('slot')} * ${slotWords}u;
  let seen = ${word('seen')};
  for (var own = thread; own < ${PART}u; own += ${SAMPLE_THREADS}u) { atomicStore(&marks[own], 0u); }
  workgroupBarrier();
  for (var i = ${word('windowStart')} + thread; i < seen; i += ${SAMPLE_THREADS}u) {
    let own = slots[slot + i] - first;
    if (own < ${PART}u) { atomicOr(&marks[own], 0x80000000u); }
  }
  for (var i = ${word('generatedStart')} + thread; i < seen; i += ${SAMPLE_THREADS}u) {
    let own = slots[slot + i] - first;
    if (own < ${PART}u) { atomicAdd(&marks[own], 1u); }
  }
  workgroupBarrier();

  let zero = ${word('zero')};
  let size = min(${PART}u, ${vocabulary}u - first);
  for (var own = thread; own < size; own += ${SAMPLE_THREADS}u) {
    let mark = atomicLoad(&marks[own]);
    let count = mark & 0x7fffffffu;
    let bits = logits[row * ${vocabulary}u + first + own];
    var logit = bitcast<f32>(bits);
    if (mark != count) {
      logit = rounded(logit * select(${float('repeatBelow0')}, ${float('repeatAbove0')}, logit > 0f), zero);
    }
    if (count != 0u) { logit -= ${float('presence')} + rounded(f32(count) * ${float('frequency')}, zero); }
    // A fault stays one, whatever the device makes of sums with it.
    adjusted[row * ${vocabulary}u + first + own] = select(bitcast<u32>(logit), bits, isFault(bits));
  }
  storageBarrier();
  // An id has one bias at most.
  for (var i = thread; i < min(${word('biases')}, ${MAX_BIASES}u); i += ${SAMPLE_THREADS}u) {
    let entry = slot + ${context}u + 2u * i;
    let own = slots[entry] - first;
    if (own < size) {
      let place = row * ${vocabulary}u + first + own;
      let bits = adjusted[place];
      if (!isFault(bits)) {
        adjusted[place] = bitcast<u32>(bitcast<f32>(bits) + bitcast<f32>(slots[entry + 1u]));
      }
    }
  }
}
`,
    workgroups: ({ drawn = 0, adjusts = false }) => (adjusts ? [partsOf(vocabulary), drawn, 1] : [0, 0, 0]),
  };
}
