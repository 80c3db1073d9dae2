// Keys and values in pages, and softmax attention over them, page after page with a running maximum (online softmax, arXiv
// 1805.02867). What a query sees depends on its own limit alone, so its result does not depend on its neighbours.

import { exp4, F16_BITS, F16_SCALE, sumLanes, toF16 } from './lanes';

/** Positions a page holds; `backend.ts` has the same. */
const PAGE: i32 = 64;

/**
 * `count` f32 to the cache's type: 0 f32, 1 f16; `count` is a multiple of 4. Returns 1 when a value is NaN or does not fit
 * the type: it must not become another number in silence.
 */
export function storeCache(input: usize, output: usize, count: i32, half: i32): i32 {
  const most = f32x4.splat(half ? 65519 : f32.MAX_VALUE);
  let fits = i32x4.splat(-1);
  for (let i: usize = 0; i < <usize>count; i += 4) {
    const value = v128.load(input + (i << 2));
    fits = v128.and(fits, f32x4.le(f32x4.abs(value), most));
    if (half) v128.store64_lane(output + (i << 1), toF16(value), 0);
    else v128.store(output + (i << 2), value);
  }
  return i32x4.all_true(fits) ? 0 : 1;
}

/** f16 that {@link storeCache} wrote, and so finite, to f32. */
function expand(input: usize, output: usize, count: i32): void {
  const bits = i32x4.splat(F16_BITS);
  const scale = f32x4.splat(F16_SCALE);
  for (let i: usize = 0; i < <usize>count; i += 4) {
    const top = i32x4.shl(v128.load_ext<u16>(input + (i << 1)), 16);
    v128.store(output + (i << 2), f32x4.mul(v128.and(i32x4.shr_s(top, 3), bits), scale));
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
 * `queries` vectors of `headDim` f32 against one key/value head; scores are multiplied with `scale`. Query i sees the
 * positions from `firsts[i]` on, up to but not `limits[i]`. `sinks[i]`, where `sinks` is not 0, is a score of its own that
 * takes part in the softmax and brings no value. `table[p]` is the number of page p; a page takes `pageBytes` from `keys`
 * and from `values` on, where each base already points at the head's own part: PAGE × headDim keys, PAGE × valueDim values.
 * Where `values` is `keys`, a value is the first `valueDim` elements of its key. `headDim` and `valueDim` are multiples of 4.
 * out: `queries` vectors of `valueDim`. `scratch`: a page of keys and values as f32, PAGE scores twice, 2 numbers a query.
 */
export function attend(
  query: usize, queries: i32, scale: f32, firsts: usize, limits: usize, sinks: usize, table: usize, keys: usize, keyPageBytes: usize, values: usize,
  valuePageBytes: usize, headDim: i32, valueDim: i32, half: i32, out: usize, scratch: usize,
): void {
  const keyPage = scratch;
  const valuePage = keyPage + (<usize>(PAGE * headDim) << 2);
  const scores = valuePage + (<usize>(PAGE * valueDim) << 2);
  const state = scores + (<usize>PAGE << 3);
  const joint = values == keys;
  const valueStride = <usize>(joint ? headDim : valueDim) << 2;
  let nearest = i32.MAX_VALUE;
  let furthest = 0;
  for (let i = 0; i < queries; i++) {
    const at = <usize>i << 2;
    nearest = min(nearest, load<i32>(firsts + at));
    furthest = max(furthest, load<i32>(limits + at));
    // The largest score so far, and the sum of weights against it: a sink's own is e⁰.
    f32.store(state + (at << 1), sinks ? f32.load(sinks + at) : -Infinity);
    f32.store(state + (at << 1), sinks ? 1 : 0, 4);
  }
  memory.fill(out, 0, <usize>(queries * valueDim) << 2);
  for (let start = nearest / PAGE * PAGE; start < furthest; start += PAGE) {
    const page = <usize>load<u32>(table + (<usize>(start / PAGE) << 2));
    let key = keys + page * keyPageBytes;
    let value = values + page * valuePageBytes;
    const filled = min(PAGE, furthest - start);
    if (half) {
      expand(key, keyPage, ((filled + 3) & ~3) * headDim);
      if (!joint) expand(value, valuePage, filled * valueDim);
      key = keyPage;
      value = joint ? keyPage : valuePage;
    }
    for (let i = 0; i < queries; i++) {
      const end = visibleEnd(limits, i, start);
      const first = max(0, load<i32>(firsts + (<usize>i << 2)) - start);
      if (end <= first) continue;
      const q = query + (<usize>(i * headDim) << 2);
      const to = out + (<usize>(i * valueDim) << 2);
      const own = state + (<usize>i << 3);
      // Keys go by fours: those of the first four that are not seen yet get a score of -∞.
      const hidden = first & 3;
      const fours = first - hidden;
      const visible = end - fours;
      const seen = <usize>hidden << 2;
      const from = key + (<usize>(fours * headDim) << 2);
      const mixed = value + <usize>first * valueStride;
      // Two queries that see as much share the loads of keys and values; each does what it would do alone.
      if (
        i + 1 < queries && visibleEnd(limits, i + 1, start) == end &&
        max(0, load<i32>(firsts + (<usize>i << 2), 4) - start) == first
      ) {
        const second = scores + (<usize>PAGE << 2);
        scorePair(q, from, scores, second, visible, headDim, scale);
        hide(scores, hidden);
        hide(second, hidden);
        const decay = weigh(scores, visible, own);
        const decaySecond = weigh(second, visible, own + 8);
        gatherPair(scores + seen, second + seen, end - first, mixed, valueStride, valueDim, to, decay, decaySecond);
        i++;
      } else {
        score(q, from, scores, visible, headDim, scale);
        hide(scores, hidden);
        gather(scores + seen, end - first, mixed, valueStride, valueDim, to, weigh(scores, visible, own));
      }
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

/** Where what query i sees of the page at `start` ends. */
// @ts-ignore: decorator
@inline
function visibleEnd(limits: usize, i: i32, start: i32): i32 {
  return min(PAGE, load<i32>(limits + (<usize>i << 2)) - start);
}

/** Makes the first `count` scores those of positions that are not seen. */
// @ts-ignore: decorator
@inline
function hide(scores: usize, count: i32): void {
  for (let j = 0; j < count; j++) f32.store(scores + (<usize>j << 2), -Infinity);
}

/** Four dot products at `at`, from four vectors of partial sums; beyond `visible` -∞. */
// @ts-ignore: decorator
@inline
function storeScores(a: v128, b: v128, c: v128, d: v128, scale: f32, j: i32, visible: i32, scores: usize): void {
  const ab = f32x4.add(i32x4.shuffle(a, b, 0, 1, 4, 5), i32x4.shuffle(a, b, 2, 3, 6, 7));
  const cd = f32x4.add(i32x4.shuffle(c, d, 0, 1, 4, 5), i32x4.shuffle(c, d, 2, 3, 6, 7));
  let sums = f32x4.add(i32x4.shuffle(ab, cd, 0, 2, 4, 6), i32x4.shuffle(ab, cd, 1, 3, 5, 7));
  sums = f32x4.mul(sums, f32x4.splat(scale));
  if (j + 4 > visible) {
    const beyond = i32x4.ge_s(i32x4.add(i32x4.splat(j), i32x4(0, 1, 2, 3)), i32x4.splat(visible));
    sums = v128.bitselect(f32x4.splat(-Infinity), sums, beyond);
  }
  v128.store(scores + (<usize>j << 2), sums);
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
    storeScores(a, b, c, d, scale, j, visible, scores);
  }
}

/** {@link score} for two queries side by side. */
// @ts-ignore: decorator
@inline
function scorePair(q: usize, key: usize, scores: usize, second: usize, visible: i32, headDim: i32, scale: f32): void {
  const stride = <usize>headDim << 2;
  const p = q + stride;
  for (let j = 0; j < visible; j += 4) {
    const k0 = key + <usize>j * stride;
    const k1 = k0 + stride;
    const k2 = k1 + stride;
    const k3 = k2 + stride;
    let a = f32x4.splat(0);
    let b = f32x4.splat(0);
    let c = f32x4.splat(0);
    let d = f32x4.splat(0);
    let e = f32x4.splat(0);
    let f = f32x4.splat(0);
    let g = f32x4.splat(0);
    let h = f32x4.splat(0);
    for (let i: usize = 0; i < stride; i += 16) {
      const x = v128.load(q + i);
      const y = v128.load(p + i);
      let k = v128.load(k0 + i);
      a = f32x4.add(a, f32x4.mul(x, k));
      e = f32x4.add(e, f32x4.mul(y, k));
      k = v128.load(k1 + i);
      b = f32x4.add(b, f32x4.mul(x, k));
      f = f32x4.add(f, f32x4.mul(y, k));
      k = v128.load(k2 + i);
      c = f32x4.add(c, f32x4.mul(x, k));
      g = f32x4.add(g, f32x4.mul(y, k));
      k = v128.load(k3 + i);
      d = f32x4.add(d, f32x4.mul(x, k));
      h = f32x4.add(h, f32x4.mul(y, k));
    }
    storeScores(a, b, c, d, scale, j, visible, scores);
    storeScores(e, f, g, h, scale, j, visible, second);
  }
}

/** Turns a page's scores into weights against the running maximum in `own`; returns what earlier output is scaled by. */
function weigh(scores: usize, visible: i32, own: usize): f32 {
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
  return decay;
}

/** to = decay · to + Σ weight · value; values are `stride` bytes apart. */
// @ts-ignore: decorator
@inline
function gather(
  scores: usize, visible: i32, value: usize, stride: usize, valueDim: i32, to: usize, decay: f32,
): void {
  const decays = f32x4.splat(decay);
  const bytes = <usize>valueDim << 2;
  let d: usize = 0;
  for (; d + 64 <= bytes; d += 64) {
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
  if (d < bytes) gatherTail(scores, visible, value, stride, to, d, bytes, decay);
}

/** {@link gather} for two queries whose outputs follow each other. */
// @ts-ignore: decorator
@inline
function gatherPair(
  scores: usize, second: usize, visible: i32, value: usize, stride: usize, valueDim: i32, to: usize, decay: f32,
  decaySecond: f32,
): void {
  const bytes = <usize>valueDim << 2;
  const next = to + bytes;
  let d: usize = 0;
  for (; d + 64 <= bytes; d += 64) {
    const first = f32x4.splat(decay);
    const other = f32x4.splat(decaySecond);
    let a = f32x4.mul(v128.load(to + d), first);
    let b = f32x4.mul(v128.load(to + d, 16), first);
    let c = f32x4.mul(v128.load(to + d, 32), first);
    let e = f32x4.mul(v128.load(to + d, 48), first);
    let f = f32x4.mul(v128.load(next + d), other);
    let g = f32x4.mul(v128.load(next + d, 16), other);
    let h = f32x4.mul(v128.load(next + d, 32), other);
    let k = f32x4.mul(v128.load(next + d, 48), other);
    let v = value + d;
    for (let j: usize = 0; j < <usize>visible << 2; j += 4) {
      const p = v128.load32_splat(scores + j);
      const q = v128.load32_splat(second + j);
      let x = v128.load(v);
      a = f32x4.add(a, f32x4.mul(p, x));
      f = f32x4.add(f, f32x4.mul(q, x));
      x = v128.load(v, 16);
      b = f32x4.add(b, f32x4.mul(p, x));
      g = f32x4.add(g, f32x4.mul(q, x));
      x = v128.load(v, 32);
      c = f32x4.add(c, f32x4.mul(p, x));
      h = f32x4.add(h, f32x4.mul(q, x));
      x = v128.load(v, 48);
      e = f32x4.add(e, f32x4.mul(p, x));
      k = f32x4.add(k, f32x4.mul(q, x));
      v += stride;
    }
    v128.store(to + d, a);
    v128.store(to + d, b, 16);
    v128.store(to + d, c, 32);
    v128.store(to + d, e, 48);
    v128.store(next + d, f);
    v128.store(next + d, g, 16);
    v128.store(next + d, h, 32);
    v128.store(next + d, k, 48);
  }
  if (d == bytes) return;
  gatherTail(scores, visible, value, stride, to, d, bytes, decay);
  gatherTail(second, visible, value, stride, next, d, bytes, decaySecond);
}

/** What {@link gather} does from byte `from` of the outputs on, up to byte `end`. */
function gatherTail(
  scores: usize, visible: i32, value: usize, stride: usize, to: usize, from: usize, end: usize, decay: f32,
): void {
  for (let d = from; d < end; d += 16) {
    let a = f32x4.mul(v128.load(to + d), f32x4.splat(decay));
    let v = value + d;
    for (let j = 0; j < visible; j++) {
      a = f32x4.add(a, f32x4.mul(v128.load32_splat(scores + (<usize>j << 2)), v128.load(v)));
      v += stride;
    }
    v128.store(to + d, a);
  }
}
