/**
 * Which experts a row takes and with what weights, by a workgroup. An expert's rank is how many others go before it, so that
 * the choice takes no rounds and ties go to the lower index. Prompts make the choice in a dispatch of its own; for step rows
 * every workgroup that needs a row's experts makes it anew, since a dispatch takes longer (but for very many experts).
 */

import type { Mode } from '../../kernel.ts';
import { KernelText } from './kernel-text.ts';
import { buffer, type MoeLayer, sigmoidCode } from './moe-layer.ts';
import { blockMax, blockSum, f32Literal, LEAST } from './snippets.ts';

/** A NaN that no compiler can fold away: it is only ever written as bits. */
const NAN_BITS = '0x7fc00000u';

/**
 * Whether a step's choice is made by who needs the experts: where it fits into workgroup memory beside their products, and
 * nobody waits for it but they.
 */
export function choosesAlong({ operation }: Pick<MoeLayer, 'operation'>): boolean {
  return operation.moe.experts <= 256 && operation.split === undefined;
}

/** What of a layer the choice needs. */
type Routed = Omit<MoeLayer, 'bank'>;

/** WGSL of the choice for the row `t` by the threads `tid`; a module has it once. */
export interface RouteCode {
  /** Binds the router's logits as `logits`, and the selection bias where there is one. */
  bind(text: KernelText): void;
  /** Declares workgroup memory, and `pickedExpert(rank)`; after `sigmoidCode`. */
  readonly functions: string;
  /** Statements that pick; `pickedExpert` may be called after them. They hold barriers. */
  readonly pick: string;
  /** Statements after those that write the row's ids, weights and shared factor to `route`. They hold barriers. */
  readonly write: string;
}

/** @param threads a power of two */
export function routeCode(layer: Routed, threads: number): RouteCode {
  const { operation, logits, logitsWidth, routeWidth } = layer;
  const { moe, prefix } = operation;
  const { experts, used, router } = moe;
  const { gating, groups, selectionBias, normalise, scale } = router;
  const softmax = gating === 'softmax';
  const each = (body: string) => `  for (var e = tid; e < ${experts}u; e += ${threads}u) {\n${body}\n  }`;
  const allowed = (e: string) => (groups === undefined ? 'true' : `kept[${e} / ${experts / groups.count}u] != 0u`);
  // Into scores; logits are in ranks.
  const softmaxed = `  var ownTop = ${LEAST};
${each('    ownTop = max(ownTop, ranks[e]);')}
  let top = blockMax(tid, ownTop);
  var ownSum = 0.0;
${each('    let score = exp(ranks[e] - top);\n    scores[e] = score;\n    ownSum += score;')}
  let sum = blockSum(tid, ownSum);`;
  /** Whether what is compared is made of the scores, and not of the logits themselves. */
  const byScore = !softmax || selectionBias;
  return {
    bind(text) {
      text.bind(buffer(logits, 'read'), 'logits', 'f32');
      if (selectionBias) text.vector(`${prefix}.selectionBias`, 'bias');
    },
    functions: /* wgsl */ `
${softmax ? `${blockMax(threads, LEAST)}\n${blockSum(threads)}` : ''}
// What the choice compares, and what weights are made of.
var<workgroup> ranks: array<f32, ${experts}>;
var<workgroup> scores: array<f32, ${experts}>;
var<workgroup> picked: array<u32, ${used}>;
var<workgroup> bad: atomic<u32>;
${
  groups === undefined
    ? ''
    : `var<workgroup> groupRanks: array<f32, ${groups.count}>;
var<workgroup> kept: array<u32, ${groups.count}>;`
}
fn check(x: f32) { if ((bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u) { atomicStore(&bad, 1u); } }
// A row that cannot be routed makes NaN of its output, where it is found: it is never given to some expert.
fn pickedExpert(rank: u32) -> u32 { return select(picked[rank], rank, atomicLoad(&bad) != 0u); }`,
    pick: /* wgsl */ `
${each(`    let logit = logits[t * ${logitsWidth}u + e];
    check(logit);
    ranks[e] = logit;
    ${softmax ? '' : `scores[e] = sigmoid(logit);`}`)}
  workgroupBarrier();
${byScore && softmax ? softmaxed : ''}
${
  byScore
    ? `${each(`    let rank = scores[e]${softmax ? ' / sum' : ''}${selectionBias ? ' + bias[e]' : ''};
    check(rank);
    ranks[e] = rank;`)}
  workgroupBarrier();`
    : ''
}
${groups === undefined ? '' : keepGroups(experts / groups.count, groups, threads)}
${each(`    let own = ranks[e];
    var place = 0u;
${scan(
  experts,
  (o) => `      {
        let other = ranks[${o}];
        place += select(0u, 1u, (other > own || (other == own && ${o} < e)) && ${allowed(o)});
      }`,
)}
    if (place < ${used}u && ${allowed('e')}) { picked[place] = e; }`)}
  workgroupBarrier();`,
    write: /* wgsl */ `
${byScore || !softmax ? '' : softmaxed}
  if (tid < ${used}u) {
    var total = 0.0;
    for (var k = 0u; k < ${used}u; k++) { total += scores[picked[k]]${softmax ? ' / sum' : ''}; }
    var weight = scores[picked[tid]]${softmax ? ' / sum' : ''};
    ${normalise ? 'if (total > 1e-20) { weight /= total; }' : ''}
    weight *= ${f32Literal(scale)};
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
export function emitRoute(layer: Routed, mode: Mode): void {
  const { operation, builder, route } = layer;
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
    label: `${operation.prefix} choice`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [run.rows, 1, 1],
  });
}

/** A loop over all experts, eight at a time: their loads then wait together. */
function scan(experts: number, body: (o: string) => string): string {
  const eights = Math.floor(experts / 8) * 8;
  const rest = Array.from({ length: experts - eights }, (_, i) => body(`${eights + i}u`)).join('\n');
  const loop = Array.from({ length: 8 }, (_, i) => body(`(base + ${i}u)`)).join('\n');
  return `${eights === 0 ? '' : `    for (var base = 0u; base < ${eights}u; base += 8u) {\n${loop}\n    }\n`}${rest}`;
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
