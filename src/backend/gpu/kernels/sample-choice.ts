/**
 * The last kernel of sampling: a workgroup draws one row's token from what is known of its parts, in the order of the host's
 * sampler. The best are gathered from the groups that can hold them and sorted; without filters nothing is sorted; what is
 * too much to gather is found by value (`sample-search.ts`).
 */

import type { Dispatch } from '../builder.ts';
import { mode, NO_TOKEN, type SamplingLayout, SETTINGS_WORDS, status } from '../sampling-buffer.ts';
import { unrolled } from './kernel-text.ts';
import { searchText } from './sample-search.ts';
import {
  CANDIDATES,
  CANDIDATES_EACH,
  float,
  GROUPS,
  keyText,
  PART,
  PART_WORDS,
  part,
  partsOf,
  randomText,
  SAMPLE_THREADS,
  type SampleBuffers,
  sumText,
  togetherText,
  word,
} from './sample-text.ts';
import { declare } from './snippets.ts';

/** Groups that candidates come from at the most. */
const MOST_GROUPS = 512;
/** Without top-k: groups whose best logits are among the candidates, which are about as many. */
const NUCLEUS = 256;
/** Steps by which a logit lies below the best, and how many there are of 1. */
const BINS = 512;
const BINS_OF_1 = 16;

const IDS_EACH = PART / SAMPLE_THREADS;
/** Logits that a thread loads before it looks at any. */
const LOADS = 4;

