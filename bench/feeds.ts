/**
 * How fast experts come to the GPU at hand, as a prompt or a step brings them, from memory and out of the model's file:
 *
 *     node bench/synthetic.ts qwen3-30b-a3b-6l model.gguf
 *     UV_THREADPOOL_SIZE=8 node bench/feeds.ts model.gguf
 *
 * The file should lie in the system's cache; the first round, which is not counted, brings it there. Node's own threads (4
 * without the variable) read it.
 */

import { adapterFacts, Gpu, requestAdapter } from '../src/backend/gpu/device.ts';
import { ExpertCarrier } from '../src/backend/gpu/expert-carrier.ts';
import { MemoryFeed } from '../src/backend/gpu/expert-feed.ts';
import { CheaperFeed, type FeedChoice, type FeedName } from '../src/backend/gpu/feed-choice.ts';
import { FileFeed } from '../src/backend/gpu/file-feed.ts';
import { gpuFormat } from '../src/backend/gpu/formats/index.ts';
import { type GpuFormat, planeWords } from '../src/backend/gpu/formats.ts';
import { sourceBytes } from '../src/backend/gpu/repack-code.ts';
import type { Placing } from '../src/backend/gpu/residency.ts';
import { EXPERT_PARTS, expertName, type Slab, slabWeights } from '../src/backend/gpu/slab.ts';
import { openModelFile } from '../src/format/open.ts';
import { readModel } from '../src/model/read-model.ts';
import type { Weight } from '../src/model/weights.ts';
import { nodePlatform } from '../src/platform/node.ts';

/** Experts that a prompt brings together, and a step. */
const PASSING = 32;
const UPLOADS = 8;
const ROUNDS = 3;

const [path] = process.argv.slice(2);
if (path === undefined) {
  console.error('usage: node bench/feeds.ts MODEL.gguf');
  process.exit(2);
}
const file = await openModelFile(await nodePlatform.openSource(path));
const { spec, weights } = readModel(file);
const layers = spec.layers.flatMap(({ feedForward }, layer) => (feedForward.kind === 'moe' ? [layer] : []));
const slabs = layers.map((layer): Slab => ({ layers: [layer], slots: 0, passing: PASSING }));

const adapter = await requestAdapter(nodePlatform, { unchecked: true });
console.log(`${adapterFacts(adapter).name}; Node ${process.version}, ${process.env.UV_THREADPOOL_SIZE ?? 4} threads`);
const gpu = await Gpu.open(nodePlatform, { unchecked: true });

function layout({ format: id, shape }: Weight) {
  const [experts, rows, columns] = shape as [number, number, number];
  const format = gpuFormat(id) as GpuFormat;
  const planes = planeWords(format, columns).rowWords * 4 * rows;
  return { experts, planes, groups: sourceBytes(format, { rows, columns }, 'groups') };
}

const buffers = new Map(
  slabWeights(slabs, weights).map((weight) => {
    const { experts, planes } = layout(weight);
    return [weight.name, gpu.device.createBuffer({ size: experts * planes, usage: 0x80 | 0x8 | 0x4 })];
  }),
);

/** Any bytes will do, as long as each expert has its own. */
const homes = new Map<string, Uint8Array>();
for (const layer of layers) {
  for (const part of EXPERT_PARTS) {
    const weight = weights.get(expertName(layer, part)) as Weight;
    const { experts, groups } = layout(weight);
    const home = new Uint8Array(new SharedArrayBuffer(experts * groups));
    const [first] = weight.parts;
    if (first !== undefined) await file.sources[first.source]?.readInto(first.offset, home.subarray(0, first.bytes));
    homes.set(expertName(layer, part), home);
  }
}

const memory = new MemoryFeed({
  home(layer, part, expert) {
    const name = expertName(layer, part);
    const { groups } = layout(weights.get(name) as Weight);
    return (homes.get(name) as Uint8Array).subarray(expert * groups, (expert + 1) * groups);
  },
  copyBytes: nodePlatform.copyBytes,
});

async function withCarrier(choice: FeedChoice, stagingBytes: number, use: (carrier: ExpertCarrier) => Promise<void>) {
  const fromFile = await FileFeed.open({ weights, sources: file.sources, layers }, nodePlatform);
  const carrier = await ExpertCarrier.make({
    gpu,
    slabs,
    weights,
    bufferOf: (name) => buffers.get(name) as GPUBuffer,
    feeds: { memory, file: fromFile },
    choice,
    stagingBytes,
  });
  await use(carrier);
  await gpu.device.queue.onSubmittedWorkDone();
  carrier.destroy();
  await carrier.settled();
}

/** All experts of all layers, so many together. */
async function all(carrier: ExpertCarrier, bring: (placings: readonly Placing[]) => Promise<void>, most: number) {
  const before = carrier.bytesBrought;
  const experts = layout(weights.get(expertName(layers[0] as number, 'gate')) as Weight).experts;
  const startMs = performance.now();
  for (const layer of layers) {
    for (let from = 0; from < experts; from += most) {
      const count = Math.min(most, experts - from);
      await bring(Array.from({ length: count }, (_, index) => ({ layer, expert: from + index, slot: index })));
    }
  }
  await gpu.device.queue.onSubmittedWorkDone();
  const ms = performance.now() - startMs;
  return { rate: (carrier.bytesBrought - before) / ms / 1e6, ms: ms / layers.length };
}

const always = (name: FeedName): FeedChoice => ({ next: () => name, learn() {} });
const median = (values: readonly number[]) => [...values].sort((a, b) => a - b)[values.length >> 1] as number;

for (const [title, make] of [
  ['memory', () => always('memory')],
  ['file', () => always('file')],
  ['whichever is cheaper', () => new CheaperFeed()],
] as const) {
  for (const stagingBytes of title === 'whichever is cheaper' ? [16] : [8, 16, 32]) {
    await withCarrier(make(), stagingBytes * 2 ** 20, async (carrier) => {
      const prompt = (placings: readonly Placing[]) => carrier.carry(placings);
      // As beside a step: the event loop goes round some times before it is ended.
      const step = async (placings: readonly Placing[]) => {
        const carrying = carrier.begin(placings);
        for (let turn = 0; turn < 10; turn++) {
          carrying.advance();
          await new Promise(setImmediate);
        }
        await carrying.finish();
      };
      for (const [what, bring, most] of [
        ['prompt', prompt, PASSING],
        ['step', step, UPLOADS],
      ] as const) {
        await all(carrier, bring, most);
        const rounds: Awaited<ReturnType<typeof all>>[] = [];
        for (let round = 0; round < ROUNDS; round++) rounds.push(await all(carrier, bring, most));
        const [rate, ms] = (['rate', 'ms'] as const).map((key) => median(rounds.map((each) => each[key])));
        console.log(
          `${title}, staging of ${stagingBytes} MiB, ${most} experts a ${what}: ${rate?.toFixed(2)} GB/s,` +
            ` ${ms?.toFixed(1)} ms a layer;` +
            ` ${((100 * carrier.bytesRead) / carrier.bytesBrought).toFixed(0)}% out of the file`,
        );
      }
    });
  }
}
await file.close();
gpu.close();
