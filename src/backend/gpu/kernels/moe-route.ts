/**
 * Which experts a row takes and with what weights, by a workgroup. An expert's rank is how many others go before it, so that
 * the choice takes no rounds and ties go to the lower index; some neighbouring threads count for an expert where they may. Prompts make the choice in a dispatch of its own; for step rows
 * every workgroup that needs a row's experts makes it anew, since a dispatch takes longer (but for very many experts).
 */

import type { Mode } from '../../kernel.ts';
import { KernelText } from './kernel-text.ts';
import { ENABLE_EXCHANGE, knowsSubgroups } from './lane-exchange.ts';
import { buffer, type MoeLayer, type RoutedLayer, sigmoidCode } from './moe-layer.ts';
import { blockMax, blockSum, f32Literal, LEAST } from './snippets.ts';

/** A NaN that no compiler can fold away: it is only ever written as bits. */
const NAN_BITS = '0x7fc00000u';

/** Reads that a thread's part of the count is written out for, at the most. */
const MOST_UNROLLED = 32;

/**
 * Whether a step's choice is made by who needs the experts: where it fits into workgroup memory beside their products, and
 * nobody waits for it but they.
 */
export function choosesAlong({ operation }: Pick<MoeLayer, 'operation'>): boolean {
  const { experts, router } = operation.moe;
  // Where weights multiply inputs, all wait for the weights.
  return experts <= 256 && operation.split === undefined && !router.weighsInput;
}

/** WGSL of the choice for the row `t` by the threads `tid`; a module has it once. */
export interface RouteCode {
  /** Binds the router's logits as `logits`, and the selection bias and the scales of experts and outputs where there are any. */
  bind(text: KernelText): void;
  /** Declares workgroup memory, and `pickedExpert(rank)`; after `sigmoidCode`. */
  readonly functions: string;
  /** Statements that pick; `pickedExpert` may be called after them. They hold barriers. */
  readonly pick: string;
  /** Statements after those that write the row's ids, weights and shared factor to `route`. They hold barriers. */
  readonly write: string;
  /** Of the module, before all else. */
  readonly enable: string;
}

