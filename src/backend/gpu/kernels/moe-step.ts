/**
 * Experts of few rows: what goes into the down products (`gated.ts`), and the down products with the weighted sum. A
 * workgroup makes a few output values of one row from all of its experts: a thread owns blocks of 32 columns of one of
 * them, encodes its own input and multiplies it with all of the workgroup's weight rows.
 */

import { emitGated } from './gated.ts';
import { KernelText, type MatrixText, unrolled } from './kernel-text.ts';
import type { Encoding } from './lane-product.ts';
import { buffer, type MoeLayer, value } from './moe-layer.ts';

/** Threads of a workgroup, at the most. */
const MOST_THREADS = 256;
/** f32 in workgroup memory, of the 16 KiB that every device has. */
const PARTIALS = 3584;

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
  const threads = Math.min(MOST_THREADS, Math.ceil(items / 32) * 32);
  // Many rows are many loads on their way at once; but a large device wants many workgroups, too.
  let rows = hidden >= 1024 ? 4 : 2;
  while (rows > 1 && rows * (items + 1) > PARTIALS) rows /= 2;
  /** An odd distance, so that threads that add up different rows read different banks. */
  const stride = items | 1;
  const load = (matrix: MatrixText, base: string, b: string) =>
    unrolled(
      rows,
      (r) =>
        `      w${r} = ${encoding.load(matrix, `(${base}min(first + ${r}u, ${hidden - 1}u)) * ${matrix.rowWords}u`, b)};`,
    );
  const routedLoads = `
      let expert = min(route[t * ${routeWidth}u + item / ${blocks}u], ${experts - 1}u) * ${hidden}u;
${load(down, 'expert + ', `item % ${blocks}u`)}`;
  const code = text.code(/* wgsl */ `
${encoding.helpers}
var<workgroup> partial: array<f32, ${rows * stride}>;
var<workgroup> made: array<f32, ${units * rows}>;

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.y;
  let first = wg.x * ${rows}u;
  if (t >= step[${builder.step.rows}u]) { return; }
  for (var item = tid; item < ${items}u; item += ${threads}u) {
${unrolled(rows, (r) => `    var w${r}: ${encoding.weightType};`)}
    ${
      sharedDown === undefined
        ? `{${routedLoads}\n    }`
        : `if (item < ${used * blocks}u) {${routedLoads}
    } else {
${load(sharedDown, '', `item - ${used * blocks}u`)}
    }`
    }
    let at = t * ${innerWidth / 4}u + 8u * item;
    let x = prepare(array<vec4f, 8>(${Array.from({ length: 8 }, (_, k) => `inner[at + ${k}u]`).join(', ')}));
${unrolled(rows, (r) => `    partial[${r * stride}u + item] = dotBlock(w${r}, x);`)}
  }
  workgroupBarrier();
  for (var i = tid; i < ${units * rows}u; i += ${threads}u) {
    let unit = i % ${units}u;
    let begin = (i / ${units}u) * ${stride}u + unit * ${blocks}u;
    let count = ${shared === undefined ? `${blocks}u` : `select(${sharedBlocks}u, ${blocks}u, unit < ${used}u)`};
    var sum = vec4f();
    var k = 0u;
    for (; k + 4u <= count; k += 4u) {
      sum += vec4f(partial[begin + k], partial[begin + k + 1u], partial[begin + k + 2u], partial[begin + k + 3u]);
    }
    var all = (sum.x + sum.y) + (sum.z + sum.w);
    for (; k < count; k++) { all += partial[begin + k]; }
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
