/**
 * Gate and up of step rows become one, of one dense layer or of each of a row's experts (`lane-product.ts` says how
 * products are made): a workgroup makes a few inner values of one (row, expert) pair, each lane with the gate's and the
 * up's blocks of the same columns.
 */

import type { RowNorm, ValueName } from '../../../model/graph.ts';
import type { Activation } from '../../../model/spec.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Binding, Builder } from '../builder.ts';
import { gluCode } from './activation.ts';
import { columnsOf, KernelText, type MatrixText, rowReader, rowsOf, unrolled } from './kernel-text.ts';
import { ENABLE_EXCHANGE, exchangeSums, exchanges } from './lane-exchange.ts';
import { blocksOf, type Encoding, laneSums, lanesOf, scratchCode, turnsOf } from './lane-product.ts';
import { bindNorm, staging } from './lane-staging.ts';
import { gateScale, type MoeLayer } from './moe-layer.ts';
import { choosesAlong, routeCode } from './moe-route.ts';

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
  readonly activation: Activation;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row. */
  readonly outputWidth: number;
  /** Experts, of which each row takes its own; the layer's `route` is written by the way. */
  readonly routed?: GatedUnit & { readonly layer: MoeLayer };
  /** What every row goes through. */
  readonly always?: GatedUnit;
}