/** @param threads a power of two */
export function routeCode(layer: RoutedLayer, threads: number): RouteCode {
  const { operation, builder, logits, logitsWidth, routeWidth } = layer;
  const { moe, prefix } = operation;
  const { experts, used, router } = moe;
  const { gating, groups, selectionBias, normalise, scale, expertScale } = router;
  const softmax = gating === 'softmax';
  const each = (body: string) => `  for (var e = tid; e < ${experts}u; e += ${threads}u) {\n${body}\n  }`;
  /** Threads that count for an expert: neighbours, which a subgroup has together. */
  const counters = knowsSubgroups(builder)
    ? Math.min(32, 2 ** Math.floor(Math.log2(Math.max(1, threads / experts))))
    : 1;
  const fours = Math.ceil(experts / 4);
  /** Keys of four experts, from their ranks; 0 where there is none, or where its group is out. */
  const makeKeys = (rank: (e: string) => string) => {
    const parts = [0, 1, 2, 3].map((k) => `(4u * four + ${k}u)`);
    const place = (e: string) => (experts % 4 === 0 ? e : `min(${e}, ${experts - 1}u)`);
    const taken = (e: string) => {
      const there = experts % 4 === 0 ? [] : [`${e} < ${experts}u`];
      return [...there, ...(groups === undefined ? [] : [`kept[${place(e)} / ${experts / groups.count}u] != 0u`])];
    };
    const some = experts % 4 !== 0 || groups !== undefined;
    const made = `keysOf(vec4f(${parts.map((e) => rank(place(e))).join(', ')}))`;
    const masked = `select(vec4u(), ${made}, vec4<bool>(${parts.map((e) => taken(e).join(' && ')).join(', ')}))`;
    return `  for (var four = tid; four < ${fours}u; four += ${threads}u) { keys[four] = ${some ? masked : made}; }`;
  };
  // Into scores; logits are in ranks.
  const softmaxed = `  var ownTop = ${LEAST};
${each('    ownTop = max(ownTop, ranks[e]);')}
  let top = blockMax(tid, ownTop);
  var ownSum = 0.0;
${each('    let score = exp(ranks[e] - top);\n    scores[e] = score;\n    ownSum += score;')}
  let sum = blockSum(tid, ownSum);`;
  /** Whether what is compared is made of the scores, and not of the logits themselves. */
  const byScore = selectionBias || (!softmax && groups !== undefined);
  /** Whether what is compared are the logits, so that keys need no barrier of their own. */
  const early = !byScore && groups === undefined;
  /** Statements that add to `before` those of the thread's fours that go before expert `e`. */
  const scan = (e: string, first: string) => {
    const rounds = Math.ceil(fours / counters);
    const greater = (four: string, at: string) => `${four} > vec4u(select(own, own - 1u, ${at} < ${e} / 4u))`;
    if (rounds > MOST_UNROLLED) {
      return `    for (var four = ${first}; four < ${fours}u; four += ${counters}u) {
      before += select(vec4u(), vec4u(1u), ${greater('keys[four]', 'four')});
    }`;
    }
    // Eight reads at a time wait together.
    const at = (k: number) => `(${first} + ${k * counters}u)`;
    const lines = Array.from({ length: rounds }, (_, k) => {
      const beyond = (k + 1) * counters > fours;
      const read = `    let four${k} = keys[${beyond ? `min(${at(k)}, ${fours - 1}u)` : at(k)}];`;
      const counts = beyond
        ? `(${greater(`four${k}`, at(k))}) & vec4<bool>(${at(k)} < ${fours}u)`
        : greater(`four${k}`, at(k));
      return { read, count: `    before += select(vec4u(), vec4u(1u), ${counts});` };
    });
    return Array.from({ length: Math.ceil(rounds / 8) }, (_, i) => lines.slice(8 * i, 8 * i + 8))
      .flatMap((some) => [...some.map(({ read }) => read), ...some.map(({ count: own }) => own)])
      .join('\n');
  };
  /** Statements that count for expert `e` how many go before it, those of the thread's fours, `first` and on. */
  const counted = (e: string, first: string) => `    let ownFour = keys[${e} / 4u];
    let own = ownFour[${e} % 4u];
    // Of those that are equal the ones before it go first: they are greater than what is one less.
    let equals = (ownFour == vec4u(own)) & (vec4u(0u, 1u, 2u, 3u) < vec4u(${e} % 4u));
    var before = select(vec4u(), vec4u(1u), equals & vec4<bool>(${first} == 0u));
${scan(e, first)}
    var place = (before.x + before.y) + (before.z + before.w);`;
  const pickIf = (more: string) => `    if (place < ${used}u && own != 0u${more}) { picked[place] = e; }`;
  const count =
    counters === 1
      ? each(`${counted('e', '0u')}\n${pickIf('')}`)
      : `  {
    let e = min(tid / ${counters}u, ${experts - 1}u);
${counted('e', `(tid % ${counters}u)`)}
${Array.from({ length: Math.log2(counters) }, (_, k) => `    place += subgroupShuffleXor(place, ${1 << k}u);`).join('\n')}
${pickIf(` && tid < ${experts * counters}u`)}
  }`;
  return {
    enable: counters > 1 ? ENABLE_EXCHANGE : '',
    bind(text) {
      text.bind(buffer(logits, 'read'), 'logits', 'f32');
      if (selectionBias) text.vector(`${prefix}.selectionBias`, 'bias');
      if (expertScale) text.vector(`${prefix}.expertScale`, 'expertScale');
      if (moe.scaled === true) text.vector(`${prefix}.outputScale`, 'outputScale');
    },
    functions: /* wgsl */ `
${softmax ? `${blockMax(threads, LEAST)}\n${blockSum(threads)}` : ''}
// What the choice compares, and the same as numbers that are ordered alike, 0 for no expert; and what weights are made of.
var<workgroup> ranks: array<f32, ${experts}>;
var<workgroup> keys: array<vec4u, ${fours}>;
var<workgroup> scores: array<f32, ${experts}>;
var<workgroup> picked: array<u32, ${used}>;
var<workgroup> bad: atomic<u32>;
${
  groups === undefined
    ? ''
    : `var<workgroup> groupRanks: array<f32, ${groups.count}>;
var<workgroup> kept: array<u32, ${groups.count}>;`
}
fn keysOf(ranks: vec4f) -> vec4u {
  // -0 is 0.
  let bits = select(bitcast<vec4u>(ranks), vec4u(), ranks == vec4f());
  return select(bits | vec4u(0x80000000u), ~bits, (bits >> vec4u(31u)) != vec4u());
}
fn check(x: f32) { if ((bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u) { atomicStore(&bad, 1u); } }
// A row that cannot be routed makes NaN of its output, where it is found: it is never given to some expert.
fn pickedExpert(rank: u32) -> u32 { return select(picked[rank], rank, atomicLoad(&bad) != 0u); }`,
    pick: /* wgsl */ `
  if (tid == 0u) { atomicStore(&bad, 0u); }
  for (var k = tid; k < ${used}u; k += ${threads}u) { picked[k] = 0u; }
${each(`    let logit = logits[t * ${logitsWidth}u + e];
    ranks[e] = logit;
    ${softmax ? '' : `scores[e] = sigmoid(logit);`}`)}
${early ? makeKeys((e) => `logits[t * ${logitsWidth}u + ${e}]`) : ''}
  workgroupBarrier();
${byScore && softmax ? softmaxed : ''}
${
  byScore
    ? `${each(`    check(ranks[e]);
    let rank = scores[e]${softmax ? ' / sum' : ''}${selectionBias ? ' + bias[e]' : ''};
    check(rank);
    ranks[e] = rank;`)}
  workgroupBarrier();`
    : each('    check(ranks[e]);')
}
${groups === undefined ? '' : keepGroups(experts / groups.count, groups, threads)}
${
  early
    ? ''
    : `${makeKeys((e) => `ranks[${e}]`)}
  workgroupBarrier();`
}
${count}
  workgroupBarrier();`,
    write: /* wgsl */ `
${byScore || !softmax ? '' : softmaxed}
  if (tid < ${used}u) {
    var total = 0.0;
    for (var k = 0u; k < ${used}u; k++) { total += scores[picked[k]]${softmax ? ' / sum' : ''}; }
    var weight = scores[picked[tid]]${softmax ? ' / sum' : ''};
    ${normalise ? 'if (total > 1e-20) { weight /= total; }' : ''}
    weight *= ${f32Literal(scale)}${expertScale ? ' * expertScale[picked[tid]]' : ''};${moe.scaled === true ? ' weight *= outputScale[picked[tid]];' : ''}
    let lost = atomicLoad(&bad) != 0u;
    route[t * ${routeWidth}u + tid] = pickedExpert(tid);
    route[t * ${routeWidth}u + ${used}u + tid] = select(bitcast<u32>(weight), ${NAN_BITS}, lost);
  }
  ${
    moe.shared === undefined
      ? ''
      : `if (tid == 0u) {
    route[t * ${routeWidth}u + ${2 * used}u] = ${moe.shared.gated ? `bitcast<u32>(sigmoid(logits[t * ${logitsWidth}u + ${experts}u]))` : 'bitcast<u32>(1.0)'};
  }`
  }`,
  };
}

