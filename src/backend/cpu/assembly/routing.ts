// Which experts a row takes, with which weights; and the rows of each expert.

import { sigmoid } from './activations';
import { exp1 } from './lanes';

/**
 * One row: `logits` of `experts` f32 become `used` ids (i32) and weights (f32) in rank order; ties go to the lower index.
 * `bias`: added to the scores for the choice, or 0. `groups` equal groups, of which the `groupsUsed` best stay, ranked by
 * their best member (`twoBest` 0) or by the sum of their two best. `scratch`: 2 f32 an expert and one a group.
 * Returns 0, or 1 when a logit is NaN.
 */
export function route(
  logits: usize, experts: i32, used: i32, sigmoidGate: i32, bias: usize, groups: i32, groupsUsed: i32, twoBest: i32,
  normalise: i32, scale: f32, ids: usize, weights: usize, scratch: usize,
): i32 {
  const scores = scratch;
  const choice = scores + (<usize>experts << 2);
  const groupScores = choice + (<usize>experts << 2);
  let top: f32 = -Infinity;
  for (let e: usize = 0; e < <usize>experts; e++) {
    const l = f32.load(logits + (e << 2));
    if (l != l) return 1;
    top = max<f32>(top, l);
  }
  if (sigmoidGate) {
    for (let e: usize = 0; e < <usize>experts; e++) f32.store(scores + (e << 2), sigmoid(f32.load(logits + (e << 2))));
  } else {
    let sum: f64 = 0;
    for (let e: usize = 0; e < <usize>experts; e++) {
      const p = exp1(f32.load(logits + (e << 2)) - top);
      sum += <f64>p;
      f32.store(scores + (e << 2), p);
    }
    const inverse = <f32>(1 / sum);
    for (let e: usize = 0; e < <usize>experts; e++) f32.store(scores + (e << 2), f32.load(scores + (e << 2)) * inverse);
  }
  for (let e: usize = 0; e < <usize>experts; e++) {
    // Without a bias logits rank: distinct ones may round to one score. Groups of sigmoids are ranked by sums of scores.
    const from = bias || (sigmoidGate && groups > 1) ? scores : logits;
    const added: f32 = bias ? f32.load(bias + (e << 2)) : 0;
    f32.store(choice + (e << 2), f32.load(from + (e << 2)) + added);
  }
  if (groups > 1) keepGroups(choice, experts, groups, groupsUsed, twoBest, groupScores);
  let sum: f32 = 0;
  for (let rank: usize = 0; rank < <usize>used; rank++) {
    const best = takeBest(choice, experts);
    const weight = f32.load(scores + (<usize>best << 2));
    i32.store(ids + (rank << 2), best);
    f32.store(weights + (rank << 2), weight);
    sum += weight;
  }
  const factor: f32 = normalise && sum > 1e-20 ? scale / sum : scale;
  for (let rank: usize = 0; rank < <usize>used; rank++) {
    f32.store(weights + (rank << 2), f32.load(weights + (rank << 2)) * factor);
  }
  return 0;
}

/** The index of the largest of `count`, the lowest of equals, which is then taken out (a NaN that no number beats). */
function takeBest(values: usize, count: i32): i32 {
  let best = -1;
  let most: f32 = 0;
  for (let i = 0; i < count; i++) {
    const value = f32.load(values + (<usize>i << 2));
    if (value == value && (best < 0 || value > most)) {
      best = i;
      most = value;
    }
  }
  if (best < 0) best = 0;
  f32.store(values + (<usize>best << 2), NaN);
  return best;
}

function keepGroups(choice: usize, experts: i32, groups: i32, used: i32, twoBest: i32, groupScores: usize): void {
  const size = experts / groups;
  for (let group = 0; group < groups; group++) {
    let first: f32 = -Infinity;
    let second: f32 = -Infinity;
    for (let i = 0; i < size; i++) {
      const value = f32.load(choice + (<usize>(group * size + i) << 2));
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    f32.store(groupScores + (<usize>group << 2), twoBest && size > 1 ? first + second : first);
  }
  // What takeBest takes out is NaN afterwards: those groups stay.
  for (let i = 0; i < used; i++) takeBest(groupScores, groups);
  for (let group = 0; group < groups; group++) {
    const score = f32.load(groupScores + (<usize>group << 2));
    if (score != score) continue;
    for (let i = 0; i < size; i++) f32.store(choice + (<usize>(group * size + i) << 2), -Infinity);
  }
}

/**
 * Sorts `pairs` row–expert pairs by expert, stably; those with an id beyond the `experts` are left out. pairs: number of each
 * pair (row · used + rank); rows: its row; active: for each expert that has pairs its id, first place and count (3 i32).
 * Returns how many experts that is. `counts`: one i32 an expert.
 */
export function sortPairs(ids: usize, pairs: i32, used: i32, experts: i32, order: usize, rows: usize, active: usize, counts: usize): i32 {
  memory.fill(counts, 0, <usize>experts << 2);
  for (let pair: usize = 0; pair < <usize>pairs; pair++) {
    const id = i32.load(ids + (pair << 2));
    if (id >= experts) continue;
    const at = counts + (<usize>id << 2);
    i32.store(at, i32.load(at) + 1);
  }
  let found = 0;
  let place = 0;
  for (let e = 0; e < experts; e++) {
    const at = counts + (<usize>e << 2);
    const count = i32.load(at);
    i32.store(at, place);
    if (count == 0) continue;
    const entry = active + <usize>found * 12;
    i32.store(entry, e);
    i32.store(entry, place, 4);
    i32.store(entry, count, 8);
    place += count;
    found++;
  }
  for (let pair = 0; pair < pairs; pair++) {
    const id = i32.load(ids + (<usize>pair << 2));
    if (id >= experts) continue;
    const at = counts + (<usize>id << 2);
    const to = <usize>i32.load(at) << 2;
    i32.store(order + to, pair);
    i32.store(rows + to, pair / used);
    i32.store(at, i32.load(at) + 1);
  }
  return found;
}
