/**
 * Attention of prompt rows on subgroup matrices: as `attention-prompt.ts`, with both products on f16 with f32 sums.
 * Weighted values stay in registers from page to page, where nothing can scale them by rows: the score that a row's weights
 * are relative to moves only when a page's largest is far above it, and then the values go through workgroup memory once.
 * What a row is relative to is its own affair, so its bits are those of any tile.
 */

import type { AttentionOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { reachCode } from './attention-reach.ts';
import { type Bound, declare, f32Literal, LEAST, readValue, STEP, writeValue } from './snippets.ts';

/** Elements of a matrix's side. */
const SIDE = 16;
/** Query vectors of a tile: rows times the query heads that share a key head. */
const QUERIES = 64;
/** Two subgroups share 16 query vectors: each has half of a page's keys, and then half of the values' columns. */
const SUBGROUPS = (QUERIES / SIDE) * 2;
const LANES = 32;
const THREADS = SUBGROUPS * LANES;
/** Lanes of a query outside of products. */
const SHARE = THREADS / QUERIES;
/** Columns of the scratch that scores, and weighted values on their way, go through. */
const SCRATCH = 64;
/**
 * Workgroup memory is one array of 16 bytes each, so that all of it is aligned as matrices must be. Between its rows: fours
 * of f32, eights of f16, one more than they hold, so that neighbours differ in bank.
 */
const SCORE_PITCH = SCRATCH / 4 + 1;
const WEIGHT_PITCH = SCRATCH / 8 + 1;
/** How far, in powers of 2, a score may rise above what its row is relative to: f16 holds weights up to 2^15. */
const HEADROOM = 8;
/** What a row is relative to before it has seen anything: far above what it does not see, far below all else. */
const NOTHING = '-1e38f';

const lines = (count: number, line: (i: number) => string) =>
  Array.from({ length: count }, (_, i) => line(i)).join('\n');

export function promptMatrixDispatch(operation: AttentionOperation, builder: Builder): Dispatch {
  const { layer, query, output, heads, kvHeads, headDim, valueDim, scale, sinks } = operation;
  const reach = reachCode(operation);
  const group = heads / kvHeads;
  const tileRows = Math.floor(QUERIES / group);
  const used = tileRows * group;
  const pitch = Math.max(headDim, valueDim) / 8 + 1;
  const keySteps = headDim / SIDE;
  const valueBlocks = valueDim / SIDE;
  const rounds = Math.ceil(valueDim / SCRATCH);
  const { text, bindings } = declare([
    [readValue(query), 'query', 'vec4f'],
    [{ kind: 'cache', layer, part: 'keys', access: 'read' }, 'keys', 'vec4u'],
    [{ kind: 'cache', layer, part: 'values', access: 'read' }, 'values', 'vec4u'],
    [writeValue(output), 'output', 'vec4f'],
    STEP,
    ...(sinks === undefined ? [] : [[{ kind: 'weight', name: sinks }, 'sinks', 'f32'] satisfies Bound]),
  ]);
  const at = builder.step;
  const scoresAt = PAGE_ROWS * pitch;
  const weightsAt = scoresAt + QUERIES * SCORE_PITCH;

  /** A thread's parts of a page are eights of its rows, one row after the other. */
  const eights = { keys: headDim / 8, values: valueDim / 8 };
  type Part = keyof typeof eights;
  const partsOf = (part: Part) => Math.ceil((PAGE_ROWS * eights[part]) / THREADS);
  const entry = (j: number) => (j === 0 ? 'thread' : `(thread + ${j * THREADS}u)`);
  /** `line` of each part, guarded where a page has fewer. */
  const each = (part: Part, line: (j: number) => string) =>
    lines(partsOf(part), (j) =>
      (j + 1) * THREADS > PAGE_ROWS * eights[part]
        ? `      if (${entry(j)} < ${PAGE_ROWS * eights[part]}u) { ${line(j)} }`
        : `      ${line(j)}`,
    );
  const fetch = (part: Part) =>
    each(
      part,
      (j) => `part${j} = ${part}[(page * ${kvHeads}u + kvHead) * ${PAGE_ROWS * eights[part]}u + ${entry(j)}];`,
    );
  const put = (part: Part) =>
    each(
      part,
      (j) => `memory[${entry(j)} / ${eights[part]}u * ${pitch}u + ${entry(j)} % ${eights[part]}u] = part${j};`,
    );

  const left = `subgroup_matrix_left<f16, ${SIDE}, ${SIDE}>`;
  const right = `subgroup_matrix_right<f16, ${SIDE}, ${SIDE}>`;
  const result = `subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>`;
  /** The n-th block of values of a subgroup: two in each round of columns. A block beyond the last is the last again. */
  const valueBlock = (n: number) => {
    const first = Math.floor(n / 2) * 4 + (n % 2);
    return first + 2 < valueBlocks ? `(${first}u + 2u * side)` : `min(${first}u + 2u * side, ${valueBlocks - 1}u)`;
  };
  const mine = rounds * 2;
  /** Puts the weighted values of a round of columns into the scratch, and takes them back. */
  const spill = (round: number) =>
    lines(
      2,
      (i) =>
        `        subgroupMatrixStore<row_major>(&memory, scratch + side * 8u + ${i * 4}u, mixed${round * 2 + i}, ${SCORE_PITCH}u);`,
    );
  const refill = (round: number) =>
    lines(
      2,
      (i) =>
        `        mixed${round * 2 + i} = subgroupMatrixLoad<${result}, row_major>(&memory, scratch + side * 8u + ${i * 4}u, ${SCORE_PITCH}u);`,
    );
  /** A lane's fours of a row of the scratch, beyond its first: two by two. */
  const fours = SCRATCH / 4 / SHARE;
  const four = (j: number) => Math.floor(j / 2) * 2 * SHARE + (j % 2);

  /** WGSL of which of a lane's positions its row does not see. */
  const hidden = (j: number) => {
    const position = `(vec4u(start + share * 8u + ${four(j) * 4}u) + vec4u(0u, 1u, 2u, 3u))`;
    const beyond = `${position} >= vec4u(ownVisible)`;
    return reach.limited ? `(${beyond}) | (${position} < vec4u(ownBegin))` : beyond;
  };

  return {
    label: `layers.${layer}.attention prompt`,
    bindings,
    code: `enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
${text}
// Rows of the queries, then of a page's keys and values in turn; of scores, or weighted values on their way; of weights.
var<workgroup> memory: array<vec4u, ${weightsAt + QUERIES * WEIGHT_PITCH}>;
var<workgroup> moved: atomic<u32>;
${reach.functions}

fn largest(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
fn total(x: vec4f) -> f32 { return (x.x + x.y) + (x.z + x.w); }
fn halves(low: vec4f, high: vec4f) -> vec4u {
  return vec4u(bitcast<vec2u>(vec4<f16>(low)), bitcast<vec2u>(vec4<f16>(high)));
}

@compute @workgroup_size(${THREADS})
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroupId: u32,
  @builtin(subgroup_invocation_id) invocation: u32,
) {
  // What they are anyway; a compiler then knows their bounds.
  let subgroup = subgroupId % ${SUBGROUPS}u;
  let lane = invocation % ${LANES}u;
  let rows = step[${at.rows}];
  let tiles = (rows + ${tileRows - 1}u) / ${tileRows}u;
  if (workgroup.y >= tiles) { return; }
  // The last rows see the most: they begin first.
  let firstRow = (tiles - 1u - workgroup.y) * ${tileRows}u;
  let endRow = min(firstRow + ${tileRows}u, rows);
  let kvHead = workgroup.x;
  let block = subgroup / 2u;
  let side = subgroup % 2u;
  let scratch = ${scoresAt}u + block * ${SIDE * SCORE_PITCH}u;
  let slot = subgroup * ${LANES / SHARE}u + lane / ${SHARE}u;
  let share = lane % ${SHARE}u;
  let ownRow = firstRow + slot / ${group}u;
  let ownScratch = ${scoresAt}u + slot * ${SCORE_PITCH}u + share * 2u;
  let ownWeights = ${weightsAt}u + slot * ${WEIGHT_PITCH}u + share;

  for (var i = thread; i < ${QUERIES * eights.keys}u; i += ${THREADS}u) {
    let entry = i / ${eights.keys}u;
    let eighth = i % ${eights.keys}u;
    let row = firstRow + entry / ${group}u;
    var packed = vec4u();
    if (entry < ${used}u && row < endRow) {
      let start = (row * ${heads}u + kvHead * ${group}u + entry % ${group}u) * ${headDim / 4}u + eighth * 2u;
      // Scores are powers of 2.
      packed = halves(query[start] * ${f32Literal(scale * Math.LOG2E)}, query[start + 1u] * ${f32Literal(scale * Math.LOG2E)});
    }
    memory[entry * ${pitch}u + eighth] = packed;
  }
  workgroupBarrier();
${lines(
  keySteps,
  (k) =>
    `  let query${k} = subgroupMatrixLoad<${left}, row_major>(&memory, block * ${SIDE * pitch}u + ${k * 2}u, ${pitch}u);`,
)}

  // Rows of one sequence after each other are a segment, which is a pass of its own over all of the tile.
  var begin = firstRow;
  while (begin < endRow) {
    let tableStart = ${at.pages}u + step[${at.pageStarts}u + begin];
    var finish = begin + 1u;
    while (finish < endRow && ${at.pages}u + step[${at.pageStarts}u + finish] == tableStart) { finish++; }
    let visible = step[${at.positions}u + finish - 1u] + 1u;
    let lastPage = (visible - 1u) / ${PAGE_ROWS}u;
    // Rows are in order: the first of them sees what is farthest back.
    let firstNumber = ${reach.limited ? `${reach.firstPage(`(step[${at.positions}u + begin] + 1u)`)} / ${PAGE_ROWS}u` : '0u'};
    let kept = slot < ${used}u && ownRow >= begin && ownRow < finish;
    var ownVisible = 0u;
    if (kept) { ownVisible = step[${at.positions}u + ownRow] + 1u; }
    var base = ${NOTHING};
    var sum = 0f;
${lines(mine, (n) => `    var mixed${n} = ${result}();`)}
${lines(Math.max(partsOf('keys'), partsOf('values')), (j) => `    var part${j} = vec4u();`)}
${reach.limited ? `    let ownBegin = ${reach.first('max(ownVisible, 1u)')};\n` : ''}    var page = step[tableStart + firstNumber];
${fetch('keys')}

    for (var number = firstNumber; number <= lastPage; number++) {
      let start = number * ${PAGE_ROWS}u;
      let nextPage = step[tableStart + min(number + 1u, lastPage)];
      workgroupBarrier();
${put('keys')}
      if (thread == 0u) { atomicStore(&moved, 0u); }
${fetch('values')}
      workgroupBarrier();

${lines(2, (n) => `      var score${n} = ${result}();`)}
${lines(keySteps, (k) =>
  lines(
    2,
    (n) => `      score${n} = subgroupMatrixMultiplyAccumulate(query${k},
        subgroupMatrixLoad<${right}, col_major>(&memory, (side * 2u + ${n}u) * ${SIDE * pitch}u + ${k * 2}u, ${pitch}u), score${n});`,
  ),
)}
${lines(
  2,
  (n) => `      subgroupMatrixStore<row_major>(&memory, scratch + side * 8u + ${n * 4}u, score${n}, ${SCORE_PITCH}u);`,
)}
      workgroupBarrier();

      if (number == lastPage) {
        // A weight of 0 would not keep out what is no number.
${each('values', (j) => `if (start + ${entry(j)} / ${eights.values}u >= visible) { part${j} = vec4u(); }`)}
      }
${put('values')}
      page = nextPage;
${fetch('keys')}
${lines(fours, (j) => `      var own${j} = bitcast<vec4f>(memory[ownScratch + ${four(j)}u]);`)}
      if (start + ${PAGE_ROWS}u > ownVisible${reach.limited ? ' || start < ownBegin' : ''}) {
${lines(
  fours,
  (j) => `        own${j} = select(
          own${j},
          vec4f(${LEAST}),
          ${hidden(j)},
        );`,
)}
      }
      var top = max(max(largest(own0), largest(own1)), max(largest(own2), largest(own3)));
      top = max(top, subgroupShuffleXor(top, 1u));
      top = max(top, subgroupShuffleXor(top, 2u));
      var decay = 1f;
      if (top > base + ${HEADROOM}f) {
        decay = exp2(base - top);
        base = top;
        if (number > firstNumber) { atomicStore(&moved, 1u); }
      }
${lines(fours, (j) => `      let weight${j} = exp2(own${j} - vec4f(base));`)}
      sum = fma(sum, decay, (total(weight0) + total(weight1)) + (total(weight2) + total(weight3)));
      memory[ownWeights] = halves(weight0, weight1);
      memory[ownWeights + ${SHARE}u] = halves(weight2, weight3);
      if (workgroupUniformLoad(&moved) != 0u) {
${lines(
  rounds,
  (r) => `${spill(r)}
        workgroupBarrier();
${lines(
  fours,
  (j) =>
    `        memory[ownScratch + ${four(j)}u] = bitcast<vec4u>(decay * bitcast<vec4f>(memory[ownScratch + ${four(j)}u]));`,
)}
        workgroupBarrier();
${refill(r)}
        workgroupBarrier();`,
)}
      }
${lines(
  PAGE_ROWS / SIDE,
  (k) => `      {
        let weights = subgroupMatrixLoad<${left}, row_major>(&memory, ${weightsAt + k * 2}u + block * ${SIDE * WEIGHT_PITCH}u, ${WEIGHT_PITCH}u);
${lines(
  mine,
  (n) => `        mixed${n} = subgroupMatrixMultiplyAccumulate(weights,
          subgroupMatrixLoad<${right}, row_major>(&memory, ${k * SIDE * pitch}u + ${valueBlock(n)} * 2u, ${pitch}u), mixed${n});`,
)}
      }`,
)}
    }

    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
${sinks === undefined ? '' : `    // A sink is a score more, of no value.\n    sum += exp2(sinks[kvHead * ${group}u + slot % ${group}u] * ${f32Literal(Math.LOG2E)} - base);\n`}    let place = (ownRow * ${heads}u + kvHead * ${group}u + slot % ${group}u) * ${valueDim / 4}u;
${lines(
  rounds,
  (r) => `    workgroupBarrier();
${spill(r)}
    workgroupBarrier();
${lines(
  fours,
  (j) => `    {
      let four = share * 2u + ${r * (SCRATCH / 4) + four(j)}u;
      if (kept && four < ${valueDim / 4}u) {
        // A zero is a positive one: its sign could tell how many masked positions were added.
        let value = bitcast<vec4f>(memory[ownScratch + ${four(j)}u]) / sum;
        output[place + four] = select(value, vec4f(), value == vec4f());
      }
    }`,
)}`,
)}
    begin = finish;
  }
}
`,
    workgroups: ({ rows }) => [kvHeads, Math.ceil(rows / tileRows), 1],
  };
}
