/**
 * Calls for single experts, beyond what they compute: what does not fit is an error before anything is computed, values that
 * are not finite name their layer, a caller may do something else meanwhile, runs of the graph are not disturbed, and an expert's bytes are
 * where they are said to be.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Executable, ExpertRunner, ExpertWork } from '../../src/backend/backend.ts';
import { cpuFormat, cpuFormats } from '../../src/backend/cpu/formats.ts';
import { DisposedError, InternalError, NonFiniteError } from '../../src/errors.ts';
import { openModelFile } from '../../src/format/open.ts';
import { cutGraph, weightsOfGraph } from '../../src/model/cut.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { expertsGraph } from '../../src/model/experts-graph.ts';
import type { Graph } from '../../src/model/graph.ts';
import { readModel } from '../../src/model/read-model.ts';
import { formatOf } from '../../src/quant/index.ts';
import { backendOf, type DeviceOptions, planFor, stepOf } from '../support/device.ts';
import { familyFile } from '../support/families.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { gaussians, random } from './support/blocks.ts';
import { SMALL_ARENAS, sameBits } from './support/compare.ts';
import { computed, expertRows, expertsTiny, pairsByRank, withExperts, workOf } from './support/expert-cases.ts';
import { type MoeCase, spec } from './support/moe-cases.ts';
import { bytesOf } from './support/tiny-graph.ts';

const given: MoeCase = { hidden: 64, moe: spec(6, 3, 96), formats: { gate: 'Q8_0', up: 'Q5_1' } };
const rows = expertRows(8, given);
const pairs = pairsByRank(8, given).flat();
const ask = (experts: ExpertRunner) => computed(experts, rows, given.hidden, pairs);

const devices: Readonly<Record<string, DeviceOptions>> = {
  'the reference': { device: 'reference', cache: 'f32' },
  'the CPU': { threads: 1 },
  'the CPU with three threads and small arenas': { threads: 3, arenaBytes: SMALL_ARENAS },
};

/** A row and its pair of an expert, changed. */
function call(change: Partial<ExpertWork>): ExpertWork {
  return { layer: 0, rows: rows.slice(0, 128), rowOf: Int32Array.of(0, 1), expertOf: Int32Array.of(0, 5), ...change };
}

const wrong: Readonly<Record<string, readonly [Partial<ExpertWork>, RegExp]>> = {
  'another layer': [{ layer: 2 }, /no experts of layer 2/],
  'half a row': [{ rows: rows.slice(0, 96) }, /rows of 96 values, expected a multiple of 64/],
  'a row that is not there': [{ rowOf: Int32Array.of(0, 2) }, /row 2 in pair 1, of 2 rows/],
  'a negative row': [{ rowOf: Int32Array.of(-1, 0) }, /row -1 in pair 0/],
  'an expert that is not there': [{ expertOf: Int32Array.of(5, 6) }, /expert 6 in pair 1, of 6 experts/],
  'a negative expert': [{ expertOf: Int32Array.of(-1, 0) }, /expert -1 in pair 0/],
  'rows and experts of unlike number': [{ expertOf: Int32Array.of(1) }, /2 rows of pairs with 1 experts/],
};

