/**
 * Experts of few rows: what goes into the down products (`gated.ts`), and the down products with the weighted sum. A
 * workgroup makes a few output values of one row from all of its experts: what goes into them is staged as one long row,
 * of which a thread has a block of 32 columns of one expert (`lane-product.ts`).
 */

import { emitGated } from './gated.ts';
import { KernelText, type MatrixText, unrolled } from './kernel-text.ts';
import { ENABLE_EXCHANGE, exchanges } from './lane-exchange.ts';
import {
  ENOUGH_GROUPS,
  type Encoding,
  type Lanes,
  MOST_TURNS,
  roundsOf,
  scratchCode,
  type Turns,
} from './lane-product.ts';
import { staging } from './lane-staging.ts';
import { buffer, type MoeLayer, value } from './moe-layer.ts';
import { emitCombine } from './moe-sort.ts';
import { exchangedDown, neighbours } from './moe-step-exchange.ts';

/** Blocks of 32 inner values whose partial sums fit into workgroup memory beside what is staged. */
export const MAX_INNER_BLOCKS = 1536;
/** Blocks that are staged as bytes at once: all of them if they are few, else less, since partial sums then lie beside them. */
const ALL_ITEMS = 192;
const SOME_ITEMS = 96;

export function emitStepExperts(layer: MoeLayer, encoding: Encoding): void {
  const { operation, builder, inner, innerWidth, slot, sharedSlot, bank } = layer;
  const { moe, prefix, input, norm } = operation;
  emitGated(builder, {
    label: `${prefix} gate and up`,
    encoding,
    input,
    norm,
    activation: moe.activation,
    output: buffer(inner, 'write'),
    outputWidth: innerWidth,
    routed: {
      gate: bank.gate,
      up: bank.up,
      wide: slot,
      offset: 0,
      layer,
    },
    always: moe.shared && {
      gate: builder.weight(`${prefix}.shared.gate`),
      up: builder.weight(`${prefix}.shared.up`),
      wide: sharedSlot,
      offset: moe.used * slot,
    },
  });
  emitDown(layer, encoding);
  if (operation.split !== undefined) emitCombine(layer, 'step');
}

function downTurns(
  hidden: number,
  { encoding, rounds, stride }: { readonly encoding: Encoding; readonly rounds: number; readonly stride: number },
): Turns {
  let rows = Math.max(1, encoding.mostLoads / 2);
  while (rows > 1 && (hidden / rows < ENOUGH_GROUPS || rows * stride > MAX_INNER_BLOCKS)) rows /= 2;
  const turns = Math.floor(hidden / (rows * ENOUGH_GROUPS));
  return { rows, turns: rounds > 1 ? 1 : Math.max(1, Math.min(MOST_TURNS, turns)) };
}

/**
 * The sum of each chosen expert's down product by its weight, in rank order, and of the shared one's. Of a split layer only
 * the products, for `emitCombine` to sum with those of others.
 */
