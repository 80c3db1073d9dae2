/**
 * Drawing without a list of candidates, for filters that leave more than fit in a workgroup's memory. What is left is all
 * logits above an edge and some that equal it; edges and the drawn logit are found by cutting the range of keys in five and
 * summing the whole row above each cut. A pass takes some 10 µs, a draw up to 40 passes.
 */

import type { SamplingLayout } from '../sampling-buffer.ts';
import { float, SAMPLE_THREADS, word } from './sample-text.ts';

/**
 * WGSL of `fn drawByValue(thread, at, least) -> u32`; uses the row's variables of `sample-choice.ts`. Top-k, top-p and the
 * draw are the same search by another weight, so one loop serves them: a kernel's text is inlined wherever it is called.
 */
export function searchText({ vocabulary }: SamplingLayout): string {
  const each = Math.ceil(vocabulary / SAMPLE_THREADS);
  return /* wgsl */ `
/** Not a temperature: every logit weighs 1. */
const COUNT = -1f;

fn massOf(key: u32, inverse: f32) -> f32 {
  if (inverse == COUNT) { return 1f; }
  return weightOf(key, top, inverse);
}

/** How much the row's logits above a key weigh, and how many equal it. */
fn around(thread: u32, edge: u32, inverse: f32) -> vec2f {
  var sum = vec2f();
  for (var id = thread; id < ${vocabulary}u; id += ${SAMPLE_THREADS}u) {
    let key = keyOf(bitsOf(id));
    if (key > edge) { sum.x += massOf(key, inverse); }
    if (key == edge) { sum.y += 1f; }
  }
  return sumAll(thread, vec4f(sum, 0f, 0f)).xy;
}

/** The least key from the edge on with less than the goal above it, or with no more where "even" is set. */
fn search(thread: u32, edge: u32, inverse: f32, goal: f32, even: bool) -> u32 {
  var low = edge;
  var high = best.x;
  loop {
    let span = high - low;
    if (agreed(thread, span) == 0u) { break; }
    var cuts = vec4u(low) + vec4u(1u, 2u, 3u, 4u) * vec4u(span / 5u);
    if (span < 5u) { cuts = min(vec4u(low) + vec4u(0u, 1u, 2u, 3u), vec4u(high - 1u)); }
    var own = vec4f();
    for (var id = thread; id < ${vocabulary}u; id += ${SAMPLE_THREADS}u) {
      let key = keyOf(bitsOf(id));
      if (key > cuts.x) { own += select(vec4f(), vec4f(massOf(key, inverse)), vec4u(key) > cuts); }
    }
    let sums = sumAll(thread, own);
    for (var i = 0u; i < 4u; i++) {
      if (sums[i] < goal || (even && sums[i] == goal)) {
        high = cuts[i];
        break;
      }
      low = cuts[i] + 1u;
    }
  }
  return low;
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
    let left = around(thread, edge, inverse);
    if (raised) { even = left.y; }
    let mass = left.x + even * massOf(edge, inverse);
    let goal = select(select(random, topP, stage == 1u) * mass, f32(topK), stage == 0u);
    var found = search(thread, edge, inverse, goal, stage == 2u);
    // Nothing is less than nothing: a share of 0 is the best.
    if (stage == 1u && goal <= 0f) { found = best.x; }
    let hit = around(thread, found, inverse);
    let there = select(hit.y, even, found == edge);
    let missing = (goal - hit.x) / max(massOf(found, inverse), 1e-37f);
    nth = clamp(floor(missing), 0f, max(there - 1f, 0f));
    even = clamp(ceil(missing), 1f, max(there, 1f));
    edge = found;
  }

  // The nth of those that equal the drawn one, in the order of ids.
  let first = thread * ${each}u;
  let end = min(first + ${each}u, ${vocabulary}u);
  var own = 0f;
  for (var id = first; id < end; id++) { own += select(0f, 1f, keyOf(bitsOf(id)) == edge); }
  var place = scan(thread, own).x;
  var chosen = NEVER;
  if (edge > NONE && nth >= place && nth < place + own) {
    for (var id = first; id < end; id++) {
      if (keyOf(bitsOf(id)) == edge) {
        if (place == nth) { chosen = id; }
        place += 1f;
      }
    }
  }
  chosen = leastOf(thread, chosen);
  // Only rounding finds none.
  return select(chosen, best.y, chosen == NEVER);
}`;
}