for (const [name, options] of Object.entries(devices)) {
  describe(name, () => {
    for (const [what, [change, message]] of Object.entries(wrong)) {
      test(`${what} is an error before anything starts, and the next call is as before`, () =>
        withExperts(expertsTiny(given, { normed: true }), options, (experts) => {
          const before = ask(experts);
          assert.throws(
            () => experts.start(call(change)),
            (error: unknown) => error instanceof InternalError && message.test(error.message),
          );
          sameBits(ask(experts), before, what);
        }));
    }

    for (const normed of [false, true]) {
      test(`rows that are not finite name the layer${normed ? ', which norms them' : ''}; the next call is as before`, () =>
        withExperts(expertsTiny(given, { normed, layers: 2 }), options, (experts) => {
          const before = ask(experts);
          for (const value of [Number.NaN, Number.POSITIVE_INFINITY]) {
            const bad = rows.slice().fill(value, 130, 131);
            assert.throws(
              () => experts.start(workOf(1, bad, given.hidden, pairs))(),
              (error: unknown) =>
                error instanceof NonFiniteError && error.data.layer === 1 && /layer 1 \(blk\.1\)/.test(error.message),
            );
            sameBits(ask(experts), before, `after ${value}`);
          }
        }));
    }

    for (const part of ['gate', 'up', 'down'] as const) {
      test(`a damaged ${part} is told of its own expert alone`, () => {
        const plain: MoeCase = { hidden: 32, moe: spec(4, 2, 32), formats: {} };
        const tiny = expertsTiny(plain);
        const bytes = bytesOf(tiny, `m.${part}`);
        // A value in the midst of expert 2: NaN.
        bytes.set([0, 0, 0xc0, 0x7f], bytes.length / 2 + 4 * 77);
        const own = expertRows(4, plain);
        return withExperts(tiny, options, (experts) => {
          const sound = [0, 1, 3].map((expert) => ({ row: 0, expert }));
          const before = computed(experts, own, 32, sound);
          assert.ok(before.every(Number.isFinite));
          assert.throws(
            () => computed(experts, own, 32, [...sound, { row: 0, expert: 2 }]),
            (error: unknown) => error instanceof NonFiniteError && error.data.layer === 0,
          );
          sameBits(computed(experts, own, 32, sound), before, 'the others');
        });
      });
    }

    test('a call goes on while its caller does something else', () =>
      withExperts(expertsTiny(given, { normed: true }), options, async (experts) => {
        const before = ask(experts);
        for (let again = 0; again < 3; again++) {
          const finish = experts.start(workOf(0, rows, given.hidden, pairs));
          await new Promise((resolve) => setTimeout(resolve, 5));
          sameBits(finish(), before, 'after a while');
        }
      }));

    test('no pairs give nothing', () =>
      withExperts(expertsTiny(given), options, (experts) => {
        const none = new Int32Array(0);
        assert.equal(experts.start({ layer: 0, rows: new Float32Array(0), rowOf: none, expertOf: none })().length, 0);
      }));

    test('after dispose a call is an error', () =>
      withExperts(expertsTiny(given), options, async (experts, executable) => {
        await executable.dispose();
        assert.throws(() => ask(experts), DisposedError);
      }));

    test('dispose waits for nobody who has begun a call, and its end is an error', () =>
      withExperts(expertsTiny(given), options, async (experts, executable) => {
        const finish = experts.start(workOf(0, rows, given.hidden, pairs));
        await executable.dispose();
        assert.throws(finish, DisposedError);
      }));
  });
}

describe('limits', () => {
  test('as many rows and pairs as a call may have are computed, and one more is an error', () =>
    withExperts(expertsTiny({ ...given, formats: {} }), { batch: 700 }, (experts) => {
      // Three experts a row, and 2,048 pairs at the least.
      assert.deepEqual(experts.limits, { rows: 700, pairs: 2048 });
      const many = (count: number, pairCount: number): ExpertWork => ({
        layer: 0,
        rows: gaussians(count * 64, random(count)),
        rowOf: Int32Array.from({ length: pairCount }, (_, pair) => (pair * 7) % count),
        expertOf: Int32Array.from({ length: pairCount }, (_, pair) => pair % 6),
      });
      const most = many(700, 2048);
      const found = experts.start(most)().slice();
      const last = Array.from({ length: 5 }, (_, at) => 2043 + at);
      const some = { ...most, rowOf: most.rowOf.slice(2043), expertOf: most.expertOf.slice(2043) };
      sameBits(experts.start(some)(), found.slice((last[0] as number) * 64), 'the last pairs');
      assert.throws(() => experts.start(many(701, 9)), /701 rows, expected at most 700/);
      assert.throws(() => experts.start(many(700, 2049)), /2049 pairs, expected at most 2048/);
    }));

  test('never more pairs than all rows of a run use', () =>
    withExperts(expertsTiny(given), { batch: 100 }, ({ limits }) => {
      assert.deepEqual(limits, { rows: 100, pairs: 300 });
    }));
});

