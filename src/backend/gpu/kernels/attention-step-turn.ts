/**
 * What a chunk of a step row's attention does besides where it turns the row's queries and key itself
 * (`attention-step-matrix.ts`): the row's own key and value come from its projections, everybody else's from the cache.
 */

import type { AttentionOperation, RotateOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import { encodeFour } from './attention-cache.ts';
import { headLanes, LANE_ELEMENTS, partnerMask } from './head-lanes.ts';

/**
 * Pieces of the loop over a chunk's pages, in which the row itself is at `newest` of a page, or nowhere. A thread has eight
 * elements of a head: its `thread % lanes`-th.
 */
export interface Turning {
  readonly functions: string;
  /** Before the loop: reads what the row brings, so that it is there before the page is. */
  readonly read: string;
  /** After it, once `visible` is known. */
  readonly angles: string;
  /** Before the page is loaded. */
  readonly start: string;
  /** The row of a page that is loaded in place of `row`: another one, where that is the row itself. */
  besides(row: string): string;
  /** In the first round: the thread's part of a query, scaled as scores are, to `low` and `high`; and of the key. */
  readonly turn: string;
  /** After the page is loaded, into `key0` …, `value0` …: the row's own key and value go in, and to the cache. */
  readonly own: string;
}

const range = (count: number) => Array.from({ length: count }, (_, i) => i);

export function turning(
  { heads, kvHeads, headDim, valueDim }: AttentionOperation,
  rotated: RotateOperation,
  given: {
    readonly threads: number;
    /** Fours of a row of projections. */
    readonly rowFours: number;
    /** Workgroups that share a key head. */
    readonly tiles: number;
    /** Query heads of each. */
    readonly tile: number;
    /** WGSL of what queries are multiplied with. */
    readonly scale: string;
  },
): Turning {
  const { threads, rowFours, tiles, tile, scale } = given;
  const lanes = headDim / LANE_ELEMENTS;
  const valueLanes = valueDim / LANE_ELEMENTS;
  const group = heads / kvHeads;
  const mask = partnerMask(rotated);
  const normed = rotated.queryNorm !== undefined || rotated.keyNorm !== undefined;
  const read = (at: string) => `HeadPart(query[${at}], query[${at} + 1u])`;
  /** Statements that turn the variables `query` and `key`, side by side, since each exchange waits for the one before. */
  const both = (line: (kind: 'query' | 'key') => string) => `${line('query')}\n${line('key')}`;
  const exchanged = (x: string, part: string) =>
    `vec4f(${['x', 'y', 'z', 'w'].map((c) => `subgroupShuffleXor(${x}.${part}.${c}, ${mask}u)`).join(', ')})`;
  const squares = range(Math.log2(lanes)).map((i) =>
    both((kind) => `      ${kind}Squares += subgroupShuffleXor(${kind}Squares, ${1 << i}u);`),
  );
  const turn = [
    both((kind) => `      var ${kind}Part = ${kind}Own;`),
    ...(normed
      ? [
          both((kind) => `      var ${kind}Squares = squaresOf(${kind}Part);`),
          ...squares,
          both((kind) => `      ${kind}Part = ${kind}Normed(${kind}Part, ${kind}Squares, ${kind}Weight);`),
        ]
      : []),
    both((kind) => {
      const part = `${kind}Part`;
      return `      let ${kind}Partner = ${mask === 0 ? part : `HeadPart(${exchanged(part, 'low')}, ${exchanged(part, 'high')})`};`;
    }),
    both((kind) => `      ${kind}Part = turned(${kind}Part, ${kind}Partner, angles, lane);`),
  ].join('\n');
  const loads = (name: string, eights: number, line: (own: string, row: string) => string) =>
    range((PAGE_ROWS * eights) / threads)
      .map((j) => `      ${line(`${name}${j}`, `(thread + ${j * threads}u) / ${eights}u`)}`)
      .join('\n');
  return {
    functions: `${encodeFour('f16')}\n${headLanes(rotated)}`,
    read: `  let lane = thread % ${lanes}u;
  let turnedHead = thread / ${lanes}u;
  let rowStart = row * ${rowFours}u;
  let queryStart = rowStart + (kvHead * ${group}u + min(firstHead + turnedHead, ${group - 1}u)) * ${headDim / 4}u + 2u * lane;
  let queryOwn = ${read('queryStart')};
  let keyStart = rowStart + (${heads}u + kvHead) * ${headDim / 4}u + 2u * lane;
  let keyOwn = ${read('keyStart')};
  let valueLane = thread % ${valueLanes}u;
  let valueStart = rowStart + ${((heads + kvHeads) * headDim) / 4}u + kvHead * ${valueDim / 4}u + 2u * valueLane;
  let ownValue = ${read('valueStart')};
  let queryWeight = queryNormAt(lane);
  let keyWeight = keyNormAt(lane);
  var key = vec4u();`,
    angles: '  let angles = anglesAt(lane, visible - 1u);',
    start: `    let newest = select(${PAGE_ROWS}u, filled - 1u, start + filled == visible);`,
    besides: (row) => `((${row}) ^ select(0u, 1u, (${row}) == newest))`,
    turn: `${turn}
      let counts = turnedHead < ${tile}u && firstHead + turnedHead < ${group}u;
      low = select(vec4f(), queryPart.low * ${scale}, counts);
      high = select(vec4f(), queryPart.high * ${scale}, counts);
      key = vec4u(encode(keyPart.low), encode(keyPart.high));`,
    own: `    if (newest < ${PAGE_ROWS}u) {
      let value = vec4u(encode(ownValue.low), encode(ownValue.high));
${loads('key', lanes, (own, entry) => `${own} = select(${own}, key, ${entry} == newest);`)}
      // Beyond the row itself its value stands in for others, which weigh nothing.
${loads('value', valueLanes, (own, entry) => `${own} = select(${own}, value, ${entry} >= newest);`)}
      if (workgroup.y % ${tiles}u == 0u && thread < ${lanes}u) { keys[(origin + newest) * ${lanes}u + thread] = key; }
      if (workgroup.y % ${tiles}u == 0u && thread < ${valueLanes}u) { values[(origin + newest) * ${valueLanes}u + thread] = value; }
    }`,
  };
}
