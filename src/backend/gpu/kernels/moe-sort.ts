/**
 * What kernels of many rows share around their products: (row, rank) pairs sorted by expert and cut into tiles, and the sum
 * of each row's results in rank order. Where a pair stands among its expert's changes no bit of what is made of it.
 */

import type { Mode } from '../../kernel.ts';
import { HOST_MADE, HOST_PLACES, type RunShape } from '../builder.ts';
import { KernelText, unrolled } from './kernel-text.ts';
import { buffer, type MoeLayer, type RoutedLayer, value } from './moe-layer.ts';

/**
 * The sorted pairs, u32: (expert, first place, count) of each tile, with the count 0 where there is none; the pair
 * row · used + rank at each place.
 */
export interface Sorted {
  readonly name: string;
  readonly height: number;
  /** Where the pairs begin. */
  readonly order: number;
  /** Statements that declare `expert`, `place` and `count` of the tile `wg.y` of `sorted`, or leave when there is none. */
  readonly tile: string;
  /** Tiles of a run, at the most; none of a run that this cut does not serve. */
  tiles(run: RunShape): number;
}

/** As many as every device has in a workgroup. */
const THREADS = 256;
/** Pairs that a thread reads at once: loads wait for each other no more than they must. */
const AT_ONCE = 8;

/** Whole tiles, and a last one of each expert that is not. */
function mostTiles(pairs: number, experts: number, height: number): number {
  return Math.floor(pairs / height) + Math.min(experts, pairs);
}

/**
 * Emits the dispatch that sorts, one workgroup.
 * @param cut.height pairs of a tile
 * @param cut.serves the runs that are cut so; all if it is not said
 * @param cut.threads of the workgroup, a power of two; as many as every device has if it is not said
 */
export function emitSort(
  { operation, builder, route, routeWidth }: RoutedLayer,
  cut: { readonly height: number; readonly serves?: (run: RunShape) => boolean; readonly threads?: number },
): Sorted {
  const { height, serves = () => true, threads = THREADS } = cut;
  const { moe, prefix } = operation;
  const { experts, used } = moe;
  const most = builder.rows * used;
  const name = `${prefix}.sorted`;
  const tiles = mostTiles(most, experts, height);
  const order = 3 * tiles;
  builder.declareBuffer(name, (order + most) * 4);
  const each = Math.ceil(experts / threads);
  const text = new KernelText()
    .bind(buffer(route, 'read'), 'route', 'u32')
    .bind(buffer(name, 'write'), 'sorted', 'u32')
    .bind({ kind: 'step' }, 'step', 'u32');
  const overPairs = (use: (i: number) => string) => `
  for (var start = tid; start < pairs; start += ${threads * AT_ONCE}u) {
${unrolled(AT_ONCE, (i) => `    let pair${i} = min(start + ${threads * i}u, pairs - 1u);\n    let expert${i} = expertOf(pair${i});`)}
${unrolled(AT_ONCE, (i) => `    if (start + ${threads * i}u < pairs) { ${use(i)} }`)}
  }`;
  const rounds = Array.from({ length: Math.log2(threads) }, (_, i) => 2 ** i);
  const code = text.code(/* wgsl */ `
var<workgroup> counts: array<atomic<u32>, ${experts}>;
// Pairs and tiles of each thread's experts, then of all before them too.
var<workgroup> sums: array<vec2u, ${threads}>;

fn expertOf(pair: u32) -> u32 {
  return min(route[(pair / ${used}u) * ${routeWidth}u + pair % ${used}u], ${experts - 1}u);
}
fn tilesOf(count: u32) -> u32 { return (count + ${height - 1}u) / ${height}u; }

@compute @workgroup_size(${threads})
fn main(@builtin(local_invocation_index) tid: u32) {
  let pairs = min(step[${builder.step.rows}u], ${builder.rows}u) * ${used}u;
  for (var e = tid; e < ${experts}u; e += ${threads}u) { atomicStore(&counts[e], 0u); }
  workgroupBarrier();
${overPairs((i) => `atomicAdd(&counts[expert${i}], 1u);`)}
  workgroupBarrier();
  var own = vec2u();
  for (var e = tid * ${each}u; e < min((tid + 1u) * ${each}u, ${experts}u); e++) {
    let count = atomicLoad(&counts[e]);
    own += vec2u(count, tilesOf(count));
  }
  sums[tid] = own;
  workgroupBarrier();
${rounds
  .map(
    (distance) => `  {
    var sum = sums[tid];
    if (tid >= ${distance}u) { sum += sums[tid - ${distance}u]; }
    workgroupBarrier();
    sums[tid] = sum;
    workgroupBarrier();
  }`,
  )
  .join('\n')}
  for (var tile = sums[${threads - 1}u].y + tid; tile < ${tiles}u; tile += ${threads}u) { sorted[3u * tile + 2u] = 0u; }
  var next = sums[tid] - own;
  for (var e = tid * ${each}u; e < min((tid + 1u) * ${each}u, ${experts}u); e++) {
    let count = atomicLoad(&counts[e]);
    atomicStore(&counts[e], next.x);
    for (var done = 0u; done < count; done += ${height}u) {
      let at = 3u * next.y;
      sorted[at] = e;
      sorted[at + 1u] = next.x + done;
      sorted[at + 2u] = min(count - done, ${height}u);
      next.y++;
    }
    next.x += count;
  }
  workgroupBarrier();
${overPairs((i) => `sorted[${order}u + atomicAdd(&counts[expert${i}], 1u)] = pair${i};`)}
}`);
  builder.dispatch('prompt', {
    label: `${prefix} sort`,
    code,
    bindings: text.bindings,
    workgroups: (run) => (serves(run) ? [1, 1, 1] : [0, 0, 0]),
  });
  return {
    name,
    height,
    order,
    tile: /* wgsl */ `
  let expert = sorted[3u * wg.y];
  let place = sorted[3u * wg.y + 1u];
  let count = min(sorted[3u * wg.y + 2u], ${height}u);
  if (count == 0u) { return; }`,
    tiles: (run) => (serves(run) ? mostTiles(run.rows * used, experts, height) : 0),
  };
}

