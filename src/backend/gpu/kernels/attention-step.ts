/**
 * Attention of step rows on the GPU: the context of each row is cut into chunks, which are attended to side by side and
 * then put together in order (the split of Flash-Decoding, with the running maximum of arXiv 1805.02867). The cut is by
 * position, so the order of a row's sums does not depend on its neighbours.
 */

import type { AttentionOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { cacheBindings, cacheReaders, valuePitch } from './attention-cache.ts';
import { type Cut, combineDispatch, cutOf, declareParts, PARTS, SUMS } from './attention-cut.ts';
import { temperatureCode } from './attention-reach.ts';
import { declare, f32Literal, LEAST, readValue, STEP } from './snippets.ts';

const THREADS = 256;
/** Threads that share a key: each takes every fourth four of its elements. */
const LANES = 4;
/**
 * Query heads and elements of queries that a workgroup holds: they bound its registers and its shared memory. Four heads fit
 * however wide they are: of the widest, 576, they fill 14.5 of the 16 KiB that there are.
 */
const TILE_HEADS = 8;
const WIDE_TILE_HEADS = 4;
const TILE_ELEMENTS = 1024;

const range = (count: number) => Array.from({ length: count }, (_, i) => i);
const powerOfTwoUpTo = (x: number) => 2 ** Math.floor(Math.log2(x));

/** Both dispatches of a step's attention, after its keys and values are stored. */
export function stepDispatches(operation: AttentionOperation, builder: Builder): readonly Dispatch[] {
  const cut = cutOf(operation, builder.context);
  declareParts(operation, builder, cut);
  return [chunkDispatch(operation, builder, cut), combineDispatch(operation, builder, { cut })];
}

/**
 * A workgroup takes one chunk of a row's context, one key head, and up to `TILE_HEADS` of its query heads. Scores: four
 * threads a position. Weighted values: a thread has four elements of a value at every so many positions.
 */
function chunkDispatch(operation: AttentionOperation, builder: Builder, cut: Cut): Dispatch {
  const { chunks, reach } = cut;
  const { layer, query, heads, kvHeads, headDim, valueDim, scale } = operation;
  const pitch = valuePitch(operation);
  const group = heads / kvHeads;
  const keyFours = headDim / 4;
  const keyLoads = Math.ceil(keyFours / LANES);
  const queryFours = keyLoads * LANES;
  const most = Math.max(WIDE_TILE_HEADS, Math.floor(TILE_ELEMENTS / (queryFours * 4)));
  const tiles = Math.ceil(group / Math.min(TILE_HEADS, most));
  const tile = Math.ceil(group / tiles);
  const valueFours = valueDim / 4;
  const slices = powerOfTwoUpTo(Math.min(16, THREADS / valueFours));
  const valueLoads = PAGE_ROWS / slices;
  const scratch = Math.max(tile * THREADS, THREADS * 4);
  /** Query heads whose slices are summed at a time: what `scratch` holds. */
  const atOnce = Math.floor(scratch / (THREADS * 4));
  const { text, bindings } = declare([
    [readValue(query), 'query', 'vec4f'],
    ...cacheBindings(operation, builder.cacheType),
    [{ kind: 'buffer', name: PARTS, access: 'write' }, 'parts', 'f32'],
    [{ kind: 'buffer', name: SUMS, access: 'write' }, 'sums', 'vec2f'],
    STEP,
  ]);
  const at = builder.step;
  const own = range(tile);
  const place = `i % ${PAGE_ROWS}u`;
  const isSeen = reach.limited ? `${place} < filled && start + ${place} >= begin` : `${place} < filled`;

  const products = range(keyLoads)
    .map((load) => {
      const part = `queries[head * ${queryFours}u + ${load * LANES}u + lane]`;
      return load === 0 ? `      var dots = ${part} * key0;` : `      dots = fma(${part}, key${load}, dots);`;
    })
    .join('\n');
  const weighted = own
    .map((head) => {
      const terms = range(valueLoads).map(
        (load) =>
          `      mixed${head} = fma(vec4f(scores[${head * PAGE_ROWS + load * slices}u + slice]), value${load}, mixed${head});`,
      );
      return `      mixed${head} *= decays[${head}];\n${terms.join('\n')}`;
    })
    .join('\n');
  const rounds = range(Math.ceil(tile / atOnce))
    .map((round) => {
      const first = round * atOnce;
      const count = Math.min(atOnce, tile - first);
      const stores = range(count)
        .map((i) =>
          ['x', 'y', 'z', 'w']
            .map((part, c) => `    scratch[${(i * 4 + c) * THREADS}u + thread] = mixed${first + i}.${part};`)
            .join('\n'),
        )
        .join('\n');
      return `  if (mixes) {
${stores}
  }
  workgroupBarrier();
  for (var e = thread; e < ${count * valueDim}u; e += ${THREADS}u) {
    let head = firstHead + ${first}u + e / ${valueDim}u;
    if (head < ${group}u) {
      let d = e % ${valueDim}u;
      let origin = ((e / ${valueDim}u) * 4u + (d & 3u)) * ${THREADS}u + (d >> 2u);
      var sum = scratch[origin];
      for (var s = 1u; s < ${slices}u; s++) { sum += scratch[origin + s * ${valueFours}u]; }
      parts[((row * ${chunks}u + chunk) * ${heads}u + kvHead * ${group}u + head) * ${valueDim}u + d] = sum;
    }
  }
  workgroupBarrier();`;
    })
    .join('\n');

  return {
    label: `layers.${layer}.attention chunks`,
    bindings,
    code: `${text}
${cacheReaders(operation, builder.cacheType)}
${cut.code}
${temperatureCode(operation)}
// Fours beyond the head's width are zero.
var<workgroup> queries: array<vec4f, ${tile * queryFours}>;
var<workgroup> scratch: array<f32, ${scratch}>;
var<workgroup> scores: array<f32, ${tile * PAGE_ROWS}>;
var<workgroup> eighths: array<f32, ${tile * 8}>;
var<workgroup> tops: array<f32, ${tile}>;
var<workgroup> decays: array<f32, ${tile}>;

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.z;
  if (row >= step[${at.rows}]) { return; }
  let chunk = workgroup.x;
  let visible = step[${at.positions}u + row] + 1u;
  let begin = ${reach.first('visible')};
  let origin = ${reach.firstPage('visible')};
  let length = chunkLength(visible - origin);
  let first = origin + chunk * length;
  if (first >= visible) { return; }
  let end = min(visible, first + length);
  let kvHead = workgroup.y / ${tiles}u;
  let firstHead = (workgroup.y % ${tiles}u) * ${tile}u;
  let table = ${at.pages}u + step[${at.pageStarts}u + row];

  for (var i = thread; i < ${tile * queryFours}u; i += ${THREADS}u) {
    let head = min(firstHead + i / ${queryFours}u, ${group - 1}u);
    let four = i % ${queryFours}u;
    var part = vec4f();
    if (four < ${keyFours}u) { part = query[(row * ${heads}u + kvHead * ${group}u + head) * ${keyFours}u + four]; }
    queries[i] = part${operation.temperature === undefined ? '' : ' * temperature(visible)'};
  }
  if (thread < ${tile}u) { tops[thread] = ${LEAST}; }
  workgroupBarrier();

  let position = thread / ${LANES}u;
  let lane = thread % ${LANES}u;
  let mixes = thread < ${slices * valueFours}u;
  let slice = min(thread / ${valueFours}u, ${slices - 1}u);
  let four = thread % ${valueFours}u;
  var sum = 0f;
${own.map((head) => `  var mixed${head} = vec4f();`).join('\n')}

  for (var start = first; start < end; start += ${PAGE_ROWS}u) {
    let page = step[table + start / ${PAGE_ROWS}u];
    let filled = min(${PAGE_ROWS}u, end - start);
    let rowOfPage = (page * ${kvHeads}u + kvHead) * ${PAGE_ROWS}u;
    // All loads first, so that they travel together. What lies beyond the end is read again from the last position.
    let keyStart = (rowOfPage + min(position, filled - 1u)) * ${keyFours}u;
${range(keyLoads)
  .map((load) => {
    const index = `lane + ${load * LANES}u`;
    return `    let key${load} = keyAt(keyStart + ${(load + 1) * LANES > keyFours ? `min(${index}, ${keyFours - 1}u)` : index});`;
  })
  .join('\n')}
${range(valueLoads)
  .map(
    (load) =>
      `    let value${load} = valueAt((rowOfPage + min(slice + ${load * slices}u, filled - 1u)) * ${pitch}u + four);`,
  )
  .join('\n')}
    for (var head = 0u; head < ${tile}u; head++) {
${products}
      scratch[head * ${THREADS}u + thread] = (dots.x + dots.y) + (dots.z + dots.w);
    }
    workgroupBarrier();
    for (var i = thread; i < ${tile * PAGE_ROWS}u; i += ${THREADS}u) {
      let origin = i * ${LANES}u;
      let score = ((scratch[origin] + scratch[origin + 1u]) + (scratch[origin + 2u] + scratch[origin + 3u])) * ${f32Literal(scale * Math.LOG2E)};
      scores[i] = select(${LEAST}, score, ${isSeen});
    }
    workgroupBarrier();
    if (thread < ${tile * 8}u) {
      var top = scores[thread * 8u];
      for (var i = 1u; i < 8u; i++) { top = max(top, scores[thread * 8u + i]); }
      eighths[thread] = top;
    }
    workgroupBarrier();
    if (thread < ${tile}u) {
      let before = tops[thread];
      var top = before;
      for (var i = 0u; i < 8u; i++) { top = max(top, eighths[thread * 8u + i]); }
      tops[thread] = top;
      decays[thread] = select(exp2(before - top), 1f, before == top);
    }
    workgroupBarrier();
    for (var i = thread; i < ${tile * PAGE_ROWS}u; i += ${THREADS}u) {
      scores[i] = select(0f, exp2(scores[i] - tops[i / ${PAGE_ROWS}u]), ${isSeen});
    }
    workgroupBarrier();
    if (thread < ${tile * 8}u) {
      var eighth = scores[thread * 8u];
      for (var i = 1u; i < 8u; i++) { eighth += scores[thread * 8u + i]; }
      sum = fma(sum, decays[thread / 8u], eighth);
    }
    if (mixes) {
${weighted}
    }
    workgroupBarrier();
  }

  if (thread < ${tile * 8}u) { eighths[thread] = sum; }
${rounds}
  if (thread < ${tile}u && firstHead + thread < ${group}u) {
    var all = eighths[thread * 8u];
    for (var i = 1u; i < 8u; i++) { all += eighths[thread * 8u + i]; }
    sums[(row * ${heads}u + kvHead * ${group}u + firstHead + thread) * ${chunks}u + chunk] = vec2f(tops[thread], all);
  }
}
`,
    workgroups: ({ rows, visible }) => [cut.chunksOf(visible), kvHeads * tiles, rows],
  };
}