export function choiceDispatch(buffers: SampleBuffers, layout: SamplingLayout): Dispatch {
  const { vocabulary, context, slotWords, places } = layout;
  const parts = partsOf(vocabulary);
  const { text, bindings } = declare([
    buffers.logits,
    buffers.settings,
    buffers.slots('write'),
    buffers.adjusted('read'),
    buffers.parts('read'),
    buffers.drawn,
  ]);
  return {
    label: 'sample choice',
    bindings,
    code: `${text}
${keyText}
${sumText}
${togetherText}
${randomText}
var<workgroup> candidates: array<vec2u, ${CANDIDATES}>;
// A count a bin, later the groups.
var<workgroup> scratch: array<atomic<u32>, ${Math.max(BINS, MOST_GROUPS)}>;
var<workgroup> listed: atomic<u32>;
var<workgroup> gathered: atomic<u32>;

// The row: where its logits and parts begin, its best (key and id), and the number it is drawn by.
var<private> rowStart: u32;
var<private> partStart: u32;
var<private> adjusts: bool;
var<private> best: vec2u;
var<private> top: f32;
var<private> random: f32;

/** The key of a logit; 0 beyond the vocabulary. Without branches, so that many loads travel together. */
fn keyAt(id: u32) -> u32 {
  let place = rowStart + min(id, ${vocabulary - 1}u);
  let bits = select(logits[place], adjusted[select(0u, place, adjusts)], adjusts);
  return select(keyOf(bits), 0u, id >= ${vocabulary}u);
}
/** The best key of a group; 0 beyond the last. */
fn groupKey(g: u32) -> u32 {
  let own = min(g, ${parts * GROUPS - 1}u);
  return select(partWord(own / ${GROUPS}u, own % ${GROUPS}u), 0u, g != own);
}
fn partWord(p: u32, word: u32) -> u32 { return parts[partStart + p * ${PART_WORDS}u + word]; }
/** A part's share of the row's mass. */
fn partMass(p: u32, word: u32, inverse: f32) -> f32 {
  if (p >= ${parts}u) { return 0f; }
  return bitcast<f32>(partWord(p, word)) * weightOf(partWord(p, ${part.bestKey}u), top, inverse);
}
${searchText(layout)}
${fromAllText(parts)}
${fromBestText(parts)}

@compute @workgroup_size(${SAMPLE_THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  let at = row * ${SETTINGS_WORDS}u;
  let how = ${word('mode')};
  if (how == ${mode.none}u) { return; }
  rowStart = row * ${vocabulary}u;
  partStart = row * ${parts * PART_WORDS}u;
  adjusts = ${word('adjusts')} != 0u;

  // Key and id of the best, the first fault, whether there was anything.
  var found = vec4u(0u, NEVER, 0u, 0u);
  if (thread < ${parts}u) {
    found = vec4u(partWord(thread, ${part.bestKey}u), partWord(thread, ${part.bestId}u), partWord(thread, ${part.fault}u), partWord(thread, ${part.some}u));
  }
  room[thread] = found;
  if (thread == 0u) {
    atomicStore(&listed, 0u);
    atomicStore(&gathered, 0u);
  }
  workgroupBarrier();
  if (thread < 16u) {
    for (var i = 1u; i < ${SAMPLE_THREADS / 16}u; i++) { found = better(found, room[thread + 16u * i]); }
    room[thread] = found;
  }
  workgroupBarrier();
  found = room[0];
  for (var i = 1u; i < 16u; i++) { found = better(found, room[i]); }
  best = found.xy;
  top = valueOf(best.x);

  var state = ${status.drawn}u;
  if (best.x <= NONE) { state = select(${status.nothing}u, ${status.banned}u, found.w != 0u); }
  if (found.z != 0u) { state = NEVER - found.z; }
  var token = select(${NO_TOKEN}u, best.y, state == ${status.drawn}u);
  if (how != ${mode.greedy}u && agreed(thread, state) == ${status.drawn}u) {
    random = uniform(${word('index')}, vec2u(${word('seedLow')}, ${word('seedHigh')}));
    if (how == ${mode.all}u) {
      token = drawFromAll(thread, at);
    } else {
      token = drawFromBest(thread, at);
      if (agreed(thread, token) == NEVER) { token = drawByValue(thread, at, leastOfRow(at)); }
    }
  }
  if (thread == 0u) {
    drawn[${word('place')}] = token;
    drawn[${places}u + ${word('place')}] = state;
    let seen = ${word('seen')};
    if (adjusts && seen < ${context}u) { slots[${word('slot')} * ${slotWords}u + seen] = token; }
  }
}

fn better(a: vec4u, b: vec4u) -> vec4u {
  let first = a.x > b.x || (a.x == b.x && a.y < b.y);
  return vec4u(select(b.xy, a.xy, first), max(a.z, b.z), a.w | b.w);
}
`,
    workgroups: ({ drawn = 0 }) => [drawn, 1, 1],
  };
}

/** In the order of ids: first the part that the number falls into, then the id within it. */
const fromAllText = (parts: number) => /* wgsl */ `
fn drawFromAll(thread: u32, at: u32) -> u32 {
  let inverse = ${float('inverseTemperature')};
  let mass = partMass(thread, ${part.temperedMass}u, inverse);
  let before = scan(thread, mass);
  let goal = random * before.y;
  let owner = leastOf(thread, select(NEVER, thread, mass > 0f && before.x + mass > goal));
  let left = goal - toldBy(thread == min(owner, ${parts - 1}u), before.x);
  let first = min(owner, ${parts - 1}u) * ${PART}u + thread * ${IDS_EACH}u;
${unrolled(IDS_EACH, (i) => `  let weight${i} = weightOf(keyAt(first + ${i}u), top, inverse);`)}
  var sum = scan(thread, ${unrolled(IDS_EACH, (i) => `weight${i}`).replaceAll('\n', ' + ')}).x;
  var id = NEVER;
  var last = NEVER;
${unrolled(
  IDS_EACH,
  (i) => `  sum += weight${i};
  if (weight${i} > 0f) {
    if (id == NEVER && sum > left) { id = first + ${i}u; }
    last = first + ${i}u;
  }`,
)}
  id = leastOf(thread, id);
  // Only rounding leaves it beyond the last of its part.
  last = NEVER - leastOf(thread, select(NEVER - last, NEVER, last == NEVER));
  if (owner == NEVER) { return best.y; }
  return min(id, last);
}`;