/**
 * Sums what each row's experts made ([pairs, hidden] f32 in `prefix.made`, [rows, hidden] in `prefix.sharedOut`); in a split
 * layer some of it is the host's.
 */
export function emitCombine({ operation, builder, hidden, route, routeWidth }: MoeLayer, mode: Mode): void {
  const { moe, prefix, output, add, split } = operation;
  const { used, shared, router } = moe;
  // Weights of inputs are in what was made already.
  const weight = router.weighsInput ? '' : `bitcast<f32>(route[t * ${routeWidth}u + ${used}u + rank]) * `;
  const text = new KernelText()
    .bind(buffer(`${prefix}.made`, 'read'), 'made', 'f32')
    .bind(value(output, 'write'), 'y', 'f32')
    .bind({ kind: 'step' }, 'step', 'u32');
  if (weight !== '' || shared !== undefined) text.bind(buffer(route, 'read'), 'route', 'u32');
  if (shared !== undefined) text.bind(buffer(`${prefix}.sharedOut`, 'read'), 'sharedOut', 'f32');
  if (add !== undefined) text.bind(value(add, 'read'), 'residual', 'f32');
  if (split !== undefined) {
    builder.declareBuffer(HOST_MADE, builder.hostPairs * hidden * 4);
    builder.declareBuffer(HOST_PLACES, builder.rows * used * 4);
    text.bind(buffer(HOST_MADE, 'read'), 'hostMade', 'f32').bind(buffer(HOST_PLACES, 'read'), 'hostPlaces', 'u32');
    builder.join(mode);
  }
  const code = text.code(/* wgsl */ `
fn madeOf(pair: u32, i: u32) -> f32 {
  ${
    split === undefined
      ? ''
      : `let place = min(hostPlaces[pair], ${builder.hostPairs}u);
  if (place > 0u) { return hostMade[(place - 1u) * ${hidden}u + i]; }
  `
  }return made[pair * ${hidden}u + i];
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let t = wg.y;
  let i = wg.x * 256u + tid;
  if (t >= step[${builder.step.rows}u] || i >= ${hidden}u) { return; }
  var sum = 0.0;
  for (var rank = 0u; rank < ${used}u; rank++) {
    sum += ${weight}madeOf(t * ${used}u + rank, i);
  }
  ${shared === undefined ? '' : `sum += bitcast<f32>(route[t * ${routeWidth}u + ${2 * used}u]) * sharedOut[t * ${hidden}u + i];`}
  y[t * ${hidden}u + i] = sum${add === undefined ? '' : ` + residual[t * ${hidden}u + i]`};
}`);
  builder.dispatch(mode, {
    label: `${prefix} sum`,
    code,
    bindings: text.bindings,
    workgroups: (run) => [Math.ceil(hidden / 256), run.rows, 1],
  });
}
