/**
 * Activations as f16 for subgroup matrices. A row is scaled by a power of two of its own, so that its largest value is just
 * within f16's range whatever the row holds; the scale stands beside it as f32 and is multiplied back in f32. Of every four
 * columns the order is 0, 2, 1, 3, as codes of weights come out of a word two at a time (`matrix-tiles.ts`).
 */

import type { RowNorm, ValueName } from '../../../model/graph.ts';
import type { Binding, Builder } from '../builder.ts';
import { KernelText, unrolled } from './kernel-text.ts';
import { f32Literal } from './snippets.ts';

/** Columns are padded with zeros to whole turns of the products, 64 columns at the most. */
const PAD = 64;

/** Where the rows of a buffer of halves lie, in vec4u: eight halves, or four scales. */
export interface HalfLayout {
  readonly name: string;
  /** From a row to the next. */
  readonly stride: number;
  /** Where the scales begin. */
  readonly scales: number;
}

export function halfLayout(name: string, columns: number, rows: number): HalfLayout {
  const stride = (Math.ceil(columns / PAD) * PAD) / 8;
  return { name, stride, scales: rows * stride };
}

export interface HalfRows {
  readonly label: string;
  readonly input: Exclude<Binding, { kind: 'weight' }>;
  /** f32 from an input row to the next; `columns` if it is not said. */
  readonly inputWidth?: number;
  /** f32 before the first row's first column; 0 if it is not said. */
  readonly inputOffset?: number;
  readonly columns: number;
  /** What the rows go through first. */
  readonly norm?: RowNorm;
  /** The value that the normed rows become, in f32, for those who need them so. */
  readonly normed?: ValueName;
  /** Rows for each row of the run; 1 if it is not said. */
  readonly each?: number;
  /** The buffer that is made. */
  readonly output: string;
}

/** A thread keeps so many vectors of eight of its row in registers; of longer rows it reads them twice. */
const KEPT = 4;

/** Emits the dispatch that makes a buffer of halves, unless there is one: rows are converted once for all who read them. */
export function emitHalf(builder: Builder, rows: HalfRows): HalfLayout {
  const { label, input, columns, norm, normed, each = 1, output } = rows;
  const layout = halfLayout(output, columns, builder.rows * each);
  if (builder.bytes.has(output)) return layout;
  builder.declareBuffer(output, (layout.scales + Math.ceil((builder.rows * each) / 4)) * 16);
  const text = new KernelText()
    .bind(input, 'x', readsVectors(rows) ? 'vec4f' : 'f32')
    .bind({ kind: 'buffer', name: output, access: 'write' }, 'halves', 'u32')
    .bind({ kind: 'step' }, 'step', 'u32');
  if (norm !== undefined) text.vector(norm.weight, 'normWeight');
  if (normed !== undefined) {
    builder.declareValue(normed, columns);
    text.bind({ kind: 'value', name: normed, access: 'write' }, 'normed', 'f32');
  }
  const code = text.code(halfCode(rows, layout, builder));
  builder.dispatch('prompt', {
    label,
    code,
    bindings: text.bindings,
    workgroups: (run) => {
      const count = run.rows * each;
      return [Math.min(count, 32768), Math.ceil(count / 32768), 1];
    },
  });
  return layout;
}

function readsVectors({ columns, inputWidth = columns, inputOffset = 0 }: HalfRows): boolean {
  return columns % 4 === 0 && inputWidth % 4 === 0 && inputOffset % 4 === 0;
}