describe('beside runs of the graph', () => {
  const options = { threads: 2, context: 64, batch: 64, cache: 'f32' } as const;

  async function load<T>(use: (whole: Executable, rest: Executable, width: number) => Promise<T>): Promise<T> {
    const file = await openModelFile(await nodeModelSource(familyFile('qwen3moe', 'model.gguf')));
    const made: Executable[] = [];
    try {
      const { spec: model, weights } = readModel(file);
      const graph = buildGraph(model);
      const border = model.layers.length - 1;
      const rest = cutGraph(graph, [border])[1] as Graph;
      const apart = expertsGraph(graph, new Set(Array.from({ length: border }, (_, layer) => layer)), rest);
      for (const part of [apart, rest]) {
        const own = { spec: model, graph: part, weights: weightsOfGraph(part, weights) };
        const plan = planFor(own, options);
        made.push(await backendOf(plan).prepare({ ...own, plan, sources: file.sources }));
      }
      return await use(made[0] as Executable, made[1] as Executable, model.hidden);
    } finally {
      await Promise.all(made.map((executable) => executable.dispose()));
      await file.close();
    }
  }

  test('neither disturbs the other, in any order', () =>
    load(async (whole, rest, width) => {
      const experts = whole.experts as ExpertRunner;
      const incoming = gaussians(7 * width, random(3));
      const prompt = {
        ...stepOf(
          'prompt',
          Array.from({ length: 7 }, (_, position) => ({ token: 1, position })),
          1,
        ),
        incoming,
      };
      const step = { ...stepOf('step', [{ token: 1, position: 7 }], 1), incoming: incoming.slice(0, width) };
      const expected = [(await rest.run(prompt)).slice(), (await rest.run(step)).slice()];
      const work = (count: number): ExpertWork => ({
        layer: 0,
        rows: incoming.slice(0, count * width),
        rowOf: Int32Array.from({ length: count }, (_, pair) => pair),
        expertOf: Int32Array.from({ length: count }, (_, pair) => pair % 4),
      });
      const alone = [1, 7].map((count) => experts.start(work(count))().slice());
      for (let again = 0; again < 3; again++) {
        for (const [index, one] of [prompt, step].entries()) {
          const logits = await whole.run(one);
          for (const [at, count] of [1, 7].entries()) {
            sameBits(experts.start(work(count))(), alone[at] as Float32Array, `${count} pairs after run ${index}`);
          }
          sameBits(logits, expected[index] as Float32Array, `logits of run ${index}, after calls`);
        }
      }
      assert.equal(rest.experts, undefined);
      assert.throws(() => whole.value?.('layers.0.moe.experts'), /no value is called layers\.0\.moe\.experts/);
    }));

  test('a graph of experts alone cannot be run, and says so', () =>
    withExperts(expertsTiny(given), { threads: 1 }, async (_, executable) => {
      await assert.rejects(executable.run(stepOf('step', [{ token: 0, position: 0 }], 1)), /only experts are/);
    }));
});

describe('the home of an expert', () => {
  for (const { id } of cpuFormats) {
    for (const arenaBytes of [undefined, SMALL_ARENAS]) {
      test(`${id}: read as the layout says it is the file's bytes${arenaBytes ? ', in small arenas' : ''}`, () => {
        const { blockBytes, blockLength } = formatOf(id);
        const columns = 2 * blockLength;
        // Rows that fill no group where the format leaves them free.
        const inner = blockLength === 1 ? 37 : columns;
        const one: MoeCase = {
          hidden: blockLength === 1 ? 34 : columns,
          moe: spec(3, 1, inner),
          formats: { gate: id, up: id, down: id },
        };
        const tiny = expertsTiny(one);
        return withExperts(tiny, { arenaBytes }, (experts) => {
          for (const part of ['gate', 'up', 'down'] as const) {
            const [matrixRows, width] = part === 'down' ? [one.hidden, inner] : [inner, one.hidden];
            const rowBytes = (width / blockLength) * blockBytes;
            const file = bytesOf(tiny, `m.${part}`);
            for (let expert = 0; expert < 3; expert++) {
              const home = experts.home?.(0, part, expert) as Uint8Array;
              assert.equal(home.length, Math.ceil(matrixRows / 4) * 4 * rowBytes);
              const expected = file.subarray(expert * matrixRows * rowBytes, (expert + 1) * matrixRows * rowBytes);
              assert.deepEqual(rowsOf(home, id, { rows: matrixRows, rowBytes }), expected.slice());
            }
          }
        });
      });
    }
  }

  /** By the formula of `formats.ts`. */
  function rowsOf(
    home: Uint8Array,
    id: string,
    { rows: count, rowBytes }: { readonly rows: number; readonly rowBytes: number },
  ): Uint8Array {
    const { blockBytes } = formatOf(id);
    const segments = cpuFormat(id)?.segments ?? [];
    const result = new Uint8Array(count * rowBytes);
    for (let at = 0; at < count; at++) {
      const group = Math.floor(at / 4) * 4 * rowBytes;
      for (let block = 0; block < rowBytes / blockBytes; block++) {
        let before = 0;
        for (const [bytes, unit] of segments) {
          for (let u = 0; u < bytes / unit; u++) {
            const from = group + 4 * (block * blockBytes + before) + (4 * u + (at % 4)) * unit;
            const to = at * rowBytes + block * blockBytes + before + u * unit;
            result.set(home.subarray(from, from + unit), to);
          }
          before += bytes;
        }
      }
    }
    return result;
  }

  test('of an expert, a layer or a place that is not there is an error', () =>
    withExperts(expertsTiny(given), {}, (experts) => {
      for (const expert of [-1, 6, Number.NaN]) {
        assert.throws(() => experts.home?.(0, 'gate', expert), InternalError);
      }
      assert.throws(() => experts.home?.(1, 'gate', 0), /no experts of layer 1/);
    }));
});