const fromBestText = (parts: number) => {
  const groupsEach = Math.ceil((parts * GROUPS) / SAMPLE_THREADS);
  return /* wgsl */ `
fn binOf(logit: f32) -> u32 { return u32(min((top - logit) * ${BINS_OF_1}f, ${BINS - 1}f)); }
fn goesBefore(a: vec2u, b: vec2u) -> bool { return a.x > b.x || (a.x == b.x && a.y < b.y); }

/** The least logit that min-p leaves; without it the least that there is. */
fn leastOfRow(at: u32) -> f32 {
  let distance = ${float('minPDistance')};
  return select(-3.4028234e38f, top + distance, distance > -3e38f);
}

/** The ith id of those in the listed groups; NEVER beyond the last. */
fn idInGroups(i: u32, groups: u32) -> u32 {
  let g = atomicLoad(&scratch[min(i / ${PART / GROUPS}u, ${MOST_GROUPS - 1}u)]);
  let id = (g / ${GROUPS}u) * ${PART}u + g % ${GROUPS}u + ${GROUPS}u * (i % ${PART / GROUPS}u);
  return select(id, NEVER, i >= groups * ${PART / GROUPS}u);
}

/** NEVER where there are more than it can hold. */
fn drawFromBest(thread: u32, at: u32) -> u32 {
  let topK = ${word('topK')};
  let topP = ${float('topP')};
  let filtersLeast = ${float('minPDistance')} > -3e38f;
  let least = leastOfRow(at);
  let leastBin = select(NEVER, binOf(least), filtersLeast);

  // Candidates are those in bins up to the last: enough groups have their best there, and so many candidates there are.
  for (var i = thread; i < ${BINS}u; i += ${SAMPLE_THREADS}u) { atomicStore(&scratch[i], 0u); }
  workgroupBarrier();
${unrolled(groupsEach, (i) => `  let group${i} = groupKey(${i * SAMPLE_THREADS}u + thread);`)}
${unrolled(groupsEach, (i) => `  if (group${i} > NONE) { atomicAdd(&scratch[binOf(valueOf(group${i}))], 1u); }`)}
  workgroupBarrier();
  var enough = f32(topK);
  if (topK == 0u) { enough = select(3e38f, ${NUCLEUS}f, topP < 1f); }
  var bin = NEVER;
  var reached = 0f;
${unrolled(
  BINS / SAMPLE_THREADS,
  (i) => `  let count${i} = f32(atomicLoad(&scratch[thread * ${BINS / SAMPLE_THREADS}u + ${i}u]));
  reached += count${i};`,
)}
  reached = scan(thread, reached).x;
${unrolled(
  BINS / SAMPLE_THREADS,
  (i) => `  reached += count${i};
  if (bin == NEVER && reached >= enough) { bin = thread * ${BINS / SAMPLE_THREADS}u + ${i}u; }`,
)}
  var lastBin = min(leastOf(thread, bin), ${BINS - 1}u);
  if (topK == 0u) { lastBin = min(lastBin, leastBin); }

${unrolled(
  groupsEach,
  (i) => `  if (group${i} > NONE && binOf(valueOf(group${i})) <= lastBin) {
    let place = atomicAdd(&listed, 1u);
    if (place < ${MOST_GROUPS}u) { atomicStore(&scratch[place], ${i * SAMPLE_THREADS}u + thread); }
  }`,
)}
  workgroupBarrier();
  let groups = agreed(thread, atomicLoad(&listed));
  if (groups > ${MOST_GROUPS}u) { return NEVER; }
  for (var i = thread; i < groups * ${PART / GROUPS}u; i += ${SAMPLE_THREADS * LOADS}u) {
${unrolled(
  LOADS,
  (load) => `    let id${load} = idInGroups(i + ${load * SAMPLE_THREADS}u, groups);
    let key${load} = keyAt(id${load});`,
)}
${unrolled(
  LOADS,
  (load) => `    if (key${load} > NONE && binOf(valueOf(key${load})) <= lastBin) {
      let place = atomicAdd(&gathered, 1u);
      if (place < ${CANDIDATES}u) { candidates[place] = vec2u(key${load}, id${load}); }
    }`,
)}
  }
  workgroupBarrier();
  let found = agreed(thread, atomicLoad(&gathered));
  if (found > ${CANDIDATES}u) { return NEVER; }
  sortCandidates(thread, found);

  var count = found;
  if (topK > 0u) { count = min(count, topK); }
  let first = thread * ${CANDIDATES_EACH}u;
${unrolled(
  CANDIDATES_EACH,
  (i) => `  var key${i} = NONE;
  if (first + ${i}u < count) { key${i} = candidates[first + ${i}u].x; }
  let weight${i} = weightOf(key${i}, top, 1f);`,
)}
  let masses = scan(thread, ${unrolled(CANDIDATES_EACH, (i) => `weight${i}`).replaceAll('\n', ' + ')});
  // Without top-k it is a share of the whole row.
  let mass = select(sumAll(thread, vec4f(partMass(thread, ${part.mass}u, 1f))).x, masses.y, topK > 0u);
  var sum = masses.x;
  var cut = NEVER;
  var below = NEVER;
${unrolled(
  CANDIDATES_EACH,
  (i) => `  sum += weight${i};
  if (cut == NEVER && first + ${i}u < count && sum >= topP * mass) { cut = first + ${i}u; }
  if (below == NEVER && first + ${i}u < count && valueOf(key${i}) < least) { below = first + ${i}u; }`,
)}
  cut = leastOf(thread, cut);
  below = leastOf(thread, below);
  let whole = topK > 0u || lastBin == ${BINS - 1}u || lastBin >= leastBin;
  if (agreed(thread, select(0u, 1u, whole || (topP < 1f && cut != NEVER))) == 0u) { return NEVER; }
  if (topP < 1f && cut != NEVER) { count = cut + 1u; }
  if (filtersLeast) { count = max(1u, min(count, below)); }

  let inverse = ${float('inverseTemperature')};
${unrolled(CANDIDATES_EACH, (i) => `  let tempered${i} = select(0f, weightOf(key${i}, top, inverse), first + ${i}u < count);`)}
  let before = scan(thread, ${unrolled(CANDIDATES_EACH, (i) => `tempered${i}`).replaceAll('\n', ' + ')});
  let goal = random * before.y;
  sum = before.x;
  var chosen = NEVER;
${unrolled(
  CANDIDATES_EACH,
  (i) => `  sum += tempered${i};
  if (chosen == NEVER && tempered${i} > 0f && sum > goal) { chosen = first + ${i}u; }`,
)}
  chosen = leastOf(thread, chosen);
  // Only rounding finds none.
  if (chosen == NEVER) { return best.y; }
  return candidates[chosen].y;
}

/** Best first, equal ones by lower id: bitonic, over the next power of two. */
fn sortCandidates(thread: u32, count: u32) {
  var size = 1u;
  while (size < count) { size *= 2u; }
  for (var i = count + thread; i < size; i += ${SAMPLE_THREADS}u) { candidates[i] = vec2u(0u, NEVER); }
  workgroupBarrier();
  for (var length = 2u; length <= size; length *= 2u) {
    for (var gap = length / 2u; gap > 0u; gap /= 2u) {
      for (var i = thread; i < size / 2u; i += ${SAMPLE_THREADS}u) {
        let low = 2u * gap * (i / gap) + i % gap;
        let a = candidates[low];
        let b = candidates[low + gap];
        if (goesBefore(b, a) == ((low & length) == 0u)) {
          candidates[low] = b;
          candidates[low + gap] = a;
        }
      }
      workgroupBarrier();
    }
  }
}`;
};