/** Emits the dispatch of step rows. */
export function emitGated(builder: Builder, gated: Gated): void {
  const { label, encoding, input, norm, activation, output, outputWidth, routed, always } = gated;
  const some = (routed ?? always) as GatedUnit;
  const columns = columnsOf(some.gate);
  const widest = Math.max(routed?.wide ?? 0, always?.wide ?? 0);
  const used = routed?.layer.operation.moe.used ?? 0;
  const outputs = used * (routed?.wide ?? 0) + (always?.wide ?? 0);
  const lanes = lanesOf(blocksOf(some.gate), outputs, encoding);
  const { blocks, span, threads, rounds, teams } = lanes;
  const firstBlock = span === 1 ? 'lane' : '2u * lane';
  // Of each inner value a team has two weight rows, and the next turn's are on their way.
  const { rows: own, turns } = turnsOf(outputs, lanes, encoding.mostLoads / 4);
  const turnValues = teams * own;
  const groupValues = turns * turnValues;
  const across = Math.ceil(widest / groupValues);
  const reader = rowReader(columns);
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', reader.type)
    .bind(output, 'inner', 'f32');
  const choice = routed && choosesAlong(routed.layer) ? routeCode(routed.layer, threads) : undefined;
  if (routed !== undefined) {
    const access = choice === undefined ? 'read' : 'write';
    text.bind({ kind: 'buffer', name: routed.layer.route, access }, 'route', 'u32');
  }
  choice?.bind(text);
  routed?.layer.bank.bind(text);
  bindNorm(text, norm, columns);
  const pair = (unit: GatedUnit) => [text.matrix(unit.gate), text.matrix(unit.up)] as const;
  const routedPair = routed && pair(routed);
  const layer = routed?.layer;
  const biases = layer?.operation.moe.biases ? gatedBiases(text, layer) : undefined;
  const weighs = layer?.operation.moe.router.weighsInput === true;
  const alwaysPair = always && pair(always);

  const subgroups = exchanges(builder, lanes);
  const staged = staging({ encoding, lanes, columns, tile: 1, row: () => 't', norm, subgroups });
  const sums = subgroups ? exchangeSums(own, lanes, 2) : laneSums(own, lanes, 2);
  // All workgroups choose, and the first, which does nothing else, writes it down: nobody else waits for the weights.
  const units = used + (always === undefined ? 0 : 1);
  const ownRank = always === undefined ? 'rank' : `min(rank, ${used - 1}u)`;
  const chosen =
    routed === undefined || choice !== undefined
      ? `pickedExpert(${ownRank})`
      : `min(route[t * ${routed.layer.routeWidth}u + ${ownRank}], ${routed.layer.operation.moe.experts - 1}u)`;
  const scaled = routed === undefined ? '' : gateScale(routed.layer, text, 'chosen');
  const scaleCode = scaled === '' ? '' : `\n  let gateFactor = select(1.0, 1.0${scaled}, rank < ${used}u);`;
  const expertCode =
    routed === undefined
      ? ''
      : choice === undefined
        ? `  let chosen = ${chosen};
  let expert = ${routed.layer.bank.place('chosen')};${scaleCode}`
        : `${choice.pick}
  if (wg.x == 0u) {
${choice.write}
    return;
  }
  let chosen = ${chosen};
  let expert = chosen;${scaleCode}`;
  /** What the input of a row's expert is multiplied with; products are instead, which is the same. */
  const weightCode = weighs
    ? `    if (rank < ${used}u) { factor *= bitcast<f32>(route[t * ${layer?.routeWidth}u + ${used}u + rank]); }\n`
    : '';
  const gateFactor = scaled === '' ? '' : ' * gateFactor';
  const loads = (
    [gate, up]: readonly [MatrixText, MatrixText],
    unit: GatedUnit,
    {
      base,
      name,
      b,
      turn,
    }: { readonly base: string; readonly name: string; readonly b: string; readonly turn: string },
  ) =>
    unrolled(
      own,
      (r) => `    {
      let at = ${base}min(first + ${turn}${r}u, ${rowsOf(unit.gate) - 1}u);
      ${name}Gate${r} = ${encoding.load(gate, { row: `at * ${gate.rowWords}u`, b, span })};
      ${name}Up${r} = ${encoding.load(up, { row: `at * ${up.rowWords}u`, b, span })};
    }`,
    );
  /** Loads of a turn's weights, of the block `b`. */
  const load = (name: string, b: string, turn: string) => {
    const ofRouted =
      routed && routedPair && loads(routedPair, routed, { base: `expert * ${rowsOf(routed.gate)}u + `, name, b, turn });
    const ofAlways = always && alwaysPair && loads(alwaysPair, always, { base: '', name, b, turn });
    if (ofRouted === undefined || ofAlways === undefined) return ofRouted ?? ofAlways ?? '';
    return `  if (rank < ${used}u) {\n${ofRouted}\n  } else {\n${ofAlways}\n  }`;
  };
  const declare = (name: string) =>
    unrolled(own, (r) => `  var ${name}Gate${r}: Loaded;\n  var ${name}Up${r}: Loaded;`);
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
  const write = (turn: string, gateOf: (r: number) => string, upOf: (r: number) => string) =>
    sums.total(
      [gateOf, upOf].map((of) => Array.from({ length: own }, (_, r) => of(r))),
      (output, [g, u]) => `    ${weighs ? 'var' : 'let'} factor = ${staged.factor('0u')};
${weightCode}    let own = groupFirst + ${turn}${output};
    if (own < wide) {
${biases === undefined ? `      let value = glu(${g} * factor${gateFactor}, ${u} * factor);` : biases.value(`${g} * factor${gateFactor}`, `${u} * factor`, used)}
      inner[t * ${outputWidth}u + ${offset} + own] = select(0.0, value, own < ${ofUnit(({ gate }) => rowsOf(gate))});
    }`,
    );
  /** The product of a loaded row; where the formats of the experts and of the shared one differ they are told apart. */
  const dot = (loaded: string, part: 0 | 1, b: string) => {
    const of = (pair: readonly [MatrixText, MatrixText]) =>
      `dotLane(${encoding.decode(pair[part], { loaded, b, span })}, x0)`;
    if (routedPair === undefined || alwaysPair === undefined || routedPair[part].format === alwaysPair[part].format) {
      return of((routedPair ?? alwaysPair) as readonly [MatrixText, MatrixText]);
    }
    return `select(${of(alwaysPair)}, ${of(routedPair)}, rank < ${used}u)`;
  };
  const gateSum = (r: number) => `gate${r}`;
  const upSum = (r: number) => `up${r}`;
  const dotGate = (b: string) => (r: number) => dot(`wGate${r}`, 0, b);
  const dotUp = (b: string) => (r: number) => dot(`wUp${r}`, 1, b);
  /** Rows of one round: each turn's weights are on their way while those before are multiplied. */
  const taken = () => `${staged.fetch('0u')}
${expertCode}
${declare('w')}
${load('w', firstBlock, '')}
${staged.stage}
${staged.end}
${
  turns === 1
    ? `${unrolled(own, (r) => `  let gate${r} = ${dotGate(firstBlock)(r)};\n  let up${r} = ${dotUp(firstBlock)(r)};`)}
${write('', gateSum, upSum)}`
    : `  for (var turn = 0u; turn < ${turns}u; turn++) {
${declare('next')}
    if (turn + 1u < ${turns}u) {
${load('next', firstBlock, `(turn + 1u) * ${turnValues}u + `)}
    }
${unrolled(own, (r) => `    let gate${r} = ${dotGate(firstBlock)(r)};\n    let up${r} = ${dotUp(firstBlock)(r)};`)}
${write(`turn * ${turnValues}u + `, gateSum, upSum)}
${sums.again}
${unrolled(own, (r) => `    wGate${r} = nextGate${r};\n    wUp${r} = nextUp${r};`)}
  }`
}`;
  /** Longer rows: sums grow over the rounds. */
  const rounded = () => `${expertCode}
${unrolled(own, (r) => `  var gate${r} = 0.0;\n  var up${r} = 0.0;`)}
  for (var round = 0u; round < ${rounds}u; round++) {
    let b = min((round * ${lanes.lanes}u + lane) * ${span}u, ${blocks - span}u);
${staged.fetch('round')}
${declare('w')}
${load('w', 'b', '')}
${staged.stage}
${unrolled(own, (r) => `    gate${r} += ${dotGate('b')(r)};\n    up${r} += ${dotUp('b')(r)};`)}
  }
${staged.end}
${write('', gateSum, upSum)}`;
  const code = text.code(/* wgsl */ `
${reader.code}
${gluCode(activation)}
${choice?.functions ?? ''}
${encoding.helpers(span, [...(routedPair ?? []), ...(alwaysPair ?? [])])}
${scratchCode(staged, sums)}
${staged.functions}
${sums.code}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.z;
  let place = ${choice === undefined ? 'wg.x' : 'max(wg.x, 1u) - 1u'};
  let rank = place / ${across}u;
  let groupFirst = place % ${across}u * ${groupValues}u;
  let wide = ${ofUnit(({ wide }) => wide)};
  if (groupFirst >= wide) { return; }
  let lane = tid % ${lanes.lanes}u;
  let team = tid / ${lanes.lanes}u;
  let first = groupFirst + team * ${own}u;
${staged.start}
${rounds === 1 ? taken() : rounded()}
}`);
  builder.dispatch('step', {
    label,
    code: `${subgroups ? ENABLE_EXCHANGE : (choice?.enable ?? '')}${code}`,
    bindings: text.bindings,
    workgroups: (run) => [across * units + (choice === undefined ? 0 : 1), 1, run.rows],
  });
}

/** Binds the biases of the experts' gates and ups, and adds them. */
function gatedBiases(text: KernelText, { operation }: MoeLayer) {
  const { prefix, moe } = operation;
  text.vector(`${prefix}.gate.bias`, 'gateBias').vector(`${prefix}.up.bias`, 'upBias');
  return {
    /** Statements that declare `value` of the inner value `own` of the expert `chosen`; what all rows go through has no biases. */
    value: (gate: string, up: string, used: number) => `      var gateValue = ${gate};
      var upValue = ${up};
      if (rank < ${used}u) {
        let at = chosen * ${moe.inner}u + min(own, ${moe.inner - 1}u);
        gateValue += gateBias[at];
        upValue += upBias[at];
      }
      let value = glu(gateValue, upValue);`,
  };
}
