/**
 * Drawing without a sorted list of all candidates, for filters that leave more than fit in a workgroup's memory. What is left
 * is all logits above an edge and some that equal it. Edges and the drawn logit are found by sums over the whole row above
 * four cuts at a time, until so few logits lie between two cuts that they can be sorted, or one value is all there is.
 */

import type { SamplingLayout } from '../sampling-buffer.ts';
import { unrolled } from './kernel-text.ts';
import { CANDIDATES, CANDIDATES_EACH, float, SAMPLE_THREADS, word } from './sample-text.ts';

/** Logits that a thread loads before it looks at any: a pass is bound by waiting for them. */
const LOADS = 8;
/** Passes that cut the range of values; later ones cut that of keys, which always comes to an end. */
const VALUE_PASSES = 8;

/**
 * WGSL of `fn drawByValue(thread, at, least) -> u32`; uses the row's variables of `sample-choice.ts`. Top-k, top-p and the
 * draw are the same search by another weight, so one loop serves them: what is called is inlined, and compiled each time.
 */
export function searchText({ vocabulary }: SamplingLayout): string {
  const each = Math.ceil(vocabulary / SAMPLE_THREADS);
  /** Each of the row's keys, as `key0` … */
  const overRow = (body: (i: number) => string) => `
  for (var start = thread; start < ${vocabulary}u; start += ${SAMPLE_THREADS * LOADS}u) {
${unrolled(LOADS, (i) => `    let key${i} = keyAt(start + ${i * SAMPLE_THREADS}u);`)}
${unrolled(LOADS, body)}
  }`;
  return /* wgsl */ `
/** Not a temperature: every logit weighs 1. */
const COUNT = -1f;

fn massOf(key: u32, inverse: f32) -> f32 {
  return select(weightOf(key, top, inverse), 1f, inverse == COUNT);
}

struct Sums { mass: vec4f, count: vec4f }

/** Of the row's logits above each of four keys: how much they weigh, and how many there are. */
fn above(thread: u32, cuts: vec4u, inverse: f32) -> Sums {
  var own: Sums;${overRow(
    (i) => `    if (key${i} > cuts.x) {
      let hits = select(vec4f(), vec4f(1f), vec4u(key${i}) > cuts);
      own.count += hits;
      own.mass += hits * massOf(key${i}, inverse);
    }`,
  )}
  return Sums(sumAll(thread, own.mass), sumAll(thread, own.count));
}

/** Four keys from low on and below high, in order. The first ones lie ever closer to the best. */
fn cutsBetween(low: u32, high: u32, round: u32) -> vec4u {
  if (round > ${VALUE_PASSES}u) {
    let span = high - low;
    if (span < 5u) { return min(vec4u(low) + vec4u(0u, 1u, 2u, 3u), vec4u(high - 1u)); }
    return vec4u(low) + vec4u(1u, 2u, 3u, 4u) * vec4u(span / 5u);
  }
  let shares = vec4f(0.2f, 0.4f, 0.6f, 0.8f);
  var values = max(valueOf(low), -3.4e38f) * (vec4f(1f) - shares) + valueOf(high) * shares;
  if (round == 1u) { values = vec4f(top) - vec4f(64f, 16f, 4f, 1f); }
  var cuts: vec4u;
  for (var i = 0u; i < 4u; i++) { cuts[i] = clamp(keyOf(bitcast<u32>(values[i])), low, high - 1u); }
  return cuts;
}

fn drawByValue(thread: u32, at: u32, least: f32) -> u32 {
  let topK = ${word('topK')};
  let topP = ${float('topP')};
  // What is left: all above the edge, and so many that equal it.
  var edge = NONE;
  var even = 0f;
  var nth = 0f;
  // Top-k, top-p, the draw.
  for (var stage = 0u; stage < 3u; stage++) {
    if ((stage == 0u && topK == 0u) || (stage == 1u && topP >= 1f)) { continue; }
    let inverse = select(select(${float('inverseTemperature')}, 1f, stage == 1u), COUNT, stage == 0u);
    let leastKey = keyOf(bitcast<u32>(least));
    let raised = stage == 2u && leastKey > edge;
    if (raised) { edge = leastKey; }

    // The one that is sought has a key from low to high: above high weighs too little, above low − 1 enough.
    var low = edge;
    var high = best.x;
    var countFromLow = 0f;
    var countAbove = 0f;
    var massAbove = 0f;
    var goal = 0f;
    var equal = 0f;
    var cuts = vec4u(edge - 1u, vec3u(edge));
    for (var round = 1u; ; round++) {
      let sums = above(thread, cuts, inverse);
      if (round == 1u) {
        // What is banned equals the lowest edge, and none of it is left.
        equal = select(sums.count.x - sums.count.y, 0f, edge == NONE);
        if (raised) { even = equal; }
        countFromLow = sums.count.x;
        goal = select(select(random, topP, stage == 1u) * (sums.mass.y + even * massOf(edge, inverse)), min(f32(topK), sums.count.y + equal), stage == 0u);
        // Nothing is less than nothing: a share of 0 is the best.
        if (stage == 1u && goal <= 0f) { low = high; }
      } else {
        for (var i = 0u; i < 4u; i++) {
          if (sums.mass[i] < goal || (stage == 2u && sums.mass[i] == goal)) {
            high = cuts[i];
            countAbove = sums.count[i];
            massAbove = sums.mass[i];
            break;
          }
          low = cuts[i] + 1u;
          countFromLow = sums.count[i];
        }
      }
      if (agreed(thread, select(0u, 1u, low >= high || countFromLow - countAbove <= ${CANDIDATES}f)) != 0u) { break; }
      cuts = cutsBetween(low, high, round);
    }

    if (agreed(thread, select(0u, 1u, low < high)) != 0u) {
      let found = gatherBetween(thread, low, high);
      sortCandidates(thread, found);
      // Of those that equal the edge, some may not be left.
      let some = found - select(0u, u32(equal - min(even, equal)), low == edge);
      let first = thread * ${CANDIDATES_EACH}u;
${unrolled(
  CANDIDATES_EACH,
  (i) => `      var weight${i} = 0f;
      if (first + ${i}u < some) { weight${i} = massOf(candidates[first + ${i}u].x, inverse); }`,
)}
      var sum = massAbove + scan(thread, ${unrolled(CANDIDATES_EACH, (i) => `weight${i}`).replaceAll('\n', ' + ')}).x;
      var place = NEVER;
${unrolled(
  CANDIDATES_EACH,
  (i) => `      sum += weight${i};
      if (place == NEVER && weight${i} > 0f && (sum > goal || (stage < 2u && sum == goal))) { place = first + ${i}u; }`,
)}
      // Only rounding finds none.
      place = min(leastOf(thread, place), max(some, 1u) - 1u);
      let chosen = candidates[place];
      if (stage == 2u) { return select(best.y, chosen.y, chosen.x > NONE); }
      var same = NEVER;
${unrolled(
  CANDIDATES_EACH,
  (i) =>
    `      if (same == NEVER && first + ${i}u < found && candidates[first + ${i}u].x == chosen.x) { same = first + ${i}u; }`,
)}
      even = f32(place - min(leastOf(thread, same), place) + 1u);
      edge = chosen.x;
    } else {
      let there = select(countFromLow - countAbove, even, low == edge);
      let missing = (goal - massAbove) / max(massOf(low, inverse), 1e-37f);
      nth = clamp(floor(missing), 0f, max(there - 1f, 0f));
      even = clamp(ceil(missing), 1f, max(there, 1f));
      edge = low;
    }
  }

  // The nth of those that equal the drawn one, in the order of ids.
  let first = thread * ${each}u;
  var own = 0f;
  for (var id = first; id < first + ${each}u; id++) { own += select(0f, 1f, keyAt(id) == edge); }
  var place = scan(thread, own).x;
  var chosen = NEVER;
  if (edge > NONE && nth >= place && nth < place + own) {
    for (var id = first; id < first + ${each}u; id++) {
      if (keyAt(id) == edge) {
        if (place == nth) { chosen = id; }
        place += 1f;
      }
    }
  }
  chosen = leastOf(thread, chosen);
  return select(chosen, best.y, chosen == NEVER);
}

/** Makes candidates of the logits whose keys are from low to high; there are not too many. */
fn gatherBetween(thread: u32, low: u32, high: u32) -> u32 {
  workgroupBarrier();
  if (thread == 0u) { atomicStore(&gathered, 0u); }
  workgroupBarrier();${overRow(
    (i) => `    if (key${i} > NONE && key${i} >= low && key${i} <= high) {
      let place = atomicAdd(&gathered, 1u);
      if (place < ${CANDIDATES}u) { candidates[place] = vec2u(key${i}, start + ${i * SAMPLE_THREADS}u); }
    }`,
  )}
  workgroupBarrier();
  return min(agreed(thread, atomicLoad(&gathered)), ${CANDIDATES}u);
}`;
}
