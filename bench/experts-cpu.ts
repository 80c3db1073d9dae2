/**
 * What single experts cost on the CPU's pool, in Qwen3-30B-A3B's shape, their weights out of memory: one row with all of its
 * experts, and rows that share one:
 *
 *     node bench/experts-cpu.ts [--threads 1,2,4,8,12,16] [--layers 6] [--build dot|relaxed|simd]
 *
 * Where there are several threads one of them starts the others' work and takes no part in it. `--build` takes other kernels
 * than the machine would by itself. A layer's experts are 340 MB, and none comes again before all others have been used. For a
 * machine without this checkout the package's `dist` is enough, with this in a folder of it:
 * `npx esbuild bench/experts-cpu.ts --bundle --platform=node --format=esm --external:webgpu --outfile=dist/bench/experts-cpu.js`.
 */

import { cpus } from 'node:os';
import { parseArgs } from 'node:util';
import type { ExpertRunner } from '../src/backend/backend.ts';
import { cpuBackend } from '../src/backend/cpu/backend.ts';
import { openModelFile } from '../src/format/open.ts';
import { weightsOfGraph } from '../src/model/cut.ts';
import { buildGraph } from '../src/model/decoder.ts';
import { expertsGraph } from '../src/model/experts-graph.ts';
import { readModel } from '../src/model/read-model.ts';
import { plan as makePlan } from '../src/plan/place.ts';
import { detectFeatures } from '../src/platform/features.ts';
import { syntheticModel } from '../src/synthetic/source.ts';

const EXPERTS = 128;
const HIDDEN = 2048;
/** Every expert of a layer once. */
const CALLS = 96;

const { values: flags } = parseArgs({
  options: { threads: { type: 'string' }, layers: { type: 'string' }, build: { type: 'string' } },
});
const counts = (flags.threads ?? '1,2,4,8,12,16').split(',').map(Number);
const layers = Array.from({ length: Number(flags.layers ?? 6) }, (_, layer) => layer);
const builds: Readonly<Record<string, readonly string[]>> = {
  dot: ['simd', 'threads', 'relaxed-simd', 'relaxed-dot'],
  relaxed: ['simd', 'threads', 'relaxed-simd'],
  simd: ['simd', 'threads'],
};
const features = new Set(flags.build === undefined ? detectFeatures() : builds[flags.build]);

const file = await openModelFile(syntheticModel('qwen3-30b-a3b-6l'));
const { spec, weights: all } = readModel(file);
const graph = expertsGraph(buildGraph(spec), new Set(layers));
const weights = weightsOfGraph(graph, all);

interface Case {
  readonly name: string;
  readonly rows: number;
  readonly experts: number;
}
const cases: readonly Case[] = [
  { name: '1 row × 8 experts', rows: 1, experts: 8 },
  ...[1, 2, 3, 4, 8].map((rows) => ({ name: `${rows} row${rows > 1 ? 's' : ''} × 1 expert`, rows, experts: 1 })),
  ...[2, 4].map((rows) => ({ name: `${rows} rows × 8 experts`, rows, experts: 8 })),
];

/** Milliseconds of each of some calls, whose experts are the next ones of the next layer. */
function timesOf(runner: ExpertRunner, { rows, experts }: Case): number[] {
  const values = Float32Array.from({ length: rows * HIDDEN }, (_, i) => Math.sin(i * 0.7) + Math.cos(i * 1.3));
  return Array.from({ length: CALLS }, (_, call) => {
    const layer = call % layers.length;
    const first = Math.floor(call / layers.length) * experts;
    const pairs = Array.from({ length: rows * experts }, (_, pair) => pair);
    const work = {
      layer,
      rows: values,
      rowOf: Int32Array.from(pairs, (pair) => Math.floor(pair / experts)),
      expertOf: Int32Array.from(pairs, (pair) => (first + (pair % experts)) % EXPERTS),
    };
    const startMs = performance.now();
    runner.start(work)();
    return performance.now() - startMs;
  });
}

const at = (sorted: readonly number[], share: number) => sorted[Math.floor(sorted.length * share)] as number;

console.log(
  `${cpus()[0]?.model.trim()}, ${cpus().length} threads; Node ${process.version}; ${[...features].join(', ')}`,
);
for (const threads of counts) {
  const plan = makePlan({
    spec,
    graph,
    weights,
    ignored: [],
    options: { device: 'cpu', threads, context: 256 },
    platform: { threads, freeMemoryBytes: 64 * 2 ** 30, features },
  });
  const executable = await cpuBackend().prepare({ plan, spec, graph, weights, sources: file.sources });
  const runner = executable.experts as ExpertRunner;
  const expertBytes = (['gate', 'up', 'down'] as const).reduce(
    (sum, part) => sum + (runner.home?.(0, part, 0).length ?? 0),
    0,
  );
  console.log(`${threads} threads, of which ${Math.max(1, threads - 1)} compute; an expert is ${expertBytes} bytes`);
  // Until the kernels are compiled as well as they are going to be.
  for (const each of cases) timesOf(runner, each);
  for (const each of cases) {
    const ms = timesOf(runner, each).sort((a, b) => a - b);
    const [median, least] = [at(ms, 0.5), at(ms, 0.05)];
    const pair = (1000 * median) / (each.rows * each.experts);
    const rate = (each.experts * expertBytes) / median / 1e6;
    console.log(
      `  ${each.name}: ${(1000 * median).toFixed(0)} µs (5%: ${(1000 * least).toFixed(0)}),` +
        ` ${pair.toFixed(1)} µs a pair, ${rate.toFixed(1)} GB/s of weights`,
    );
  }
  await executable.dispose();
}
await file.close();
process.exit(0);
