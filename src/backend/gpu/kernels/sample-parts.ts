/**
 * The first kernel of sampling: penalties and biases, and of each part of a row's logits what the second one needs. A
 * workgroup takes a part; it looks over the row's whole slot for tokens that lie in its own.
 */

import type { Dispatch } from '../builder.ts';
import { MAX_BIASES, mode, type SamplingLayout, SETTINGS_WORDS } from '../sampling-buffer.ts';
import { unrolled } from './kernel-text.ts';
import { float, GROUPS, keyText, PART, PART_WORDS, part, SAMPLE_THREADS, sumText, word } from './sample-text.ts';
import { type Bound, declare } from './snippets.ts';

const EACH = PART / SAMPLE_THREADS;

export interface SampleBuffers {
  readonly logits: Bound;
  /** Logits after penalties and biases, of the rows that have some. */
  readonly adjusted: (access: 'read' | 'write') => Bound;
  readonly parts: (access: 'read' | 'write') => Bound;
  readonly settings: Bound;
  readonly slots: (access: 'read' | 'write') => Bound;
  readonly drawn: Bound;
}

export const partsOf = (vocabulary: number) => Math.ceil(vocabulary / PART);

export function partsDispatch(buffers: SampleBuffers, layout: SamplingLayout): Dispatch {
  const { vocabulary, context, slotWords } = layout;
  const parts = partsOf(vocabulary);
  const { text, bindings } = declare([
    buffers.logits,
    buffers.settings,
    buffers.slots('read'),
    buffers.adjusted('write'),
    buffers.parts('write'),
  ]);
  return {
    label: 'sample parts',
    bindings,
    code: `${text}
${keyText}
${sumText}
// Of each id of the part: bit 31 whether it is in the window, the rest how often it was generated; later its bias.
var<workgroup> marks: array<atomic<u32>, ${PART}>;
var<workgroup> fault: atomic<u32>;
var<workgroup> some: atomic<u32>;

/** The same number, by a way that no compiler can look through: what it is made by is rounded before it is added to. */
fn rounded(x: f32, zero: u32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }

@compute @workgroup_size(${SAMPLE_THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.y;
  let at = row * ${SETTINGS_WORDS}u;
  if (${word('mode')} == ${mode.none}u) { return; }
  let first = workgroup.x * ${PART}u;
${unrolled(
  EACH,
  (i) => `  let id${i} = first + ${i * SAMPLE_THREADS}u + thread;
  var bits${i} = NONE_BITS;
  if (id${i} < ${vocabulary}u) { bits${i} = logits[row * ${vocabulary}u + id${i}]; }`,
)}
  if (${unrolled(EACH, (i) => `bits${i} != NONE_BITS`).replaceAll('\n', ' || ')}) { atomicStore(&some, 1u); }

  if (${word('adjusts')} != 0u) {
    let slot = ${word('slot')} * ${slotWords}u;
    let seen = ${word('seen')};
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
${unrolled(
  EACH,
  (i) => `    let mark${i} = atomicLoad(&marks[${i * SAMPLE_THREADS}u + thread]);
    var logit${i} = bitcast<f32>(bits${i});
    if ((mark${i} >> 31u) == 1u) {
      logit${i} = rounded(logit${i} * select(${float('repeatBelow0')}, ${float('repeatAbove0')}, logit${i} > 0f), zero);
    }
    if ((mark${i} & 0x7fffffffu) != 0u) {
      logit${i} -= ${float('presence')} + rounded(f32(mark${i} & 0x7fffffffu) * ${float('frequency')}, zero);
    }`,
)}
    let biases = min(${word('biases')}, ${MAX_BIASES}u);
    if (biases > 0u) {
      workgroupBarrier();
${unrolled(EACH, (i) => `      atomicStore(&marks[${i * SAMPLE_THREADS}u + thread], 0u);`)}
      workgroupBarrier();
      for (var i = thread; i < biases; i += ${SAMPLE_THREADS}u) {
        let entry = slot + ${context}u + 2u * i;
        let own = slots[entry] - first;
        if (own < ${PART}u) { atomicStore(&marks[own], slots[entry + 1u]); }
      }
      workgroupBarrier();
${unrolled(EACH, (i) => `      logit${i} += bitcast<f32>(atomicLoad(&marks[${i * SAMPLE_THREADS}u + thread]));`)}
    }
${unrolled(
  EACH,
  (i) => `    // A fault stays one, whatever the device makes of sums with it.
    if (!isFault(bits${i})) { bits${i} = bitcast<u32>(logit${i}); }
    if (id${i} < ${vocabulary}u) { adjusted[row * ${vocabulary}u + id${i}] = bits${i}; }`,
)}
  }

  var best = vec2u(keyOf(bits0), id0);
${unrolled(
  EACH,
  (i) => `  let key${i} = keyOf(bits${i});
  if (key${i} > best.x) { best = vec2u(key${i}, id${i}); }
  if (isFault(bits${i})) { atomicMax(&fault, NEVER - id${i}); }`,
)}
  room[thread] = vec4u(best, 0u, 0u);
  workgroupBarrier();
  let record = (row * ${parts}u + workgroup.x) * ${PART_WORDS}u;
  if (thread < ${GROUPS}u) {
    for (var i = 1u; i < ${SAMPLE_THREADS / GROUPS}u; i++) {
      let other = room[thread + ${GROUPS}u * i];
      if (other.x > best.x || (other.x == best.x && other.y < best.y)) { best = other.xy; }
    }
    room[thread] = vec4u(best, 0u, 0u);
    parts[record + thread] = best.x;
  }
  workgroupBarrier();
  best = room[0].xy;
  for (var i = 1u; i < ${GROUPS}u; i++) {
    let other = room[i];
    if (other.x > best.x || (other.x == best.x && other.y < best.y)) { best = other.xy; }
  }
  if (thread == 0u) {
    parts[record + ${part.bestKey}u] = best.x;
    parts[record + ${part.bestId}u] = best.y;
    parts[record + ${part.fault}u] = atomicLoad(&fault);
    parts[record + ${part.some}u] = atomicLoad(&some);
  }
  if (${word('mode')} == ${mode.greedy}u) { return; }
  let top = valueOf(best.x);
  let inverse = ${float('inverseTemperature')};
  var own = vec2f();
${unrolled(EACH, (i) => `  own += vec2f(weightOf(key${i}, top, 1f), weightOf(key${i}, top, inverse));`)}
  let masses = sumAll(thread, vec4f(own, 0f, 0f));
  if (thread == 0u) {
    parts[record + ${part.mass}u] = bitcast<u32>(masses.x);
    parts[record + ${part.temperedMass}u] = bitcast<u32>(masses.y);
  }
}
`,
    workgroups: ({ drawn = 0 }) => [drawn === 0 ? 0 : parts, drawn, 1],
  };
}
