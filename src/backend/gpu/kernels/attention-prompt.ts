/**
 * Attention of prompt rows on the GPU: tiles of query vectors go through the pages of their sequence in order, with a
 * running maximum (arXiv 1805.02867, 2205.14135). A row's pages, its order and its limit are its own, so that its result
 * depends neither on the chunk of the prompt nor on what else is in the tile.
 */

import type { AttentionOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { cacheBindings, cacheReaders, valuePitch } from './attention-cache.ts';
import { reachCode, temperatureCode } from './attention-reach.ts';
import { type Bound, declare, f32Literal, LEAST, readValue, STEP, writeValue } from './snippets.ts';

const THREADS = 128;
/** Query vectors of a tile: rows times the query heads that share a key head. */
const QUERIES = 32;
/** A thread has four queries, and of a page's 64 keys every sixteenth four. */
const KEY_THREADS = 16;
/** Fours of a slice of keys and queries in shared memory, and between their rows, so that neighbours differ in bank. */
const SLICE = 4;
const PITCH = SLICE + 1; // What is between has a query's decay: all else fills the 16 KiB that every device has.

const four = [0, 1, 2, 3] as const;
const parts = ['x', 'y', 'z', 'w'] as const;
const each = (count: number, line: (i: number) => string) =>
  Array.from({ length: count }, (_, i) => line(i)).join('\n');

/** The most of a key head's query heads that share a tile, so that all tiles have as many. */
function headsOfTile(group: number): number {
  let heads = Math.min(group, QUERIES);
  while (group % heads !== 0) heads--;
  return heads;
}

/**
 * A workgroup takes one key head, some of its query heads and as many neighbouring rows as fit a tile. Rows of one sequence after each other are a
 * segment; each segment is a pass of its own over all of the tile, of which only the segment's own rows are kept.
 */
export function promptDispatch(operation: AttentionOperation, builder: Builder): Dispatch {
  const { layer, query, output, heads, kvHeads, headDim, valueDim, scale, sinks, temperature } = operation;
  const reach = reachCode(operation);
  const group = heads / kvHeads;
  const tileHeads = headsOfTile(group);
  const headTiles = group / tileHeads;
  const tileRows = Math.floor(QUERIES / tileHeads);
  const used = tileRows * tileHeads;
  const keyFours = headDim / 4;
  const valueFours = valueDim / 4;
  /** Fours of a value that a thread has. */
  const columns = Math.ceil(valueFours / KEY_THREADS);
  const { text, bindings } = declare([
    [readValue(query), 'query', 'vec4f'],
    ...cacheBindings(operation, builder.cacheType),
    [writeValue(output), 'output', 'vec4f'],
    STEP,
    ...(sinks === undefined ? [] : [[{ kind: 'weight', name: sinks }, 'sinks', 'f32'] satisfies Bound]),
  ]);
  const at = builder.step;

  // fma by fma, all queries and keys alike, so that no compiler contracts one row's sums otherwise than another's.
  const products = `${each(4, (q) => `          let query${q} = queries[(firstQuery + ${q}u) * ${PITCH}u + x];`)}
${each(
  4,
  (k) => `          let key${k} = keys4[(${k * KEY_THREADS}u + column) * ${PITCH}u + x];
${each(4, (q) =>
  parts
    .map((part) => `          score${q}.${parts[k]} = fma(query${q}.${part}, key${k}.${part}, score${q}.${parts[k]});`)
    .join('\n'),
)}`,
)}`;
  const mixes = four
    .map(
      (p) =>
        `${each(
          columns,
          (c) => `        let value${p}_${c} = valueAt(start${p} + ${valueColumn(c, valueFours)});
${each(4, (q) => `        mixed${q}_${c} = fma(vec4f(weight${q}.${parts[p]}), value${p}_${c}, mixed${q}_${c});`)}`,
        )}`,
    )
    .join('\n');

  return {
    label: `layers.${layer}.attention prompt`,
    bindings,
    code: `${text}
${cacheReaders(operation, builder.cacheType)}
${reach.functions}
${temperatureCode(operation)}
var<workgroup> queries: array<vec4f, ${QUERIES * PITCH}>;
// Key 4i + j of the page stands at ${KEY_THREADS}j + i.
var<workgroup> keys4: array<vec4f, ${PAGE_ROWS * PITCH}>;
// Scores, then weights, of four keys.
var<workgroup> scores: array<vec4f, ${QUERIES * KEY_THREADS}>;
var<workgroup> quarters: array<f32, ${QUERIES * 4}>;

fn largest(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
fn total(x: vec4f) -> f32 { return (x.x + x.y) + (x.z + x.w); }

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let rows = step[${at.rows}];
  let tiles = (rows + ${tileRows - 1}u) / ${tileRows}u;
  if (workgroup.y >= tiles) { return; }
  // The last rows see the most: they begin first.
  let firstRow = (tiles - 1u - workgroup.y) * ${tileRows}u;
  let endRow = min(firstRow + ${tileRows}u, rows);
  let kvHead = workgroup.x / ${headTiles}u;
  let firstHead = workgroup.x * ${tileHeads}u;
  let firstQuery = thread / ${KEY_THREADS}u * 4u;
  let column = thread % ${KEY_THREADS}u;
  // Of softmax: four threads a query.
  let ownQuery = thread / 4u;
  let ownRow = firstRow + ownQuery / ${tileHeads}u;
  let quarter = thread % 4u;

  var begin = firstRow;
  while (begin < endRow) {
    let tableStart = step[${at.pageStarts}u + begin];
    var finish = begin + 1u;
    while (finish < endRow && step[${at.pageStarts}u + finish] == tableStart) { finish++; }
    let visible = step[${at.positions}u + finish - 1u] + 1u;
    var ownVisible = 0u;
    if (ownQuery < ${used}u && ownRow >= begin && ownRow < finish) { ownVisible = step[${at.positions}u + ownRow] + 1u; }
    ${reach.limited ? `let ownBegin = ${reach.first('max(ownVisible, 1u)')};` : ''}
    // A sink is the first score, of no value: its own weight is e⁰.
    var top = ${sinks === undefined ? LEAST : `sinks[firstHead + ownQuery % ${tileHeads}u]`};
    var sum = ${sinks === undefined ? '0f' : 'select(0f, 1f, quarter == 0u)'};
${each(4, (q) => each(columns, (c) => `    var mixed${q}_${c} = vec4f();`))}

    for (var start = ${reach.firstPage(`(step[${at.positions}u + begin] + 1u)`)}; start < visible; start += ${PAGE_ROWS}u) {
      let page = step[${at.pages}u + tableStart + start / ${PAGE_ROWS}u];
      let rowOfPage = (page * ${kvHeads}u + kvHead) * ${PAGE_ROWS}u;
      let filled = min(${PAGE_ROWS}u, visible - start);
${each(4, (q) => `      var score${q} = vec4f();`)}
      for (var slice = 0u; slice < ${keyFours}u; slice += ${SLICE}u) {
        workgroupBarrier();
        {
          let fourth = slice + thread % ${SLICE}u;
          let slot = thread / ${SLICE}u;
          let row = firstRow + slot / ${tileHeads}u;
          var part = vec4f();
          if (fourth < ${keyFours}u && slot < ${used}u && row < endRow) {
            part = query[(row * ${heads}u + firstHead + slot % ${tileHeads}u) * ${keyFours}u + fourth]${temperature === undefined ? '' : ` * temperature(step[${at.positions}u + row] + 1u)`};
          }
          queries[slot * ${PITCH}u + thread % ${SLICE}u] = part;
          for (var position = slot; position < ${PAGE_ROWS}u; position += ${THREADS / SLICE}u) {
            var keyPart = vec4f();
            if (fourth < ${keyFours}u && position < filled) {
              keyPart = keyAt((rowOfPage + position) * ${keyFours}u + fourth);
            }
            keys4[((position & 3u) * ${KEY_THREADS}u + (position >> 2u)) * ${PITCH}u + thread % ${SLICE}u] = keyPart;
          }
        }
        workgroupBarrier();
        for (var x = 0u; x < ${SLICE}u; x++) {
${products}
        }
      }
${each(4, (q) => `      scores[(firstQuery + ${q}u) * ${KEY_THREADS}u + column] = score${q} * ${f32Literal(scale)};`)}
      workgroupBarrier();

      let scoreStart = ownQuery * ${KEY_THREADS}u + quarter;
${each(
  4,
  (i) => `      let position${i} = vec4u(start + (quarter + ${i * 4}u) * 4u) + vec4u(0u, 1u, 2u, 3u);
      let seen${i} = ${reach.limited ? `(position${i} < vec4u(ownVisible)) & (position${i} >= vec4u(ownBegin))` : `position${i} < vec4u(ownVisible)`};
      let own${i} = select(vec4f(${LEAST}), scores[scoreStart + ${i * 4}u], seen${i});`,
)}
      quarters[thread] = max(max(largest(own0), largest(own1)), max(largest(own2), largest(own3)));
      workgroupBarrier();
      let before = top;
      let quarterStart = ownQuery * 4u;
      top = max(
        max(before, max(quarters[quarterStart], quarters[quarterStart + 1u])),
        max(quarters[quarterStart + 2u], quarters[quarterStart + 3u]),
      );
      let decay = select(exp(before - top), 1f, before == top);
${each(
  4,
  (i) => `      let weight${i} = select(vec4f(), exp(own${i} - vec4f(top)), seen${i});
      scores[scoreStart + ${i * 4}u] = weight${i};`,
)}
      sum = fma(sum, decay, (total(weight0) + total(weight1)) + (total(weight2) + total(weight3)));
      if (quarter == 0u) { queries[ownQuery * ${PITCH}u + ${SLICE}u].x = decay; }
      workgroupBarrier();

${each(4, (q) => each(columns, (c) => `      mixed${q}_${c} *= queries[(firstQuery + ${q}u) * ${PITCH}u + ${SLICE}u].x;`))}
      for (var quad = 0u; quad * 4u < filled; quad++) {
${each(4, (q) => `        let weight${q} = scores[(firstQuery + ${q}u) * ${KEY_THREADS}u + quad];`)}
        // Beyond what is filled weights are 0, and the last value is read again.
${each(4, (p) => `        let start${p} = (rowOfPage + min(quad * 4u + ${p}u, filled - 1u)) * ${valuePitch(operation)}u;`)}
${mixes}
      }
    }

    workgroupBarrier();
    quarters[thread] = sum;
    workgroupBarrier();
${each(
  4,
  (q) => `    {
      let slot = firstQuery + ${q}u;
      let row = firstRow + slot / ${tileHeads}u;
      if (slot < ${used}u && row >= begin && row < finish) {
        let all = (quarters[slot * 4u] + quarters[slot * 4u + 1u]) + (quarters[slot * 4u + 2u] + quarters[slot * 4u + 3u]);
        let start = (row * ${heads}u + firstHead + slot % ${tileHeads}u) * ${valueFours}u;
${each(
  columns,
  (c) => `        if (column + ${c * KEY_THREADS}u < ${valueFours}u) {
          // A zero is a positive one: its sign could tell how many masked positions were added.
          let result = mixed${q}_${c} / all;
          output[start + column + ${c * KEY_THREADS}u] = select(result, vec4f(), result == vec4f());
        }`,
)}
      }
    }`,
)}
    begin = finish;
  }
}
`,
    workgroups: ({ rows }) => [kvHeads * headTiles, Math.ceil(rows / tileRows), 1],
  };
}

/** WGSL of the number of a thread's four of a value; beyond the width the last again, which nobody keeps. */
function valueColumn(c: number, valueFours: number): string {
  const column = `column + ${c * KEY_THREADS}u`;
  return (c + 1) * KEY_THREADS > valueFours ? `min(${column}, ${valueFours - 1}u)` : column;
}
