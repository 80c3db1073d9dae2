/**
 * A chunk of a step row's attention on subgroup matrices. A query head is two rows of a matrix, f16 and what f16 leaves
 * over, and so are its weights: the products lose nothing that f32 would keep. How the context is cut, and how chunks are
 * put together: `attention-cut.ts`. Where no row of a run sees what another one brings, a chunk turns its queries itself,
 * and the last one the row's key, which it stores with its value: the rotation's own dispatch is left out.
 */

import type { AttentionOperation, RotateOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { type Cut, combineDispatch, cutOf, declareParts, PARTS, SUMS } from './attention-cut.ts';
import { turning } from './attention-step-turn.ts';
import { headBindings, turnsByLanes } from './head-lanes.ts';
import { type Bound, declare, f32Literal, LEAST, readValue, STEP } from './snippets.ts';

/** Elements of a matrix's side. */
const SIDE = 16;
const SUBGROUPS = PAGE_ROWS / SIDE;
const THREADS = SUBGROUPS * 32;
/** Query heads of a workgroup: half of a matrix's rows. */
const HEADS = SIDE / 2;
/** Threads that share a head outside of products. */
const SHARE = THREADS / HEADS;
/**
 * Workgroup memory is one array of 16 bytes each, as matrices must be aligned. Between its rows: fours of f32, eights of
 * f16, and some more, so that neighbours differ in bank.
 */
const SCORE_PITCH = PAGE_ROWS / 4 + 2;
const WEIGHT_PITCH = PAGE_ROWS / 8 + 1;

const range = (count: number) => Array.from({ length: count }, (_, i) => i);
const lines = (count: number, line: (i: number) => string) => range(count).map(line).join('\n');

/** All dispatches of a step's attention. */
export function matrixStepDispatches(operation: AttentionOperation, builder: Builder): readonly Dispatch[] {
  const cut = cutOf(operation, builder.context);
  declareParts(operation, builder, cut);
  const combine = combineDispatch(operation, builder, { cut, subgroups: true });
  const { rotated, valueDim, query } = operation;
  if (rotated === undefined || !turnsByLanes(rotated) || THREADS % (valueDim / 8) !== 0) {
    return [chunkDispatch(operation, builder, { cut }), combine];
  }
  builder.leaveOut('step', query, ({ alone }) => alone === true);
  const where = (dispatch: Dispatch, turns: boolean): Dispatch => ({
    ...dispatch,
    workgroups: (run) => ((run.alone === true) === turns ? dispatch.workgroups(run) : [0, 0, 0]),
  });
  return [
    where(chunkDispatch(operation, builder, { cut, rotated }), true),
    where(chunkDispatch(operation, builder, { cut }), false),
    combine,
  ];
}

const left = `subgroup_matrix_left<f16, ${SIDE}, ${SIDE}>`;
const right = `subgroup_matrix_right<f16, ${SIDE}, ${SIDE}>`;
const result = `subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>`;

/** @param rotated what the kernel does itself; absent: it is done */
function chunkDispatch(
  operation: AttentionOperation,
  builder: Builder,
  { cut, rotated }: { readonly cut: Cut; readonly rotated?: RotateOperation },
): Dispatch {
  const { layer, query, heads, kvHeads, headDim, valueDim, scale } = operation;
  const { chunks, reach } = cut;
  const group = heads / kvHeads;
  const tiles = Math.ceil(group / HEADS);
  const tile = Math.ceil(group / tiles);
  const keyEights = headDim / 8;
  const valueEights = valueDim / 8;
  const keyPitch = keyEights + 1;
  const valuePitch = valueEights + 1;
  const mixedPitch = valueDim / 4 + 2;
  // Keys, then values and then weighted ones; queries and then scores; weights. As little as that, so that it fits twice in
  // what a core of a device has: workgroups side by side hide what each of them waits for.
  const queriesAt = PAGE_ROWS * Math.max(keyPitch, valuePitch);
  const weightsAt = queriesAt + SIDE * Math.max(keyPitch, SCORE_PITCH);
  const cache = (part: 'keys' | 'values'): Bound => {
    return [{ kind: 'cache', layer, part, access: rotated === undefined ? 'read' : 'write' }, part, 'vec4u'];
  };
  const { text, bindings } = declare([
    [readValue(rotated?.input ?? query), 'query', 'vec4f'],
    ...(rotated === undefined ? [] : headBindings(rotated)),
    cache('keys'),
    cache('values'),
    [{ kind: 'buffer', name: PARTS, access: 'write' }, 'parts', 'vec4f'],
    [{ kind: 'buffer', name: SUMS, access: 'write' }, 'sums', 'vec2f'],
    STEP,
  ]);
  const at = builder.step;
  const valueBlocks = valueDim / SIDE;
  const valueFours = valueDim / 4;
  const fours = Math.ceil(valueFours / SHARE);
  // Scores are powers of 2.
  const factor = f32Literal(scale * Math.LOG2E);
  const turn =
    rotated &&
    turning(operation, rotated, {
      threads: THREADS,
      rowFours: builder.width(rotated.input) / 4,
      tiles,
      tile,
      scale: factor,
    });
  const readQuery = `      let head = thread / ${keyEights}u;
      if (head < ${tile}u && firstHead + head < ${group}u) {
        let start = (row * ${heads}u + kvHead * ${group}u + firstHead + head) * ${headDim / 4}u + thread % ${keyEights}u * 2u;
        low = query[start] * ${factor};
        high = query[start + 1u] * ${factor};
      }`;
  const isFour = (j: number) => ((j + 1) * SHARE > valueFours ? `if (share + ${j * SHARE}u < ${valueFours}u) ` : '');
  const blocks = Math.ceil(valueBlocks / SUBGROUPS);

  return {
    label: `layers.${layer}.attention chunks`,
    bindings,
    code: `enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
${text}
${cut.code}
${turn?.functions ?? ''}
// Of queries, scores, weights and weighted values, heads first and then their rests.
var<workgroup> memory: array<vec4u, ${weightsAt + SIDE * WEIGHT_PITCH}>;

fn largest(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
fn total(x: vec4f) -> f32 { return (x.x + x.y) + (x.z + x.w); }

@compute @workgroup_size(${THREADS})
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroupId: u32,
) {
  let row = workgroup.z;
  let chunk = workgroup.x;
  let kvHead = workgroup.y / ${tiles}u;
  let firstHead = (workgroup.y % ${tiles}u) * ${tile}u;
${turn?.read ?? ''}
  let visible = step[${at.positions}u + row] + 1u;
${turn?.angles ?? ''}
  let table = ${at.pages}u + step[${at.pageStarts}u + row];
${
  reach.limited
    ? `  let begin = ${reach.first('visible')};
  let length = chunkLength(visible - ${reach.firstPage('visible')});
  let first = ${reach.firstPage('visible')} + chunk * length;`
    : `  let length = chunkLength(visible);
  let first = chunk * length;`
}
  if (first >= visible) { return; }
  let end = min(visible, first + length);
  // What it is anyway; a compiler then knows its bound.
  let subgroup = subgroupId % ${SUBGROUPS}u;
  let ownHead = thread / ${SHARE}u;
  let share = thread % ${SHARE}u;
  var top = ${LEAST};
  var sum = 0f;
  var low = vec4f();
  var high = vec4f();
${lines(fours, (j) => `  var mixed${j} = vec4f();`)}

  for (var start = first; start < end; start += ${PAGE_ROWS}u) {
    let page = step[table + start / ${PAGE_ROWS}u];
    let filled = min(${PAGE_ROWS}u, end - start);
    let origin = (page * ${kvHeads}u + kvHead) * ${PAGE_ROWS}u;
${turn?.start ?? ''}
    // All loads first, so that they travel together. Beyond the end keys do not count, and values are read again from the last.
${held('key', keyEights)}
${held('value', valueEights)}
${each(keyEights, (j, entry) => {
  const place = turn && `${turn.besides(`${entry} / ${keyEights}u`)} * ${keyEights}u + ${entry} % ${keyEights}u`;
  return `key${j} = keys[origin * ${keyEights}u + ${place ?? entry}];`;
})}
${each(valueEights, (j, entry) => {
  const seen = `min(${entry} / ${valueEights}u, filled - 1u)`;
  return `value${j} = values[(origin + ${turn?.besides(seen) ?? seen}) * ${valueEights}u + ${entry} % ${valueEights}u];`;
})}
    if (start == first) {
${turn?.turn ?? readQuery}
    }
${turn?.own ?? ''}
    if (start != first) { workgroupBarrier(); }
    {
      let head = thread / ${keyEights}u;
      let eighth = thread % ${keyEights}u;
      if (head < ${HEADS}u) {
        let lowHalf = vec4<f16>(low);
        let highHalf = vec4<f16>(high);
        let place = ${queriesAt}u + head * ${keyPitch}u + eighth;
        memory[place] = vec4u(bitcast<vec2u>(lowHalf), bitcast<vec2u>(highHalf));
        memory[place + ${HEADS * keyPitch}u] =
          vec4u(bitcast<vec2u>(vec4<f16>(low - vec4f(lowHalf))), bitcast<vec2u>(vec4<f16>(high - vec4f(highHalf))));
      }
    }
${each(keyEights, (j, entry) => `memory[${entry} / ${keyEights}u * ${keyPitch}u + ${entry} % ${keyEights}u] = key${j};`)}
    workgroupBarrier();
    var score = ${result}();
${lines(
  headDim / SIDE,
  (k) => `    score = subgroupMatrixMultiplyAccumulate(
      subgroupMatrixLoad<${left}, row_major>(&memory, ${queriesAt + k * 2}u, ${keyPitch}u),
      subgroupMatrixLoad<${right}, col_major>(&memory, subgroup * ${SIDE * keyPitch}u + ${k * 2}u, ${keyPitch}u), score);`,
)}
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&memory, ${queriesAt}u + subgroup * 4u, score, ${SCORE_PITCH}u);
    workgroupBarrier();
${each(valueEights, (j, entry) => `memory[${entry} / ${valueEights}u * ${valuePitch}u + ${entry} % ${valueEights}u] = value${j};`)}
    let place = ${queriesAt}u + ownHead * ${SCORE_PITCH}u + share;
    let slots = vec4u(share * 4u) + vec4u(0u, 1u, 2u, 3u);
    let seen = ${reach.limited ? '(slots < vec4u(filled)) & (slots + vec4u(start) >= vec4u(begin))' : 'slots < vec4u(filled)'};
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
    let words = bitcast<vec2u>(half);
    let rests = bitcast<vec2u>(vec4<f16>(weight - vec4f(half)));
    let weightPlace = ${weightsAt}u + ownHead * ${WEIGHT_PITCH}u + share / 2u;
    let component = share % 2u * 2u;
    memory[weightPlace][component] = words.x;
    memory[weightPlace][component + 1u] = words.y;
    memory[weightPlace + ${HEADS * WEIGHT_PITCH}u][component] = rests.x;
    memory[weightPlace + ${HEADS * WEIGHT_PITCH}u][component + 1u] = rests.y;
    workgroupBarrier();
${lines(blocks, (i) => `    var mix${i} = ${result}();`)}
${lines(
  PAGE_ROWS / SIDE,
  (k) => `    {
      let weights = subgroupMatrixLoad<${left}, row_major>(&memory, ${weightsAt + k * 2}u, ${WEIGHT_PITCH}u);
${lines(
  blocks,
  (i) => `      mix${i} = subgroupMatrixMultiplyAccumulate(weights,
        subgroupMatrixLoad<${right}, row_major>(&memory, ${k * SIDE * valuePitch}u + ${blockOf(i, valueBlocks)} * 2u, ${valuePitch}u), mix${i});`,
)}
    }`,
)}
    workgroupBarrier();
${lines(blocks, (i) => {
  const store = `subgroupMatrixStore<row_major>(&memory, ${blockOf(i, valueBlocks)} * 4u, mix${i}, ${mixedPitch}u);`;
  return (i + 1) * SUBGROUPS > valueBlocks
    ? `    if (subgroup + ${i * SUBGROUPS}u < ${valueBlocks}u) { ${store} }`
    : `    ${store}`;
})}
    workgroupBarrier();
${lines(
  fours,
  (j) => `    ${isFour(j)}{
      let place = ownHead * ${mixedPitch}u + share + ${j * SHARE}u;
      let mix = bitcast<vec4f>(memory[place]) + bitcast<vec4f>(memory[place + ${HEADS * mixedPitch}u]);
      mixed${j} = fma(mixed${j}, vec4f(decay), mix);
    }`,
)}
  }

${lines(Math.log2(SHARE), (i) => `  sum += subgroupShuffleXor(sum, ${SHARE >> (i + 1)}u);`)}
  if (ownHead < ${tile}u && firstHead + ownHead < ${group}u) {
    let head = kvHead * ${group}u + firstHead + ownHead;
    let place = ((row * ${chunks}u + chunk) * ${heads}u + head) * ${valueFours}u + share;
${lines(fours, (j) => `    ${isFour(j)}{ parts[place + ${j * SHARE}u] = mixed${j}; }`)}
    if (share == 0u) { sums[(row * ${heads}u + head) * ${chunks}u + chunk] = vec2f(top, sum); }
  }
}
`,
    workgroups: ({ rows, visible }) => [cut.chunksOf(visible), kvHeads * tiles, rows],
  };
}

/** The i-th block of 16 columns of values of a subgroup; one beyond the last is the last again, which nobody keeps. */
function blockOf(i: number, blocks: number): string {
  const block = `subgroup + ${i * SUBGROUPS}u`;
  return (i + 1) * SUBGROUPS > blocks ? `min(${block}, ${blocks - 1}u)` : `(${block})`;
}

/** Variables for a thread's share of a page: eights of its rows, one row after the other. */
function held(name: string, eights: number): string {
  return lines(Math.ceil((PAGE_ROWS * eights) / THREADS), (j) => `    var ${name}${j} = vec4u();`);
}

/** `line` of each of them. */
function each(eights: number, line: (j: number, entry: string) => string): string {
  return lines(
    (PAGE_ROWS * eights) / THREADS,
    (j) => `    ${line(j, j === 0 ? 'thread' : `(thread + ${j * THREADS}u)`)}`,
  );
}
