/**
 * Experts of few rows: what goes into the down products (`gated.ts`), and the down products with the weighted sum. A
 * workgroup makes a few output values of one row from all of its experts: what goes into them is staged as one long row,
 * of which a thread has a block of 32 columns of one expert (`lane-product.ts`).
 */

import { emitGated } from './gated.ts';
import { KernelText, type MatrixText, unrolled } from './kernel-text.ts';
import { type Encoding, type Lanes, rowsOfTeam, scratchCode, staging } from './lane-product.ts';
import { buffer, type MoeLayer, value } from './moe-layer.ts';

/** Blocks of 32 inner values whose partial sums fit into workgroup memory beside what is staged. */
export const MAX_INNER_BLOCKS = 1536;
/** Blocks that are staged as bytes at once: all of them if they are few, else less, since partial sums then lie beside them. */
const ALL_ITEMS = 192;
const SOME_ITEMS = 96;

export function emitStepExperts(layer: MoeLayer, encoding: Encoding): void {
  const { operation, builder, route, routeWidth, inner, innerWidth, slot, sharedSlot } = layer;
  const { moe, prefix, input, norm } = operation;
  const pair = (part: string) => ({
    gate: builder.weight(`${prefix}.${part}gate`),
    up: builder.weight(`${prefix}.${part}up`),
  });
  emitGated(builder, {
    label: `${prefix} gate and up`,
    encoding,
    input,
    norm,
    output: buffer(inner, 'write'),
    outputWidth: innerWidth,
    routed: {
      ...pair(''),
      wide: slot,
      offset: 0,
      used: moe.used,
      experts: moe.experts,
      route: buffer(route, 'read'),
      routeWidth,
    },
    always: moe.shared && { ...pair('shared.'), wide: sharedSlot, offset: moe.used * slot },
  });
  emitDown(layer, encoding);
}

/** The sum of each chosen expert's down product by its weight, in rank order, and of the shared one's. */
function emitDown(layer: MoeLayer, encoding: Encoding): void {
  const { operation, builder, hidden, route, routeWidth, inner, innerWidth, slot, sharedSlot } = layer;
  const { moe, prefix, output, add } = operation;
  const { experts, used, shared } = moe;
  const text = new KernelText()
    .bind(buffer(inner, 'read'), 'inner', 'vec4f')
    .bind(buffer(route, 'read'), 'route', 'u32')
    .bind(value(output, 'write'), 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  if (add !== undefined) text.bind(value(add, 'read'), 'residual', 'f32');
  const down = text.matrix(builder.weight(`${prefix}.down`));
  const sharedDown = shared === undefined ? undefined : text.matrix(builder.weight(`${prefix}.shared.down`));
  const blocks = slot / 32;
  const sharedBlocks = sharedSlot / 32;
  /** Blocks of a row's inner values: each expert's, then the shared one's. */
  const items = used * blocks + sharedBlocks;
  const units = used + (shared === undefined ? 0 : 1);
  const atOnce = encoding.id === 'f32' ? encoding.mostLanes : items <= ALL_ITEMS ? items : SOME_ITEMS;
  const rounds = Math.ceil(items / atOnce);
  const inWork = Math.ceil(items / rounds);
  const lanes: Lanes = { blocks: items, lanes: inWork, rounds, teams: 1, threads: Math.ceil(inWork / 32) * 32 };
  const { threads } = lanes;
  /** An odd distance, so that threads that add up different rows read different banks. */
  const stride = items | 1;
  // Many rows are many loads on their way at once; but a large device wants many workgroups, too.
  let rows = Math.min(4, rowsOfTeam(hidden, lanes, encoding));
  while (rows > 1 && rows * stride > MAX_INNER_BLOCKS) rows /= 2;
  const staged = staging({ encoding, lanes, columns: 32 * items, tile: 1, row: () => 't' });
  const load = (matrix: MatrixText, base: string, b: string) =>
    unrolled(
      rows,
      (r) =>
        `      w${r} = ${encoding.load(matrix, `(${base}min(first + ${r}u, ${hidden - 1}u)) * ${matrix.rowWords}u`, b)};`,
    );
  const routedLoads = `
      let expert = min(route[t * ${routeWidth}u + item / ${blocks}u], ${experts - 1}u) * ${hidden}u;
${load(down, 'expert + ', `item % ${blocks}u`)}`;
  // Partial sums stay while later blocks are staged; only where there are none may both lie in the same memory.
  const partials = { words: rows * stride };
  const apart = rounds > 1;
  const partial = (i: string) => (apart ? `partial[${i}]` : `bitcast<f32>(scratch[${i}])`);
  const code = text.code(/* wgsl */ `
${encoding.helpers}
${apart ? scratchCode(staged) : scratchCode(staged, partials)}
${apart ? `var<workgroup> partial: array<f32, ${partials.words}>;` : ''}
var<workgroup> made: array<f32, ${units * rows}>;
fn inputAt(row: u32, v: u32) -> vec4f { return inner[row * ${innerWidth / 4}u + ${rounds * inWork === items ? 'v' : `min(v, ${8 * items - 1}u)`}]; }
${staged.functions}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.y;
  let first = wg.x * ${rows}u;
  if (t >= step[${builder.step.rows}u]) { return; }
  let lane = min(tid, ${inWork - 1}u);
  for (var round = 0u; round < ${rounds}u; round++) {
    let item = min(round * ${inWork}u + lane, ${items - 1}u);
${staged.fetch('round')}
${unrolled(rows, (r) => `    var w${r}: ${encoding.weightType};`)}
    ${
      sharedDown === undefined
        ? `{${routedLoads}\n    }`
        : `if (item < ${used * blocks}u) {${routedLoads}
    } else {
${load(sharedDown, '', `item - ${used * blocks}u`)}
    }`
    }
${staged.stage}
    workgroupBarrier();
    if (tid < ${inWork}u && round * ${inWork}u + tid < ${items}u) {
${unrolled(rows, (r) => {
  const place = `${r * stride}u + item`;
  const sum = `dotBlock(w${r}, x0)`;
  return apart ? `      partial[${place}] = ${sum};` : `      scratch[${place}] = bitcast<u32>(${sum});`;
})}
    }
  }
  workgroupBarrier();
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
    // The shared expert's factor stands behind the weights.
    made[i] = bitcast<f32>(route[t * ${routeWidth}u + ${used}u + unit]) * all;
  }
  workgroupBarrier();
  if (tid < ${rows}u && first + tid < ${hidden}u) {
    var sum = 0.0;
    for (var unit = 0u; unit < ${units}u; unit++) { sum += made[tid * ${units}u + unit]; }
    let place = t * ${hidden}u + first + tid;
    y[place] = sum${add === undefined ? '' : ' + residual[place]'};
  }
}`);
  const across = Math.ceil(hidden / rows);
  builder.dispatch('step', {
    label: `${prefix} down`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, run.rows, 1],
  });
}