function emitDown(layer: MoeLayer, encoding: Encoding): void {
  const { operation, builder, hidden, route, routeWidth, inner, innerWidth, slot, sharedSlot, bank } = layer;
  const { moe, prefix, output, add, split } = operation;
  const { experts, used, shared, biases, router } = moe;
  const text = new KernelText()
    .bind(buffer(inner, 'read'), 'inner', 'vec4f')
    .bind(buffer(route, 'read'), 'route', 'u32');
  if (split === undefined) {
    text.bind(value(output, 'write'), 'y', 'f32');
    if (add !== undefined) text.bind(value(add, 'read'), 'residual', 'f32');
  } else {
    builder.declareBuffer(`${prefix}.made`, builder.rows * used * hidden * 4);
    text.bind(buffer(`${prefix}.made`, 'write'), 'ofExperts', 'f32');
    if (shared !== undefined) {
      builder.declareBuffer(`${prefix}.sharedOut`, builder.rows * hidden * 4);
      text.bind(buffer(`${prefix}.sharedOut`, 'write'), 'ofShared', 'f32');
    }
  }
  bank.bind(text);
  if (biases) text.vector(`${prefix}.down.bias`, 'downBias');
  const down = text.matrix(bank.down);
  const sharedDown = shared === undefined ? undefined : text.matrix(builder.weight(`${prefix}.shared.down`));
  const blocks = slot / 32;
  const sharedBlocks = sharedSlot / 32;
  /** Blocks of a row's inner values: each expert's, then the shared one's. */
  const items = used * blocks + sharedBlocks;
  const units = used + (shared === undefined ? 0 : 1);
  const atOnce = encoding.id === 'f32' ? encoding.mostBlocks : items <= ALL_ITEMS ? items : SOME_ITEMS;
  // A block each: the threads are many already.
  const { rounds, lanes: inWork, span } = roundsOf(items, atOnce, { ...encoding, span: 1 });
  const threads = Math.ceil(inWork / 32) * 32;
  const lanes: Lanes = { blocks: items, lanes: inWork, span, rounds, teams: 1, threads };
  /** An odd distance, so that threads that add up different rows read different banks. */
  const stride = items | 1;
  // Half of what a lane may load at once: the other half is the next turn's, on its way. Fewer instructions, too, which so
  // stay in the processors' caches from layer to layer.
  const { rows, turns } = downTurns(hidden, { encoding, rounds, stride });
  const groupRows = turns * rows;
  const counts = { used, blocks, sharedBlocks };
  const subgroups = split === undefined && rounds === 1 && neighbours(counts) > 1 && exchanges(builder, lanes);
  const staged = staging({ encoding, lanes, columns: 32 * items, tile: 1, row: () => 't', subgroups });
  const loads = (matrix: MatrixText, { name, base, b, turn }: Record<'name' | 'base' | 'b' | 'turn', string>) =>
    unrolled(
      rows,
      (r) =>
        `      ${name}${r} = ${encoding.load(matrix, { row: `(${base}min(first + ${turn}${r}u, ${hidden - 1}u)) * ${matrix.rowWords}u`, b, span })};`,
    );
  /** Loads of a turn's weights: of the thread's item, the block of one expert's row. */
  const load = (name: string, turn: string) => {
    const ofRouted = loads(down, { name, base: 'expert + ', b: 'block', turn });
    if (sharedDown === undefined) return ofRouted;
    const ofShared = loads(sharedDown, { name, base: '', b: `(item - ${used * blocks}u)`, turn });
    return `    if (item < ${used * blocks}u) {\n${ofRouted}\n    } else {\n${ofShared}\n    }`;
  };
  const declare = (name: string) => unrolled(rows, (r) => `    var ${name}${r}: Loaded;`);
  // Partial sums stay while later blocks are staged; only where there are none may both lie in the same memory.
  const partials = { words: rows * stride };
  const apart = rounds > 1;
  const partial = (i: string) => (apart ? `partial[${i}]` : `bitcast<f32>(scratch[${i}])`);
  /** A lane's share of the turn's row `r`. */
  const product = (r: number) => {
    const of = (matrix: MatrixText, b: string) =>
      `dotLane(${encoding.decode(matrix, { loaded: `w${r}`, b, span })}, x0)`;
    return sharedDown === undefined
      ? of(down, 'block')
      : `select(${of(sharedDown, `(item - ${used * blocks}u)`)}, ${of(down, 'block')}, item < ${used * blocks}u)`;
  };
  const put = unrolled(rows, (r) => {
    const place = `${r * stride}u + item`;
    return apart
      ? `      partial[${place}] = ${product(r)};`
      : `      scratch[${place}] = bitcast<u32>(${product(r)});`;
  });
  // The shared expert's factor stands behind the weights.
  const routed = (unit: string) => `bitcast<f32>(route[t * ${routeWidth}u + ${used}u + ${unit}])`;
  const weightOf = (unit: string) =>
    router.weighsInput ? `select(${routed(unit)}, 1f, ${unit} < ${used}u)` : routed(unit);
  /** The sum `all` of the unit `unit` for the output value `row`, with the expert's bias. */
  const sumOf = (row: string) => {
    if (!biases) return 'all';
    const chosen = `min(route[t * ${routeWidth}u + min(unit, ${used - 1}u)], ${experts - 1}u)`;
    const bias = `downBias[${chosen} * ${hidden}u + min(${row}, ${hidden - 1}u)]`;
    return shared === undefined ? `(all + ${bias})` : `(all + select(0f, ${bias}, unit < ${used}u))`;
  };
  /** The weighted sums of so many rows, a thread each. */
  const writeRows = (
    count: number,
    turn: string,
    added = 'residual[place]',
  ) => `  if (tid < ${count}u && first + ${turn}tid < ${hidden}u) {
    var sum = 0.0;
    for (var unit = 0u; unit < ${units}u; unit++) { sum += made[tid * ${units}u + unit]; }
    let place = t * ${hidden}u + first + ${turn}tid;
    y[place] = sum${add === undefined ? '' : ` + ${added}`};
  }`;
  /** What is done with the sum `all` of the unit `unit` for the turn's row `i / units`. */
  const putUnit = (turn: string) =>
    split === undefined
      ? `    made[i] = ${weightOf('unit')} * ${sumOf(`(first + ${turn}i / ${units}u)`)};`
      : `    let row = first + ${turn}i / ${units}u;
    if (row < ${hidden}u) {
      ${shared === undefined ? '' : `if (unit == ${used}u) { ofShared[t * ${hidden}u + row] = all; } else `}{ ofExperts[(t * ${used}u + unit) * ${hidden}u + row] = ${sumOf('row')}; }
    }`;
  /** Sums of a turn: of each expert's blocks, then of the experts. */
  const write = (turn: string) => `  workgroupBarrier();
  for (var i = tid; i < ${units * rows}u; i += ${threads}u) {
    let unit = i % ${units}u;
    let begin = (i / ${units}u) * ${stride}u + unit * ${blocks}u;
    let count = ${shared === undefined ? `${blocks}u` : `select(${sharedBlocks}u, ${blocks}u, unit < ${used}u)`};
    var sum = vec4f();
    var k = 0u;
    for (; k + 4u <= count; k += 4u) {
      sum += vec4f(${[0, 1, 2, 3].map((c) => partial(`begin + k + ${c}u`)).join(', ')});
    }
    var all = (sum.x + sum.y) + (sum.z + sum.w);
    for (; k < count; k++) { all += ${partial('begin + k')}; }
${putUnit(turn)}
  }
  workgroupBarrier();
${split === undefined ? writeRows(rows, turn) : ''}`;
  const itemOf = (round: string) => `    let item = min(${round}lane, ${items - 1}u);
    let expert = ${bank.place(`min(route[t * ${routeWidth}u + min(item / ${blocks}u, ${used - 1}u)], ${experts - 1}u)`)} * ${hidden}u;
    let block = item % ${blocks}u;`;
  /** Rows of one round: each turn's weights are on their way while those before are multiplied. */
  const taken = () => `${staged.fetch('0u')}
${itemOf('')}
${declare('w')}
${load('w', '')}
${staged.stage}
  for (var turn = 0u; turn < ${turns}u; turn++) {
${turns === 1 ? '' : `${declare('next')}\n    if (turn + 1u < ${turns}u) {\n${load('next', `(turn + 1u) * ${rows}u + `)}\n    }`}
    if (tid < ${inWork}u) {
${put}
    }
${write(turns === 1 ? '' : `turn * ${rows}u + `)}
${turns === 1 ? '' : unrolled(rows, (r) => `    w${r} = next${r};`)}
  }`;
  const exchanging = exchangedDown(counts, { rows, turns, threads, weight: weightOf, sum: sumOf });
  /** The same where lanes exchange: their sums wait for the last turn's. */
  const takenTogether = () => `${staged.fetch('0u')}
${itemOf('')}
${declare('w')}
${load('w', '')}
${
  add === undefined
    ? ''
    : `  var added = 0.0;
  if (tid < ${groupRows}u && first + tid < ${hidden}u) { added = residual[t * ${hidden}u + first + tid]; }`
}
${staged.stage}
  for (var turn = 0u; turn < ${turns}u; turn++) {
${turns === 1 ? '' : `${declare('next')}\n    if (turn + 1u < ${turns}u) {\n${load('next', `(turn + 1u) * ${rows}u + `)}\n    }`}
${unrolled(rows, (r) => `    let product${r} = ${product(r)};`)}
${exchanging.put(
  `turn * ${rows}u + `,
  Array.from({ length: rows }, (_, r) => `product${r}`),
)}
${turns === 1 ? '' : unrolled(rows, (r) => `    w${r} = next${r};`)}
  }
${exchanging.end}
${writeRows(groupRows, '', 'added')}`;
  const rounded = () => `  for (var round = 0u; round < ${rounds}u; round++) {
${itemOf(`round * ${inWork}u + `)}
${staged.fetch('round')}
${declare('w')}
${load('w', '')}
${staged.stage}
    if (tid < ${inWork}u && round * ${inWork}u + tid < ${items}u) {
${put}
    }
  }
${write('')}`;
  const code = text.code(/* wgsl */ `
${encoding.helpers(span, sharedDown === undefined ? [down] : [down, sharedDown])}
${subgroups ? exchanging.memory : apart ? scratchCode(staged) : scratchCode(staged, partials)}
${apart ? `var<workgroup> partial: array<f32, ${partials.words}>;` : ''}
${split === undefined ? `var<workgroup> made: array<f32, ${units * (subgroups ? groupRows : rows)}>;` : ''}
fn inputAt(row: u32, v: u32) -> vec4f { return inner[row * ${innerWidth / 4}u + ${rounds * inWork === items ? 'v' : `min(v, ${8 * items - 1}u)`}]; }
${staged.functions}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.y;
  let first = wg.x * ${groupRows}u;
  let lane = min(tid, ${inWork - 1}u);
${subgroups ? takenTogether() : rounds === 1 ? taken() : rounded()}
}`);
  const across = Math.ceil(hidden / groupRows);
  builder.dispatch('step', {
    label: `${prefix} down`,
    code: `${subgroups ? ENABLE_EXCHANGE : ''}${code}`,
    bindings: text.bindings,
    workgroups: (run) => [across, run.rows, 1],
  });
}
