/**
 * Experts of few rows. A workgroup makes a few inner values of one (row, rank) pair, or a few output values of one row from
 * all of its experts; sums are made as in `matvec.ts`. Inner values lie so that lanes of the second kernel read neighbours:
 * a slot is [8][blocks] vectors, vector k of every block of 32 after vector k - 1 of every block.
 */

import { columnsOf, KernelText, type MatrixText, rowReader, treeSum, unrolled } from './kernel-text.ts';
import { lanesOf } from './matvec.ts';
import { buffer, type MoeLayer, sigmoidCode, value } from './moe-layer.ts';

const THREADS = 128;
/** Blocks of input in workgroup memory at once: less than 16 KiB with the partial sums beside them. */
const STAGED_BLOCKS = 96;
/** Output rows of a workgroup of the down kernel, by twos. */
const DOWN_ROWS = 4;

export function emitStepExperts(layer: MoeLayer): void {
  emitIn(layer);
  emitOut(layer);
}

/** silu(gate · x) ⊙ (up · x) of each chosen expert and of the shared one. */
function emitIn(layer: MoeLayer): void {
  const { operation, builder, route, routeWidth, inner, innerWidth, slot, sharedSlot } = layer;
  const { moe, prefix, input } = operation;
  const { experts, used, shared } = moe;
  const gateWeight = builder.weight(`${prefix}.gate`);
  const reader = rowReader(columnsOf(gateWeight));
  const text = new KernelText()
    .bind(value(input, 'read'), 'x', reader.type)
    .bind(buffer(route, 'read'), 'route', 'u32')
    .bind(buffer(inner, 'write'), 'inner', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const pair = (part: string) =>
    [text.matrix(builder.weight(`${prefix}.${part}gate`)), text.matrix(builder.weight(`${prefix}.${part}up`))] as const;
  const routed = pair('');
  const own = shared === undefined ? undefined : pair('shared.');
  const { blocks } = routed[0];
  const lanes = lanesOf(blocks);
  const teams = THREADS / lanes;
  const staged = Math.min(STAGED_BLOCKS, Math.ceil(blocks / 16) * 16);
  const sums = ([gate, up]: readonly [MatrixText, MatrixText], expert: string, rows: number) => `
        let at = ${expert} + min(row, ${rows - 1}u);
        let g = ${gate.decode}(at * ${gate.rowWords}u, chunk + s);
        let u = ${up.decode}(at * ${up.rowWords}u, chunk + s);
${unrolled(
  8,
  (k) => `        {
          let v = staged[${k * staged}u + (s ^ ${k}u)];
          gate = fma(g[${k}], v, gate);
          up = fma(u[${k}], v, up);
        }`,
)}`;
  const code = text.code(/* wgsl */ `
${reader.code}
${sigmoidCode}
var<workgroup> staged: array<vec4f, ${8 * staged}>;
var<workgroup> partial: array<f32, ${2 * THREADS}>;

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.z;
  let rank = wg.y;
  let first = wg.x * ${teams}u;
  // Of the inner values of this slot, padding included.
  let wide = select(${slot}u, ${sharedSlot}u, rank == ${used}u);
  if (t >= step[${builder.step.rows}u] || first >= wide) { return; }
  let lane = tid % ${lanes}u;
  let team = tid / ${lanes}u;
  let row = first + team;
  var expert = 0u;
  if (rank < ${used}u) { expert = min(route[t * ${routeWidth}u + rank], ${experts - 1}u); }
  var gate = vec4f();
  var up = vec4f();
  for (var chunk = 0u; chunk < ${blocks}u; chunk += ${staged}u) {
    ${blocks > staged ? 'workgroupBarrier();' : ''}
    for (var i = tid; i < ${8 * staged}u; i += ${THREADS}u) {
      staged[(i % 8u) * ${staged}u + ((i / 8u) ^ (i % 8u))] = inputAt(t, chunk * 8u + i);
    }
    workgroupBarrier();
    for (var s = lane; s < ${staged}u; s += ${lanes}u) {
      ${blocks % staged === 0 ? '' : `if (chunk + s >= ${blocks}u) { break; }`}
      ${
        own === undefined
          ? `{${sums(routed, `expert * ${moe.inner}u`, moe.inner)}}`
          : `if (rank < ${used}u) {${sums(routed, `expert * ${moe.inner}u`, moe.inner)}
      } else {${sums(own, '0u', shared?.inner as number)}
      }`
      }
    }
  }
  partial[tid] = (gate.x + gate.y) + (gate.z + gate.w);
  partial[${THREADS}u + tid] = (up.x + up.y) + (up.z + up.w);
  workgroupBarrier();
  if (tid < ${teams}u) {
    let at = tid * ${lanes}u;
    let g = ${treeSum(Array.from({ length: lanes }, (_, lane) => `partial[at + ${lane}u]`))};
    let u = ${treeSum(Array.from({ length: lanes }, (_, lane) => `partial[at + ${THREADS + lane}u]`))};
    let own = first + tid;
    let rows = select(${moe.inner}u, ${shared?.inner ?? 0}u, rank == ${used}u);
    let place = (((own % 32u) / 4u) * (wide / 32u) + own / 32u) * 4u + own % 4u;
    if (own < wide) {
      inner[t * ${innerWidth}u + rank * ${slot}u + place] = select(0.0, silu(g) * u, own < rows);
    }
  }
}`);
  const across = Math.ceil(Math.max(slot, sharedSlot) / teams);
  builder.dispatch('step', {
    label: `${prefix} gate and up`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, used + (shared === undefined ? 0 : 1), run.rows],
  });
}

