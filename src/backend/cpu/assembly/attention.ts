// Keys and values in pages, and softmax attention over them, page after page with a running maximum (online softmax, arXiv
// 1805.02867). What a query sees depends on its own limit alone, so its result does not depend on its neighbours.

import { exp4, loadF16, sumLanes, toF16 } from './lanes';

/** Positions a page holds; `backend.ts` has the same. */
const PAGE: i32 = 64;

/** `count` f32 to the cache's type: 0 f32, 1 f16. `count` is a multiple of 4. */
export function storeCache(input: usize, output: usize, count: i32, half: i32): void {
  if (!half) {
    memory.copy(output, input, <usize>count << 2);
    return;
  }
  for (let i: usize = 0; i < <usize>count; i += 4) {
    v128.store64_lane(output + (i << 1), toF16(v128.load(input + (i << 2))), 0);
  }
}

function expand(input: usize, output: usize, count: i32): void {
  for (let i: usize = 0; i < <usize>count; i += 4) {
    v128.store(output + (i << 2), loadF16(input + (i << 1)));
  }
}

// @ts-ignore: decorator
@inline
function maxLanes(value: v128): f32 {
  return max<f32>(
    max<f32>(f32x4.extract_lane(value, 0), f32x4.extract_lane(value, 1)),
    max<f32>(f32x4.extract_lane(value, 2), f32x4.extract_lane(value, 3)),
  );
}

/**
 * `queries` vectors of `headDim` f32 against one key/value head; scores are multiplied with `scale`. `limits[i]` positions are visible to query
 * i. `table[p]` is the number of page p; a page takes `pageBytes` from `keys` and from `values` on, where each base already
 * points at the head's own part: PAGE × headDim keys, PAGE × valueDim values. `headDim` and `valueDim` are multiples of 4.
 * out: `queries` vectors of `valueDim`. `scratch`: a page of keys and values as f32, PAGE scores, 2 numbers a query.
 */
export function attend(
  query: usize, queries: i32, scale: f32, limits: usize, table: usize, keys: usize, keyPageBytes: usize, values: usize,
  valuePageBytes: usize, headDim: i32, valueDim: i32, half: i32, out: usize, scratch: usize,
): void {
  const keyPage = scratch;
  const valuePage = keyPage + (<usize>(PAGE * headDim) << 2);
  const scores = valuePage + (<usize>(PAGE * valueDim) << 2);
  const state = scores + (<usize>PAGE << 2);
  let furthest = 0;
  for (let i = 0; i < queries; i++) {
    furthest = max(furthest, i32.load(limits + (<usize>i << 2)));
    f32.store(state + (<usize>i << 3), -Infinity);
    f32.store(state + (<usize>i << 3), 0, 4);
  }
  memory.fill(out, 0, <usize>(queries * valueDim) << 2);
  for (let start = 0; start < furthest; start += PAGE) {
    const page = <usize>load<u32>(table + (<usize>(start / PAGE) << 2));
    let key = keys + page * keyPageBytes;
    let value = values + page * valuePageBytes;
    const filled = min(PAGE, furthest - start);
    if (half) {
      expand(key, keyPage, ((filled + 3) & ~3) * headDim);
      expand(value, valuePage, filled * valueDim);
      key = keyPage;
      value = valuePage;
    }
    for (let i = 0; i < queries; i++) {
      const visible = min(PAGE, i32.load(limits + (<usize>i << 2)) - start);
      if (visible <= 0) continue;
      const q = query + (<usize>(i * headDim) << 2);
      const to = out + (<usize>(i * valueDim) << 2);
      const own = state + (<usize>i << 3);
      score(q, key, scores, visible, headDim, scale);
      accumulatePage(scores, visible, value, valueDim, to, own);
    }
  }
  for (let i = 0; i < queries; i++) {
    const inverse = f32x4.splat(1 / f32.load(state + (<usize>i << 3), 4));
    const to = out + (<usize>(i * valueDim) << 2);
    for (let d: usize = 0; d < <usize>valueDim << 2; d += 16) {
      v128.store(to + d, f32x4.mul(v128.load(to + d), inverse));
    }
  }
}

