/**
 * What the kernels of sampling share. Logits are compared as keys, unsigned numbers in the order of the f32 they stand
 * for, which no device flushes or reorders; sums over a workgroup are in one order, whatever the row holds.
 */

import { PHILOX } from '../../random.ts';
import { setting } from '../sampling-buffer.ts';
import type { Bound } from './snippets.ts';

/** Of each kernel. */
export const SAMPLE_THREADS = 256;
/** Ids that a workgroup takes at most, where several share a row. */
export const PART = 2048;
/** Groups of a part whose best logits are kept: id i belongs to group i mod GROUPS, so that neighbours are apart. */
export const GROUPS = 32;

/** Candidates that are sorted at the most. */
export const CANDIDATES = 1024;
export const CANDIDATES_EACH = CANDIDATES / SAMPLE_THREADS;

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

/** Words of a part's record: [GROUPS] best keys, then these. */
export const part = {
  bestKey: GROUPS,
  bestId: GROUPS + 1,
  /** 0xffffffff less the first id whose logit is NaN or +Infinity; 0: none is. */
  fault: GROUPS + 2,
  /** Whether a logit was above −Infinity before penalties and biases. */
  some: GROUPS + 3,
  /** Σ exp(logit − the part's best), and the same of logits by temperature. */
  mass: GROUPS + 4,
  temperedMass: GROUPS + 5,
} as const;
export const PART_WORDS = GROUPS + 8;

/** WGSL that reads a word of the row's settings, which begin at `at`. */
export const word = (name: keyof typeof setting) => `settings[at + ${setting[name]}u]`;
export const float = (name: keyof typeof setting) => `bitcast<f32>(${word(name)})`;

export const keyText = /* wgsl */ `
/** −Infinity, as bits and as a key: nothing that is not above it can be drawn. */
const NONE_BITS = 0xff800000u;
const NONE = 0x007fffffu;
/** No index, and no id. */
const NEVER = 0xffffffffu;

fn isFault(bits: u32) -> bool { return (bits & 0x7f800000u) == 0x7f800000u && bits != NONE_BITS; }
/** Both zeros have one key. */
fn keyOf(bits: u32) -> u32 {
  return select(select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u), 0x80000000u, (bits << 1u) == 0u);
}
fn valueOf(key: u32) -> f32 { return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u)); }
/** exp((logit − top) · inverse); 0 for what cannot be drawn. */
fn weightOf(key: u32, top: f32, inverse: f32) -> f32 {
  return select(exp((valueOf(key) - top) * inverse), 0f, key <= NONE);
}`;

/** `fn sumAll(thread, value) -> vec4f`: the sum of every thread's value, for all of them; as often as needed. */
export const sumText = /* wgsl */ `
// As bits, so that whatever is in them stays as it is.
var<workgroup> room: array<vec4u, ${SAMPLE_THREADS}>;

fn sumAll(thread: u32, value: vec4f) -> vec4f {
  workgroupBarrier();
  room[thread] = bitcast<vec4u>(value);
  workgroupBarrier();
  if (thread < 16u) {
    var own = value;
    for (var i = 1u; i < ${SAMPLE_THREADS / 16}u; i++) { own += bitcast<vec4f>(room[thread + 16u * i]); }
    room[thread] = bitcast<vec4u>(own);
  }
  workgroupBarrier();
  var all = bitcast<vec4f>(room[0]);
  for (var i = 1u; i < 16u; i++) { all += bitcast<vec4f>(room[i]); }
  return all;
}`;

/** What the ways of drawing have in common; uses `room` of {@link sumText}. */
export const togetherText = /* wgsl */ `
var<workgroup> told: u32;
var<workgroup> lowest: atomic<u32>;

/** Thread 0's value, for all and known to be the same for all. */
fn agreed(thread: u32, value: u32) -> u32 {
  workgroupBarrier();
  if (thread == 0u) { told = value; }
  return workgroupUniformLoad(&told);
}

/** The value of the one thread that is the owner, for all. */
fn toldBy(owner: bool, value: f32) -> f32 {
  workgroupBarrier();
  if (owner) { told = bitcast<u32>(value); }
  workgroupBarrier();
  return bitcast<f32>(told);
}

/** The least of every thread's values, for all. */
fn leastOf(thread: u32, value: u32) -> u32 {
  workgroupBarrier();
  if (thread == 0u) { atomicStore(&lowest, NEVER); }
  workgroupBarrier();
  if (value != NEVER) { atomicMin(&lowest, value); }
  workgroupBarrier();
  return atomicLoad(&lowest);
}

/** The sum of the values of the threads before this one, and of all; never less for a later thread. */
fn scan(thread: u32, value: f32) -> vec2f {
  workgroupBarrier();
  room[thread].x = bitcast<u32>(value);
  workgroupBarrier();
  if (thread < 16u) {
    var sum = 0f;
    for (var i = 0u; i < 16u; i++) {
      sum += bitcast<f32>(room[thread * 16u + i].x);
      room[thread * 16u + i].y = bitcast<u32>(sum);
    }
  }
  workgroupBarrier();
  var before = 0f;
  var all = 0f;
  for (var i = 0u; i < 16u; i++) {
    if (i == thread / 16u) { before = all; }
    all += bitcast<f32>(room[i * 16u + 15u].y);
  }
  if (thread % 16u != 0u) { before += bitcast<f32>(room[thread - 1u].y); }
  return vec2f(before, all);
}`;

/** `fn uniform(index, key) -> f32`: the number that the host's `uniform` of `random.ts` gives. */
export const randomText = /* wgsl */ `
fn multiplyHigh(a: u32, b: u32) -> u32 {
  let low = vec2u(a, b) & vec2u(0xffffu);
  let high = vec2u(a, b) >> vec2u(16u);
  let middle = high.x * low.y + ((low.x * low.y) >> 16u);
  let cross = low.x * high.y + (middle & 0xffffu);
  return high.x * high.y + (middle >> 16u) + (cross >> 16u);
}
fn uniform(index: u32, seed: vec2u) -> f32 {
  var c = vec4u(index, 0u, 0u, 0u);
  var key = seed;
  for (var round = 0u; round < ${PHILOX.rounds}u; round++) {
    c = vec4u(
      multiplyHigh(${PHILOX.multipliers[1]}u, c.z) ^ c.y ^ key.x,
      ${PHILOX.multipliers[1]}u * c.z,
      multiplyHigh(${PHILOX.multipliers[0]}u, c.x) ^ c.w ^ key.y,
      ${PHILOX.multipliers[0]}u * c.x,
    );
    key += vec2u(${PHILOX.keySteps[0]}u, ${PHILOX.keySteps[1]}u);
  }
  return f32(c.x >> 8u) * 0x1p-24f;
}`;