/** The sum of each chosen expert's down product by its weight, in rank order, and of the shared one's. */
function emitOut(layer: MoeLayer): void {
  const { operation, builder, hidden, route, routeWidth, inner, innerWidth, slot, sharedSlot } = layer;
  const { moe, prefix, output } = operation;
  const { experts, used, shared } = moe;
  const text = new KernelText()
    .bind(buffer(inner, 'read'), 'inner', 'vec4f')
    .bind(buffer(route, 'read'), 'route', 'u32')
    .bind(value(output, 'write'), 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const down = text.matrix(builder.weight(`${prefix}.down`));
  const sharedDown = shared === undefined ? undefined : text.matrix(builder.weight(`${prefix}.shared.down`));
  const lanes = lanesOf(down.blocks);
  const teams = THREADS / lanes;
  const units = used + (shared === undefined ? 0 : 1);
  const items = (units * DOWN_ROWS) / 2;
  const sums = (matrix: MatrixText, expert: string, blocks: number) => `
      let at0 = (${expert} + min(row, ${hidden - 1}u)) * ${matrix.rowWords}u;
      let at1 = (${expert} + min(row + 1u, ${hidden - 1}u)) * ${matrix.rowWords}u;
      for (var b = lane; b < ${blocks}u; b += ${lanes}u) {
        let d0 = ${matrix.decode}(at0, b);
        let d1 = ${matrix.decode}(at1, b);
${unrolled(
  8,
  (k) => `        {
          let v = inner[start + ${k * blocks}u + b];
          a0 = fma(d0[${k}], v, a0);
          a1 = fma(d1[${k}], v, a1);
        }`,
)}
      }`;
  const routed = `
      let expert = min(route[t * ${routeWidth}u + unit], ${experts - 1}u) * ${hidden}u;
${sums(down, 'expert', slot / 32)}`;
  const code = text.code(/* wgsl */ `
var<workgroup> partial: array<f32, ${items * 2 * lanes}>;
var<workgroup> made: array<f32, ${units * DOWN_ROWS}>;

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.y;
  let first = wg.x * ${DOWN_ROWS}u;
  if (t >= step[${builder.step.rows}u]) { return; }
  let lane = tid % ${lanes}u;
  for (var item = tid / ${lanes}u; item < ${items}u; item += ${teams}u) {
    let unit = item / ${DOWN_ROWS / 2}u;
    let row = first + (item % ${DOWN_ROWS / 2}u) * 2u;
    let start = t * ${innerWidth / 4}u + unit * ${slot / 4}u;
    var a0 = vec4f();
    var a1 = vec4f();
    ${
      sharedDown === undefined
        ? `{${routed}}`
        : `if (unit < ${used}u) {${routed}
    } else {${sums(sharedDown, '0u', sharedSlot / 32)}
    }`
    }
    partial[(item * 2u) * ${lanes}u + lane] = (a0.x + a0.y) + (a0.z + a0.w);
    partial[(item * 2u + 1u) * ${lanes}u + lane] = (a1.x + a1.y) + (a1.z + a1.w);
  }
  workgroupBarrier();
  for (var i = tid; i < ${units * DOWN_ROWS}u; i += ${THREADS}u) {
    made[i] = ${treeSum(Array.from({ length: lanes }, (_, lane) => `partial[i * ${lanes}u + ${lane}u]`))};
  }
  workgroupBarrier();
  if (tid < ${DOWN_ROWS}u && first + tid < ${hidden}u) {
    var sum = 0.0;
    for (var unit = 0u; unit < ${units}u; unit++) {
      // The shared expert's factor stands behind the weights.
      sum += bitcast<f32>(route[t * ${routeWidth}u + ${used}u + unit]) * made[unit * ${DOWN_ROWS}u + tid];
    }
    y[t * ${hidden}u + first + tid] = sum;
  }
}`);
  const across = Math.ceil(hidden / DOWN_ROWS);
  builder.dispatch('step', {
    label: `${prefix} down`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [across, run.rows, 1],
  });
}
