/**
 * A chunk of a step row's attention on subgroup matrices. A query head is two rows of a matrix, f16 and what f16 leaves
 * over, and so are its weights: the products lose nothing that f32 would keep. How the context is cut, and how chunks are
 * put together: `attention-cut.ts`.
 */

import type { AttentionOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { type Cut, combineDispatch, cutOf, declareParts, PARTS, SUMS } from './attention-cut.ts';
import { declare, f32Literal, LEAST, readValue, STEP } from './snippets.ts';

/** Elements of a matrix's side. */
const SIDE = 16;
const SUBGROUPS = 4;
const THREADS = SUBGROUPS * 32;
/** Query heads of a workgroup: half of a matrix's rows. */
const HEADS = SIDE / 2;
/** Threads that share a head outside of products. */
const SHARE = THREADS / HEADS;
/** Workgroup memory is one array of 16 bytes each, as matrices must be aligned. Between its rows: fours of f32, eights of f16. */
const SCORE_PITCH = PAGE_ROWS / 4 + 2;
const WEIGHT_PITCH = PAGE_ROWS / 8 + 1;

const lines = (count: number, line: (i: number) => string) =>
  Array.from({ length: count }, (_, i) => line(i)).join('\n');

export interface StepVariant {
  readonly unroll?: boolean;
  readonly threads?: number;
  readonly loads?: number;
}

/** Both dispatches of a step's attention, after its keys and values are stored. */
export function matrixStepDispatches(
  operation: AttentionOperation,
  builder: Builder,
  variant: StepVariant = {},
): readonly Dispatch[] {
  const cut = cutOf(operation, builder.context);
  declareParts(operation, builder, cut);
  return [chunkDispatch(operation, builder, cut, variant), combineDispatch(operation, builder, cut, variant)];
}

function chunkDispatch(
  operation: AttentionOperation,
  builder: Builder,
  cut: Cut,
  { unroll = false }: StepVariant,
): Dispatch {
  const { layer, query, heads, kvHeads, headDim, valueDim, scale } = operation;
  const { chunks } = cut;
  const group = heads / kvHeads;
  const tiles = Math.ceil(group / HEADS);
  const tile = Math.ceil(group / tiles);
  const eights = { keys: headDim / 8, values: valueDim / 8 };
  const keyPitch = eights.keys + 1;
  const valuePitch = eights.values + 1;
  const mixedPitch = valueDim / 4 + 2;
  // Values take the place of the keys, weighted ones that of queries and scores.
  const queriesAt = PAGE_ROWS * Math.max(keyPitch, valuePitch);
  const scoresAt = queriesAt + SIDE * keyPitch;
  const weightsAt = queriesAt + SIDE * Math.max(keyPitch + SCORE_PITCH, mixedPitch);
  const size = weightsAt + SIDE * WEIGHT_PITCH;
  const { text, bindings } = declare([
    [readValue(query), 'query', 'vec4f'],
    [{ kind: 'cache', layer, part: 'keys', access: 'read' }, 'keys', 'vec4u'],
    [{ kind: 'cache', layer, part: 'values', access: 'read' }, 'values', 'vec4u'],
    [{ kind: 'buffer', name: PARTS, access: 'write' }, 'parts', 'vec4f'],
    [{ kind: 'buffer', name: SUMS, access: 'write' }, 'sums', 'vec2f'],
    STEP,
  ]);
  const at = builder.step;
  const keyParts = (PAGE_ROWS * eights.keys) / THREADS;
  const valueParts = (PAGE_ROWS * eights.values) / THREADS;
  /** Row and eighth of a thread's j-th part of a page. */
  const rowOf = (of: number, j: number) =>
    THREADS % of === 0 ? `thread / ${of}u + ${(j * THREADS) / of}u` : `(thread + ${j * THREADS}u) / ${of}u`;
  const eighthOf = (of: number, j: number) =>
    THREADS % of === 0 ? `thread % ${of}u` : `(thread + ${j * THREADS}u) % ${of}u`;
  const valueFours = valueDim / 4;
  const fours = Math.ceil(valueFours / SHARE);
  const fourOf = (j: number) =>
    (j + 1) * SHARE > valueFours ? `min(share + ${j * SHARE}u, ${valueFours - 1}u)` : `share + ${j * SHARE}u`;
  const left = `subgroup_matrix_left<f16, ${SIDE}, ${SIDE}>`;
  const right = `subgroup_matrix_right<f16, ${SIDE}, ${SIDE}>`;
  const result = `subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>`;
  const repeat = (count: number, body: (k: string) => string) =>
    unroll
      ? lines(count, (k) => `{ ${body(`${k}u`)} }`)
      : `for (var k = 0u; k < ${count}u + never; k++) { ${body('k')} }`;

  return {
    label: `layers.${layer}.attention chunks`,
    bindings,
    code: `enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
${text}
${cut.code}
// Rows of keys, later of weighted values; of values; of queries, scores and weights, heads first and then their rests.
var<workgroup> memory: array<vec4u, ${size}>;

fn largest(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
fn total(x: vec4f) -> f32 { return (x.x + x.y) + (x.z + x.w); }

@compute @workgroup_size(${THREADS})
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroupId: u32,
) {
  let row = workgroup.z;
  let rows = step[${at.rows}];
  if (row >= rows) { return; }
  let chunk = workgroup.x;
  let visible = step[${at.positions}u + row] + 1u;
  let table = ${at.pages}u + step[${at.pageStarts}u + row];
  let length = chunkLength(visible);
  let first = chunk * length;
  if (first >= visible) { return; }
  let end = min(visible, first + length);
  let kvHead = workgroup.y / ${tiles}u;
  let firstHead = (workgroup.y % ${tiles}u) * ${tile}u;
  let subgroup = subgroupId % ${SUBGROUPS}u;
  let ownHead = thread / ${SHARE}u;
  let share = thread % ${SHARE}u;
${unroll ? '' : '  // Zero, which a compiler cannot know: it would unroll what is read once, and instructions come slower than data.\n  let never = rows >> 31u;'}
  var top = ${LEAST};
  var sum = 0f;
${lines(fours, (j) => `  var mixed${j} = vec4f();`)}

  for (var start = first; start < end; start += ${PAGE_ROWS}u) {
    let page = step[table + start / ${PAGE_ROWS}u];
    let filled = min(${PAGE_ROWS}u, end - start);
    let origin = (page * ${kvHeads}u + kvHead) * ${PAGE_ROWS}u;
    // All loads first, so that they travel together. Beyond the end keys do not count, and values are read again from the last.
${lines(keyParts, (j) => `    let key${j} = keys[origin * ${eights.keys}u + ${j * THREADS}u + thread];`)}
${lines(
  valueParts,
  (j) =>
    `    let value${j} = values[(origin + min(${rowOf(eights.values, j)}, filled - 1u)) * ${eights.values}u + ${eighthOf(eights.values, j)}];`,
)}
    if (start != first) { workgroupBarrier(); }
    {
      let head = thread / ${eights.keys}u;
      let eighth = thread % ${eights.keys}u;
      if (head < ${HEADS}u) {
        var low = vec4f();
        var high = vec4f();
        if (head < ${tile}u && firstHead + head < ${group}u) {
          let start = (row * ${heads}u + kvHead * ${group}u + firstHead + head) * ${headDim / 4}u + eighth * 2u;
          // Scores are powers of 2.
          low = query[start] * ${f32Literal(scale * Math.LOG2E)};
          high = query[start + 1u] * ${f32Literal(scale * Math.LOG2E)};
        }
        let lowHalf = vec4<f16>(low);
        let highHalf = vec4<f16>(high);
        let place = ${queriesAt}u + head * ${keyPitch}u + eighth;
        memory[place] = vec4u(bitcast<vec2u>(lowHalf), bitcast<vec2u>(highHalf));
        memory[place + ${HEADS * keyPitch}u] =
          vec4u(bitcast<vec2u>(vec4<f16>(low - vec4f(lowHalf))), bitcast<vec2u>(vec4<f16>(high - vec4f(highHalf))));
      }
    }
${lines(keyParts, (j) => `    memory[(${rowOf(eights.keys, j)}) * ${keyPitch}u + ${eighthOf(eights.keys, j)}] = key${j};`)}
    workgroupBarrier();
    {
      var score = ${result}();
      ${repeat(
        headDim / SIDE,
        (k) => `score = subgroupMatrixMultiplyAccumulate(
        subgroupMatrixLoad<${left}, row_major>(&memory, ${queriesAt}u + ${k} * 2u, ${keyPitch}u),
        subgroupMatrixLoad<${right}, col_major>(&memory, subgroup * ${SIDE * keyPitch}u + ${k} * 2u, ${keyPitch}u), score);`,
      )}
      subgroupMatrixStore<row_major>(&memory, ${scoresAt}u + subgroup * 4u, score, ${SCORE_PITCH}u);
    }
    workgroupBarrier();
${lines(valueParts, (j) => `    memory[(${rowOf(eights.values, j)}) * ${valuePitch}u + ${eighthOf(eights.values, j)}] = value${j};`)}
    let place = ${scoresAt}u + ownHead * ${SCORE_PITCH}u + share;
    let seen = vec4u(share * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(filled);
    let own = select(
      vec4f(${LEAST}),
      bitcast<vec4f>(memory[place]) + bitcast<vec4f>(memory[place + ${HEADS * SCORE_PITCH}u]),
      seen,
    );
    let before = top;
    top = max(top, largest(own));
${lines(Math.log2(SHARE), (i) => `    top = max(top, subgroupShuffleXor(top, ${SHARE >> (i + 1)}u));`)}
    let decay = exp2(before - top);
    let weight = select(vec4f(), exp2(own - vec4f(top)), seen);
    sum = fma(sum, decay, total(weight));
    let half = vec4<f16>(weight);
    let halves = bitcast<vec2u>(half);
    let rests = bitcast<vec2u>(vec4<f16>(weight - vec4f(half)));
    let weightPlace = ${weightsAt}u + ownHead * ${WEIGHT_PITCH}u + share / 2u;
    let component = share % 2u * 2u;
    memory[weightPlace][component] = halves.x;
    memory[weightPlace][component + 1u] = halves.y;
    memory[weightPlace + ${HEADS * WEIGHT_PITCH}u][component] = rests.x;
    memory[weightPlace + ${HEADS * WEIGHT_PITCH}u][component + 1u] = rests.y;
    workgroupBarrier();
    for (var block = subgroup; block < ${valueDim / SIDE}u; block += ${SUBGROUPS}u) {
      var mix = ${result}();
      ${repeat(
        PAGE_ROWS / SIDE,
        (k) => `mix = subgroupMatrixMultiplyAccumulate(
        subgroupMatrixLoad<${left}, row_major>(&memory, ${weightsAt}u + ${k} * 2u, ${WEIGHT_PITCH}u),
        subgroupMatrixLoad<${right}, row_major>(&memory, ${k} * ${SIDE * valuePitch}u + block * 2u, ${valuePitch}u), mix);`,
      )}
      subgroupMatrixStore<row_major>(&memory, ${queriesAt}u + block * 4u, mix, ${mixedPitch}u);
    }
    workgroupBarrier();
${lines(
  fours,
  (j) => `    {
      let place = ${queriesAt}u + ownHead * ${mixedPitch}u + ${fourOf(j)};
      let mix = bitcast<vec4f>(memory[place]) + bitcast<vec4f>(memory[place + ${HEADS * mixedPitch}u]);
      mixed${j} = fma(mixed${j}, vec4f(decay), mix);
    }`,
)}
  }

${lines(Math.log2(SHARE), (i) => `  sum += subgroupShuffleXor(sum, ${SHARE >> (i + 1)}u);`)}
  if (ownHead < ${tile}u && firstHead + ownHead < ${group}u) {
    let head = kvHead * ${group}u + firstHead + ownHead;
    let place = ((row * ${chunks}u + chunk) * ${heads}u + head) * ${valueFours}u;
${lines(
  fours,
  (j) =>
    `    ${(j + 1) * SHARE > valueFours ? `if (share + ${j * SHARE}u < ${valueFours}u) ` : ''}{ parts[place + share + ${j * SHARE}u] = mixed${j}; }`,
)}
    if (share == 0u) { sums[(row * ${heads}u + head) * ${chunks}u + chunk] = vec2f(top, sum); }
  }
}
`,
    workgroups: ({ rows, visible }) => [cut.chunksOf(visible), kvHeads * tiles, rows],
  };
}
