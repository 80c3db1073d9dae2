/** The kernel that looks through all logits: of each part of a row what the choice needs. A workgroup takes a part. */

import type { Dispatch } from '../builder.ts';
import { mode, type SamplingLayout, SETTINGS_WORDS } from '../sampling-buffer.ts';
import { unrolled } from './kernel-text.ts';
import {
  float,
  GROUPS,
  keyText,
  PART,
  PART_WORDS,
  part,
  partsOf,
  SAMPLE_THREADS,
  type SampleBuffers,
  sumText,
  word,
} from './sample-text.ts';
import { declare } from './snippets.ts';

const EACH = PART / SAMPLE_THREADS;

export function partsDispatch(buffers: SampleBuffers, layout: SamplingLayout): Dispatch {
  const { vocabulary } = layout;
  const parts = partsOf(vocabulary);
  const { text, bindings } = declare([
    buffers.logits,
    buffers.settings,
    buffers.adjusted('read'),
    buffers.parts('write'),
  ]);
  return {
    label: 'sample parts',
    bindings,
    code: `${text}
${keyText}
${sumText}
var<workgroup> fault: atomic<u32>;
var<workgroup> some: atomic<u32>;

@compute @workgroup_size(${SAMPLE_THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.y;
  let at = row * ${SETTINGS_WORDS}u;
  if (${word('mode')} == ${mode.none}u) { return; }
  let first = workgroup.x * ${PART}u;
  if (thread == 0u) {
    atomicStore(&some, 0u);
    atomicStore(&fault, 0u);
  }
  workgroupBarrier();
${unrolled(
  EACH,
  (i) => `  let id${i} = first + ${i * SAMPLE_THREADS}u + thread;
  var bits${i} = NONE_BITS;
  if (id${i} < ${vocabulary}u) { bits${i} = logits[row * ${vocabulary}u + id${i}]; }`,
)}
  if (${unrolled(EACH, (i) => `bits${i} != NONE_BITS`).replaceAll('\n', ' || ')}) { atomicStore(&some, 1u); }

  if (${word('adjusts')} != 0u) {
${unrolled(EACH, (i) => `    if (id${i} < ${vocabulary}u) { bits${i} = adjusted[row * ${vocabulary}u + id${i}]; }`)}
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