/** The choice by itself, a workgroup a row. */
export function emitRoute(layer: RoutedLayer, mode: Mode): void {
  const { operation, builder, route, which = '' } = layer;
  let threads = 64;
  while (threads < 256 && threads < operation.moe.experts) threads *= 2;
  const choice = routeCode(layer, threads);
  const text = new KernelText().bind(buffer(route, 'write'), 'route', 'u32').bind({ kind: 'step' }, 'step', 'u32');
  choice.bind(text);
  const code = text.code(/* wgsl */ `
${sigmoidCode}
${choice.functions}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.x;
  if (t >= step[${builder.step.rows}u]) { return; }
${choice.pick}
${choice.write}
}`);
  builder.dispatch(mode, {
    label: `${operation.prefix} choice${which}`,
    code: `${choice.enable}${code}`,
    bindings: text.bindings,
    workgroups: (run) => [run.rows, 1, 1],
  });
}

/** Groups are ranked by their best or two best members, and kept as experts are picked. */
function keepGroups(
  size: number,
  groups: { readonly count: number; readonly used: number; readonly rankedBy: 'best' | 'twoBest' },
  threads: number,
): string {
  const two = groups.rankedBy === 'twoBest' && size > 1;
  const each = (body: string) =>
    `  for (var g = tid; g < ${groups.count}u; g += ${threads}u) {\n${body}\n  }\n  workgroupBarrier();`;
  return /* wgsl */ `
${each(`    var first = ranks[g * ${size}u];
    ${
      two
        ? `var second = ranks[g * ${size}u + 1u];
    if (second > first) { let swap = first; first = second; second = swap; }`
        : ''
    }
    for (var i = ${two ? 2 : 1}u; i < ${size}u; i++) {
      let rank = ranks[g * ${size}u + i];
      if (rank > first) { ${two ? 'second = first; ' : ''}first = rank; }${two ? ' else if (rank > second) { second = rank; }' : ''}
    }
    groupRanks[g] = first${two ? ' + second' : ''};`)}
${each(`    let own = groupRanks[g];
    var place = 0u;
    for (var o = 0u; o < ${groups.count}u; o++) {
      let other = groupRanks[o];
      if (other > own || (other == own && o < g)) { place++; }
    }
    kept[g] = select(0u, 1u, place < ${groups.used}u);`)}`;
}