/** scale · q·k of `visible` keys, rounded up to four; what lies beyond is -∞. */
// @ts-ignore: decorator
@inline
function score(q: usize, key: usize, scores: usize, visible: i32, headDim: i32, scale: f32): void {
  const stride = <usize>headDim << 2;
  for (let j = 0; j < visible; j += 4) {
    const k0 = key + <usize>j * stride;
    const k1 = k0 + stride;
    const k2 = k1 + stride;
    const k3 = k2 + stride;
    let a = f32x4.splat(0);
    let b = f32x4.splat(0);
    let c = f32x4.splat(0);
    let d = f32x4.splat(0);
    for (let i: usize = 0; i < stride; i += 16) {
      const x = v128.load(q + i);
      a = f32x4.add(a, f32x4.mul(x, v128.load(k0 + i)));
      b = f32x4.add(b, f32x4.mul(x, v128.load(k1 + i)));
      c = f32x4.add(c, f32x4.mul(x, v128.load(k2 + i)));
      d = f32x4.add(d, f32x4.mul(x, v128.load(k3 + i)));
    }
    const ab = f32x4.add(i32x4.shuffle(a, b, 0, 1, 4, 5), i32x4.shuffle(a, b, 2, 3, 6, 7));
    const cd = f32x4.add(i32x4.shuffle(c, d, 0, 1, 4, 5), i32x4.shuffle(c, d, 2, 3, 6, 7));
    let sums = f32x4.add(i32x4.shuffle(ab, cd, 0, 2, 4, 6), i32x4.shuffle(ab, cd, 1, 3, 5, 7));
    const beyond = i32x4.ge_s(i32x4.add(i32x4.splat(j), i32x4(0, 1, 2, 3)), i32x4.splat(visible));
    sums = v128.bitselect(f32x4.splat(-Infinity), f32x4.mul(sums, f32x4.splat(scale)), beyond);
    v128.store(scores + (<usize>j << 2), sums);
  }
}

/** Folds a page's scores and values into a query's running output; `own` holds its maximum and its sum. */
// @ts-ignore: decorator
@inline
function accumulatePage(scores: usize, visible: i32, value: usize, valueDim: i32, to: usize, own: usize): void {
  const before = f32.load(own);
  let top = f32x4.splat(before);
  for (let j = 0; j < visible; j += 4) top = f32x4.max(top, v128.load(scores + (<usize>j << 2)));
  const peak = maxLanes(top);
  const peaks = f32x4.splat(peak);
  let sum = f32x4.splat(0);
  for (let j = 0; j < visible; j += 4) {
    const at = scores + (<usize>j << 2);
    const p = exp4(f32x4.sub(v128.load(at), peaks));
    sum = f32x4.add(sum, p);
    v128.store(at, p);
  }
  const decay = f32x4.extract_lane(exp4(f32x4.splat(before - peak)), 0);
  f32.store(own, peak);
  f32.store(own, f32.load(own, 4) * decay + sumLanes(sum), 4);
  const decays = f32x4.splat(decay);
  const stride = <usize>valueDim << 2;
  let d: usize = 0;
  for (; d + 64 <= stride; d += 64) {
    let a = f32x4.mul(v128.load(to + d), decays);
    let b = f32x4.mul(v128.load(to + d, 16), decays);
    let c = f32x4.mul(v128.load(to + d, 32), decays);
    let e = f32x4.mul(v128.load(to + d, 48), decays);
    let v = value + d;
    for (let j = 0; j < visible; j++) {
      const p = v128.load32_splat(scores + (<usize>j << 2));
      a = f32x4.add(a, f32x4.mul(p, v128.load(v)));
      b = f32x4.add(b, f32x4.mul(p, v128.load(v, 16)));
      c = f32x4.add(c, f32x4.mul(p, v128.load(v, 32)));
      e = f32x4.add(e, f32x4.mul(p, v128.load(v, 48)));
      v += stride;
    }
    v128.store(to + d, a);
    v128.store(to + d, b, 16);
    v128.store(to + d, c, 32);
    v128.store(to + d, e, 48);
  }
  for (; d < stride; d += 16) {
    let a = f32x4.mul(v128.load(to + d), decays);
    let v = value + d;
    for (let j = 0; j < visible; j++) {
      a = f32x4.add(a, f32x4.mul(v128.load32_splat(scores + (<usize>j << 2)), v128.load(v)));
      v += stride;
    }
    v128.store(to + d, a);
  }
}