function halfCode(rows: HalfRows, { stride, scales }: HalfLayout, builder: Builder): string {
  const { columns, inputWidth = columns, inputOffset = 0, norm, each = 1 } = rows;
  const threads = stride <= 128 ? 64 : 256;
  const turns = Math.ceil(stride / threads);
  const kept = turns <= KEPT;
  const read = readsVectors(rows)
    ? `  if (v >= ${columns / 4}u) { return vec4f(); }
  return x[row * ${inputWidth / 4}u + ${inputOffset / 4}u + v];`
    : `  var found = vec4f();
  for (var i = 0u; i < 4u; i++) {
    if (4u * v + i < ${columns}u) { found[i] = x[row * ${inputWidth}u + ${inputOffset}u + 4u * v + i]; }
  }
  return found;`;
  /** For each vector of eight of a thread: `body` on `a` and `b`, its halves, and its place `v`. */
  const overRow = (body: string) =>
    unrolled(turns, (j) => {
      const inside = (j + 1) * threads <= stride;
      const [a, b] = kept ? [`a${j}`, `b${j}`] : ['inputAt(row, 2u * v)', 'inputAt(row, 2u * v + 1u)'];
      return `  ${inside ? '' : `if (tid + ${j * threads}u < ${stride}u) `}{
    let v = tid + ${j * threads}u;
    let a = ${a};
    let b = ${b};
    ${body}
  }`;
    });
  const loads = kept
    ? unrolled(
        turns,
        (j) => `  let a${j} = inputAt(row, 2u * (tid + ${j * threads}u));
  let b${j} = inputAt(row, 2u * (tid + ${j * threads}u) + 1u);`,
      )
    : '';
  const final = (value: string, v: string) => (norm === undefined ? value : `${value} * (factor * weightAt(${v}))`);
  return /* wgsl */ `
var<workgroup> most: array<u32, ${threads}>;
fn inputAt(row: u32, v: u32) -> vec4f {
${read}
}
// Sizes are compared as integers: there NaN is the largest, and nothing hides it.
fn sizeOf(a: vec4f, b: vec4f) -> u32 {
  let m = max(bitcast<vec4u>(a) & vec4u(0x7fffffffu), bitcast<vec4u>(b) & vec4u(0x7fffffffu));
  return max(max(m.x, m.y), max(m.z, m.w));
}
fn put(row: u32, v: u32, a: vec4f, b: vec4f) {
  let at = 4u * (row * ${stride}u + v);
  halves[at] = pack2x16float(a.xz);
  halves[at + 1u] = pack2x16float(a.yw);
  halves[at + 2u] = pack2x16float(b.xz);
  halves[at + 3u] = pack2x16float(b.yw);
}
${
  rows.normed === undefined
    ? ''
    : `fn keep(row: u32, v: u32, value: vec4f) {
  for (var i = 0u; i < 4u; i++) {
    if (4u * v + i < ${columns}u) { normed[row * ${columns}u + 4u * v + i] = value[i]; }
  }
}`
}
${
  norm === undefined
    ? ''
    : `var<workgroup> squares: array<f32, ${threads}>;
fn weightAt(v: u32) -> vec4f {
  var found = vec4f();
  for (var i = 0u; i < 4u; i++) {
    if (4u * v + i < ${columns}u) { found[i] = normWeight[4u * v + i]; }
  }
  return found;
}`
}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let row = wg.y * 32768u + wg.x;
  if (row >= min(step[${builder.step.rows}u], ${builder.rows}u) * ${each}u) { return; }
${loads}
${
  norm === undefined
    ? ''
    : `  var sum = 0.0;
${overRow('sum += dot(a, a) + dot(b, b);')}
  squares[tid] = sum;
${overTree(threads, (n) => `squares[tid] += squares[tid + ${n}u];`)}
  let factor = inverseSqrt(squares[0] / ${f32Literal(columns)} + ${f32Literal(norm.epsilon)});`
}
  var largest = 0u;
${overRow(`largest = max(largest, sizeOf(${final('a', '2u * v')}, ${final('b', '2u * v + 1u')}));`)}
  most[tid] = largest;
${overTree(threads, (n) => `most[tid] = max(most[tid], most[tid + ${n}u]);`)}
  // The row's largest value goes to 2^14 … 2^15. Both factors are powers of two within the range of f32.
  let exponent = max(most[0] >> 23u, 15u);
  let finite = exponent < 255u;
  let into = bitcast<f32>(select(0u, (268u - min(exponent, 254u)) << 23u, finite));
  if (tid == 0u) { halves[${4 * scales}u + row] = select(0x7fc00000u, (exponent - 14u) << 23u, finite); }
${overRow(`let p = ${final('a', '2u * v')};
    let q = ${final('b', '2u * v + 1u')};
    put(row, v, p * into, q * into);${rows.normed === undefined ? '' : '\n    keep(row, 2u * v, p);\n    keep(row, 2u * v + 1u, q);'}`)}
}`;
}

/** Combines what the threads have at `tid` into what is at 0, in rounds whose order the number of threads alone decides. */
function overTree(threads: number, combine: (distance: number) => string): string {
  const rounds: string[] = [];
  for (let n = threads / 2; n >= 1; n /= 2) rounds.push(`  workgroupBarrier();\n  if (tid < ${n}u) { ${combine(n)} }`);
  return `${rounds.join('\n')}\n  workgroupBarrier();`;
}
