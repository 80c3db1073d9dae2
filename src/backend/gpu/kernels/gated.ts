/**
 * silu(gate · x) ⊙ (up · x) of step rows, by one dense layer or by each of a row's experts (`lane-product.ts` says how
 * products are made): a workgroup makes a few inner values of one (row, expert) pair, each lane with the gate's and the
 * up's blocks of the same columns.
 */

import type { RowNorm, ValueName } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Binding, Builder } from '../builder.ts';
import { columnsOf, KernelText, type MatrixText, rowReader, rowsOf, unrolled } from './kernel-text.ts';
import {
  bindNorm,
  blocksOf,
  type Encoding,
  laneSums,
  lanesOf,
  rowsOfTeam,
  scratchCode,
  staging,
} from './lane-product.ts';
import { sigmoidCode } from './moe-layer.ts';

/** A pair of matrices, or a stack of pairs of which a row's route picks. */
export interface GatedUnit {
  readonly gate: Weight;
  readonly up: Weight;
  /** f32 that the output has for it: its inner width, or more; what is beyond is zero. */
  readonly wide: number;
  /** Where in an output row its first copy begins. */
  readonly offset: number;
}

export interface Gated {
  readonly label: string;
  readonly encoding: Encoding;
  readonly input: ValueName;
  readonly norm?: RowNorm;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row. */
  readonly outputWidth: number;
  /** Experts, with `used` of them a row as `route` says: expert ids from word `row * routeWidth` on. */
  readonly routed?: GatedUnit & {
    readonly used: number;
    readonly experts: number;
    readonly route: Exclude<Binding, { kind: 'weight' }>;
    readonly routeWidth: number;
  };
  /** What every row goes through. */
  readonly always?: GatedUnit;
}

/** Emits the dispatch of step rows. */
export function emitGated(builder: Builder, gated: Gated): void {
  const { label, encoding, input, norm, output, outputWidth, routed, always } = gated;
  const some = (routed ?? always) as GatedUnit;
  const columns = columnsOf(some.gate);
  const widest = Math.max(routed?.wide ?? 0, always?.wide ?? 0);
  const outputs = (routed?.used ?? 0) * (routed?.wide ?? 0) + (always?.wide ?? 0);
  const lanes = lanesOf(blocksOf(some.gate), outputs, encoding);
  const { blocks, threads, rounds, teams } = lanes;
  // Of each inner value a team has two weight rows.
  const own = Math.max(1, rowsOfTeam(outputs, lanes, encoding) / 2);
  const groupValues = teams * own;
  const reader = rowReader(columns);
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', reader.type)
    .bind(output, 'inner', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  if (routed !== undefined) text.bind(routed.route, 'route', 'u32');
  bindNorm(text, norm, columns);
  const pair = (unit: GatedUnit) => [text.matrix(unit.gate), text.matrix(unit.up)] as const;
  const routedPair = routed && pair(routed);
  const alwaysPair = always && pair(always);
  const used = routed?.used ?? 0;

  const staged = staging({ encoding, lanes, columns, tile: 1, row: () => 't', norm });
  const sums = laneSums(2 * teams * own, lanes);
  const loads = ([gate, up]: readonly [MatrixText, MatrixText], unit: GatedUnit, base: string, b: string) =>
    unrolled(
      own,
      (r) => `    {
      let at = ${base}min(first + ${r}u, ${rowsOf(unit.gate) - 1}u);
      g${r} = ${encoding.load(gate, `at * ${gate.rowWords}u`, b)};
      u${r} = ${encoding.load(up, `at * ${up.rowWords}u`, b)};
    }`,
    );
  const load = (b: string) => {
    const ofRouted = routed && routedPair && loads(routedPair, routed, `expert * ${rowsOf(routed.gate)}u + `, b);
    const ofAlways = always && alwaysPair && loads(alwaysPair, always, '', b);
    if (ofRouted === undefined || ofAlways === undefined) return ofRouted ?? ofAlways ?? '';
    return `  if (rank < ${used}u) {\n${ofRouted}\n  } else {\n${ofAlways}\n  }`;
  };
  const round = (b: string, index: string) => `${staged.fetch(index)}
${unrolled(own, (r) => `  var g${r}: ${encoding.weightType};\n  var u${r}: ${encoding.weightType};`)}
  ${
    routed === undefined
      ? ''
      : `var expert = 0u;
  if (rank < ${used}u) { expert = min(route[t * ${routed.routeWidth}u + rank], ${routed.experts - 1}u); }`
  }
${load(b)}
${staged.stage}
${unrolled(own, (r) => `  gate${r} += dotBlock(g${r}, x0);\n  up${r} += dotBlock(u${r}, x0);`)}`;
  /** A number of the unit that a workgroup is in. */
  const ofUnit = (pick: (unit: GatedUnit) => number) =>
    routed === undefined || always === undefined
      ? `${pick(some)}u`
      : `select(${pick(always)}u, ${pick(routed)}u, rank < ${used}u)`;
  const offset =
    routed === undefined
      ? `${always?.offset ?? 0}u`
      : always === undefined
        ? `${routed.offset}u + rank * ${routed.wide}u`
        : `select(${always.offset}u, ${routed.offset}u + rank * ${routed.wide}u, rank < ${used}u)`;
  const code = text.code(/* wgsl */ `
${reader.code}
${sigmoidCode}
${encoding.helpers}
${scratchCode(staged, sums)}
${staged.functions}
${sums.code}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.z;
  let rank = wg.y;
  let groupFirst = wg.x * ${groupValues}u;
  let wide = ${ofUnit(({ wide }) => wide)};
  if (t >= step[${builder.step.rows}u] || groupFirst >= wide) { return; }
  let lane = tid % ${lanes.lanes}u;
  let team = tid / ${lanes.lanes}u;
  let first = groupFirst + team * ${own}u;
${unrolled(own, (r) => `  var gate${r} = 0.0;\n  var up${r} = 0.0;`)}
${staged.start}
${
  rounds === 1
    ? round('lane', '0u')
    : `  for (var round = 0u; round < ${rounds}u; round++) {
    let b = min(round * ${lanes.lanes}u + lane, ${blocks - 1}u);
${round('b', 'round')}
  }`
}
  workgroupBarrier();
  if (team < ${teams}u) {
${unrolled(
  own,
  (r) => `    putPart(2u * (team * ${own}u + ${r}u), lane, gate${r});
    putPart(2u * (team * ${own}u + ${r}u) + 1u, lane, up${r});`,
)}
  }
  gather(tid);
  for (var i = tid; i < ${groupValues}u; i += ${threads}u) {
    let g = laneSum(2u * i);
    let u = laneSum(2u * i + 1u);
    let own = groupFirst + i;
    if (own < wide) {
      inner[t * ${outputWidth}u + ${offset} + own] = select(0.0, silu(g) * u, own < ${ofUnit(({ gate }) => rowsOf(gate))});
    }
  }
}`);
  const across = Math.ceil(widest / groupValues);
  builder.dispatch('step', {
    label,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, used + (always === undefined ? 0 : 1), run.rows],
  });
}
