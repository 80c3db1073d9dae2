/**
 * How the context of a step row is cut into chunks that are attended to side by side, and how these are put together again
 * (the split of Flash-Decoding). The cut is a function of the row's own position, so the order of its sums does not depend
 * on its neighbours.
 */

import type { AttentionOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import { MAX_STEP_ROWS } from '../../kernel.ts';
import type { Builder, Dispatch } from '../builder.ts';
import { blockMax, blockSum, declare, LEAST, STEP, writeValue } from './snippets.ts';

/** Weighted values of every chunk, [MAX_STEP_ROWS][chunks][heads][valueDim], not yet divided by their sum. */
export const PARTS = 'attention parts';
/** Largest score, as a power of 2, and sum of weights of every chunk, [MAX_STEP_ROWS][heads][chunks][2]. */
export const SUMS = 'attention sums';

/** Chunks of a row at the most, and bytes that all may take before they get longer. */
const MOST_CHUNKS = 128;
const PART_BYTES = 2 ** 27;
const COMBINE_THREADS = 128;
export interface Cut {
  /** Chunks of a row, at the most. */
  readonly chunks: number;
  /** WGSL of `fn chunkLength(visible: u32) -> u32`: positions of a chunk of a row that sees so many; whole pages or a part of one. */
  readonly code: string;
  /** Chunks of any row that sees at most so many positions. */
  chunksOf(visible: number): number;
}

export function cutOf({ heads, valueDim }: AttentionOperation, context: number): Cut {
  const each = MAX_STEP_ROWS * heads * valueDim * 4;
  const most = Math.min(MOST_CHUNKS, Math.max(8, Math.floor(PART_BYTES / each)));
  const longest = PAGE_ROWS * most;
  const chunksOf = (visible: number) => Math.min(most, Math.ceil(visible / PAGE_ROWS));
  return {
    chunks: chunksOf(context),
    chunksOf,
    code: `fn chunkLength(visible: u32) -> u32 { return (visible + ${longest - 1}u) / ${longest}u * ${PAGE_ROWS}u; }`,
  };
}

export function declareParts({ heads, valueDim }: AttentionOperation, builder: Builder, { chunks }: Cut): void {
  builder.declareBuffer(PARTS, MAX_STEP_ROWS * chunks * heads * valueDim * 4);
  builder.declareBuffer(SUMS, MAX_STEP_ROWS * chunks * heads * 8);
}

/** A workgroup takes one query head of a row: it weighs the row's chunks by their largest scores and adds them up. */
export function combineDispatch(
  operation: AttentionOperation,
  builder: Builder,
  { chunks, code }: Cut,
  variant: { threads?: number; loads?: number } = {},
): Dispatch {
  const { threads = COMBINE_THREADS, loads = 4 } = variant;
  const { layer, output, heads, valueDim } = operation;
  const valueFours = valueDim / 4;
  const slices = powerOfTwoUpTo(Math.min(16, threads / valueFours));
  const each = (line: (i: number) => string) => Array.from({ length: loads }, (_, i) => line(i)).join('\n');
  const { text, bindings } = declare([
    [{ kind: 'buffer', name: PARTS, access: 'read' }, 'parts', 'vec4f'],
    [{ kind: 'buffer', name: SUMS, access: 'read' }, 'sums', 'vec2f'],
    [writeValue(output), 'output', 'vec4f'],
    STEP,
  ]);
  const at = builder.step;
  return {
    label: `layers.${layer}.attention combine`,
    bindings,
    code: `${text}
${code}
${blockMax(threads, LEAST)}
${blockSum(threads)}
var<workgroup> weights: array<f32, ${threads}>;
var<workgroup> mixed: array<vec4f, ${threads}>;

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.y;
  let head = workgroup.x;
  if (row >= step[${at.rows}]) { return; }
  let visible = step[${at.positions}u + row] + 1u;
  let length = chunkLength(visible);
  let count = (visible + length - 1u) / length;
  // A thread a chunk: there are never more.
  var own = vec2f(${LEAST}, 0f);
  if (thread < count) { own = sums[(row * ${heads}u + head) * ${chunks}u + thread]; }
  let top = blockMax(thread, own.x);
  let weight = select(0f, exp2(own.x - top), thread < count);
  weights[thread] = weight;
  let all = blockSum(thread, weight * own.y);

  let slice = thread / ${valueFours}u;
  let four = thread % ${valueFours}u;
  var sum = vec4f();
  if (slice < ${slices}u) {
    // Some loads at a time; what lies beyond the last chunk has the weight 0 and is read again from the last.
    for (var chunk = slice; chunk < count; chunk += ${loads * slices}u) {
${each(
  (i) => `      let chunk${i} = min(chunk + ${i * slices}u, count - 1u);
      let part${i} = parts[((row * ${chunks}u + chunk${i}) * ${heads}u + head) * ${valueFours}u + four];`,
)}
${each(
  (i) =>
    `      sum = fma(vec4f(${i === 0 ? 'weights[chunk]' : `select(0f, weights[chunk${i}], chunk + ${i * slices}u < count)`}), part${i}, sum);`,
)}
    }
  }
  mixed[thread] = sum;
  workgroupBarrier();
  if (thread < ${valueFours}u) {
    for (var s = 1u; s < ${slices}u; s++) { sum += mixed[thread + s * ${valueFours}u]; }
    output[(row * ${heads}u + head) * ${valueFours}u + thread] = sum / all;
  }
}
`,
    workgroups: ({ rows }) => [heads, rows, 1],
  };
}

const powerOfTwoUpTo = (x: number) => 2 ** Math.floor(Math.log2(x));
