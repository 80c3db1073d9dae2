/** Where a program's bytes lie: nothing that is in use at once shares a byte, and everything is inside its arena. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { mixedModel, mixedModelAhead } from '../../../test/support/mixed-model.ts';
import { OutOfMemoryError } from '../../errors.ts';
import { cachedLayersOf, cutGraph, weightsOfGraph } from '../../model/cut.ts';
import { buildGraph } from '../../model/decoder.ts';
import { expertsGraph } from '../../model/experts-graph.ts';
import type { Graph, Operation } from '../../model/graph.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import { formatBytes } from '../../quant/index.ts';
import { PAGE_ROWS } from '../backend.ts';
import { type Addresses, type Builder, homeBytes } from './builder.ts';
import { type LayoutOptions, layOut } from './layout.ts';
import type { CpuProgram, Place } from './program.ts';
import type { CpuRow } from './row.ts';
import { cpuRows } from './rows.ts';

const { spec, weights } = mixedModel;
const graph = buildGraph(spec);
const ahead = { ...mixedModelAhead, graph: buildGraph(mixedModelAhead.spec) };

function rowOf(operation: Operation, given: Weights): CpuRow {
  const weight = 'weight' in operation ? operation.weight : undefined;
  const format = weight === undefined ? undefined : given.get(weight)?.format.toLowerCase();
  const names = [operation.kind, `${operation.kind}-${format}`, `${operation.kind}-f16`];
  const row = cpuRows.find(({ name }) => names.includes(name));
  assert.ok(row !== undefined, `no row for ${operation.kind}`);
  return row;
}

interface Laid {
  readonly program: CpuProgram;
  readonly builder: Builder;
  /** Every buffer that a task asked for. */
  readonly places: ReadonlyMap<string, Place>;
}

/** A layout whose tasks also tell where all that they read and write lies. */
function lay(change: Partial<LayoutOptions> = {}): Laid {
  const places = new Map<string, Place>();
  let seen: Builder | undefined;
  const { operations } = change.graph ?? graph;
  // Single experts are emitted behind the others, and what predicts further ahead behind these.
  const last =
    operations.findLast(({ mtp }) => mtp === true) ??
    operations.findLast(({ kind }) => kind === 'experts') ??
    operations.at(-1);
  const rows = operations.map((operation): CpuRow => {
    const row = rowOf(operation, change.weights ?? weights);
    if (operation !== last) return row;
    return {
      ...row,
      emit(made, builder) {
        row.emit(made, builder);
        seen = builder;
        for (const [index, entry] of builder.entries.entries()) {
          const enter = (at: Addresses) => {
            for (const name of entry.given) places.set(name, at.buffer(name));
            return entry.make(at);
          };
          builder.entries[index] = { ...entry, make: enter };
        }
        for (const { emissions } of builder.stages) {
          for (const [index, emission] of emissions.entries()) {
            const make = (at: Addresses) => {
              for (const name of [...emission.reads, ...emission.writes]) {
                if (builder.bytes.has(name)) places.set(name, at.buffer(name));
              }
              return emission.make(at);
            };
            emissions[index] = { ...emission, make };
          }
        }
      },
    };
  });
  const options: LayoutOptions = {
    spec,
    graph,
    rows,
    weights,
    threads: 3,
    context: 512,
    pages: 16,
    promptRows: 128,
    wantedRows: 64,
    cacheType: 'f16',
    arenaBytes: 2 ** 30,
    ...change,
  };
  const program = layOut(options);
  return { program, builder: seen as Builder, places };
}

interface Span {
  readonly name: string;
  readonly from: number;
  readonly to: number;
}

function assertDisjoint(spans: readonly Span[], what: string): void {
  const order = spans.toSorted((a, b) => a.from - b.from || a.to - b.to);
  for (const [index, span] of order.entries()) {
    const next = order[index + 1];
    if (next === undefined || span.to <= next.from) continue;
    assert.fail(`${what}: ${span.name} (${span.from}–${span.to}) meets ${next.name} (${next.from}–${next.to})`);
  }
}

/** What lies in an arena from prepare to dispose, the buffers of a run as one. */
function standing({ program }: Laid, arena: number, change: Partial<LayoutOptions> = {}): Span[] {
  const { context = 512, pages = 16, promptRows = 128, threads = 3 } = change;
  const spans: Span[] = [];
  const add = (name: string, from: number, bytes: number) => void spans.push({ name, from, to: from + bytes });
  for (const [name, place] of Object.entries(program.weights)) {
    if (place.arena === arena) add(name, place.offset, place.bytes);
  }
  for (const [layer, cache] of program.cache.entries()) {
    if (cache?.arena !== arena) continue;
    add(`keys of layer ${layer}`, cache.keys, pages * cache.keyPageBytes);
    add(`values of layer ${layer}`, cache.values, pages * cache.valuePageBytes);
  }
  for (let worker = 0; worker < threads; worker++) {
    const bytes = program.scratchBytes[arena] as number;
    add(`scratch of worker ${worker}`, (program.scratch[arena] as number) + worker * bytes, bytes);
  }
  if (arena !== 0) return spans;
  const rows = Math.max(promptRows, 64);
  const { step } = program;
  for (const name of ['tokens', 'positions', 'limits', 'pageStart'] as const) add(name, step[name], rows * 4);
  add('page tables', step.pages, 64 * Math.ceil(context / PAGE_ROWS) * 4);
  add('wanted', step.wanted, 64 * 4);
  if (step.incoming !== undefined) add('incoming', step.incoming, rows * spec.hidden * 4);
  for (const { offset, pairs } of program.ropes) add('rope table', offset, context * pairs * 8);
  return spans;
}

const variants: Readonly<Record<string, Partial<LayoutOptions>>> = {
  'one arena': {},
  'arenas of 256 KiB': { arenaBytes: 2 ** 18 },
  'arenas of 64 KiB, a cache of f32, five threads': { arenaBytes: 65536, cacheType: 'f32', threads: 5 },
  'a prompt of one row': { promptRows: 1, threads: 1 },
  'a long prompt and a context that fills no page': { promptRows: 513, context: 500 },
  'experts of a layer beside a part with a cache': apart([1], cutGraph(graph, [2])[1]),
  'a layer that predicts further ahead': ahead,
  'experts of a layer beside a part that predicts further ahead': {
    ...ahead,
    graph: expertsGraph(graph, new Set([1]), cutGraph(ahead.graph, [2])[1]),
  },
  'experts alone, few pairs in small arenas': { ...apart([1, 2]), expertPairs: 5, arenaBytes: 2 ** 18 },
};

function apart(layers: readonly number[], rest?: Graph): Partial<LayoutOptions> {
  const own = expertsGraph(graph, new Set(layers), rest);
  return { graph: own, weights: weightsOfGraph(own, weights) };
}

/** What is read when a run has ended, and until the next one of its kind. */
function outcomes({ graph: { logits, mtp } }: Builder): readonly string[] {
  return mtp === undefined ? [logits] : [logits, mtp.given, mtp.logits, mtp.hidden];
}

/** First and last stage of each section. */
function sectionsOf({ stages, sections }: Builder): { readonly first: number; readonly last: number }[] {
  return Array.from({ length: sections }, (_, section) => ({
    first: stages.findIndex((stage) => stage.section === section),
    last: stages.findLastIndex((stage) => stage.section === section),
  }));
}

for (const [name, change] of Object.entries(variants)) {
  describe(name, () => {
    const laid = lay(change);
    const { program, builder, places } = laid;

    test('what stands in an arena shares no byte and lies inside', () => {
      for (const [arena, bytes] of program.arenas.entries()) {
        const spans = standing(laid, arena, change);
        const activations = [...places].map(
          ([buffer, { offset }]): Span => ({
            name: buffer,
            from: offset,
            to: offset + (builder.bytes.get(buffer) as number),
          }),
        );
        if (arena === 0) {
          const from = Math.min(...activations.map((span) => span.from));
          spans.push({ name: 'activations', from, to: Math.max(...activations.map((span) => span.to)) });
        }
        assertDisjoint(spans, `arena ${arena}`);
        for (const span of spans) {
          // Address 0 means absent.
          assert.ok(span.from >= 1024 && span.to <= bytes, `${span.name}: ${span.from}–${span.to} of ${bytes}`);
          assert.equal(span.from % 16, 0, `${span.name} lies at ${span.from}`);
        }
        assert.equal(bytes % 65536, 0);
      }
    });

    test('buffers that live in the same stage share no byte', () => {
      const lives = new Map<string, { first: number; last: number }>();
      builder.stages.forEach(({ emissions }, stage) => {
        for (const buffer of emissions.flatMap(({ reads, writes }) => [...reads, ...writes])) {
          if (!builder.bytes.has(buffer)) continue;
          lives.set(buffer, { first: lives.get(buffer)?.first ?? stage, last: stage });
        }
      });
      // What a section is given is there before it begins.
      const sections = sectionsOf(builder);
      builder.entries.forEach(({ given }, index) => {
        const { first } = sections[index + 1] as { readonly first: number };
        for (const buffer of given) lives.set(buffer, { first, last: lives.get(buffer)?.last ?? first });
      });
      assert.equal(lives.size, places.size);
      for (const name of outcomes(builder)) {
        const outcome = lives.get(name);
        if (outcome !== undefined) outcome.last = builder.stages.length;
      }
      for (let stage = 0; stage <= builder.stages.length; stage++) {
        const alive = [...lives]
          .filter(([, { first, last }]) => first <= stage && stage <= last)
          .map(([buffer]) => buffer);
        const spans = alive.map((buffer): Span => {
          const { offset } = places.get(buffer) as Place;
          return { name: buffer, from: offset, to: offset + (builder.bytes.get(buffer) as number) };
        });
        assertDisjoint(spans, `stage ${stage}`);
      }
    });

    test('in a run of one row, what workers touch before they next meet shares no byte', () => {
      // Stages of rows end without a barrier then, and stages of units that may have none may be left out.
      let meeting = 0;
      const touched = new Map<string, { first: number; last: number }>();
      const sections = sectionsOf(builder);
      for (const [index, { section, space, emissions }] of builder.stages.entries()) {
        const opens = section > 0 && index === sections[section]?.first;
        // Between two sections workers always meet.
        if (opens) meeting++;
        const given = opens ? (builder.entries[section - 1]?.given ?? []) : [];
        for (const buffer of given) touched.set(buffer, { first: meeting, last: meeting });
        for (const buffer of emissions.flatMap(({ reads, writes }) => [...reads, ...writes])) {
          if (!builder.bytes.has(buffer)) continue;
          touched.set(buffer, { first: touched.get(buffer)?.first ?? meeting, last: meeting });
        }
        if (space === 'units' && emissions.some(({ optional }) => optional !== true)) meeting++;
      }
      for (const name of outcomes(builder)) {
        const outcome = touched.get(name);
        if (outcome !== undefined) outcome.last = meeting;
      }
      let own = 0;
      for (let at = 0; at <= meeting; at++) {
        const alive = [...touched].filter(([, { first, last }]) => first <= at && at <= last);
        const shared: Span[] = [];
        const alone: Span[] = [];
        for (const [buffer] of alive) {
          const place = places.get(buffer) as Place;
          const bytes = builder.bytesAlone.get(buffer) as number;
          assert.ok(bytes <= (builder.bytes.get(buffer) as number));
          const spans = place.alone === undefined ? shared : alone;
          const from = place.alone ?? place.offset;
          spans.push({ name: buffer, from, to: from + bytes });
        }
        assertDisjoint(shared, `before meeting ${at}`);
        assertDisjoint(alone, `own copies before meeting ${at}`);
        own = Math.max(own, ...alone.map(({ to }) => to));
      }
      assert.ok(own > 0 && own <= program.aloneBytes && program.aloneBytes <= (program.scratchBytes[0] as number));
    });

    test('what the plan counts is what is there', () => {
      const total = program.buffers.reduce((sum, { bytes }) => sum + bytes, 0);
      const arenas = program.arenas.reduce((sum, bytes) => sum + bytes, 0);
      assert.ok(total <= arenas, `${total} bytes in arenas of ${arenas}`);
      // What is left is alignment, the start of each arena and the rounding to its pages.
      const things = Object.keys(program.weights).length + program.cache.length + 8;
      assert.ok(arenas - total <= program.arenas.length * (65536 + 1024 + 64) + things * 64);
      for (const [weight, { bytes }] of Object.entries(program.weights)) {
        assert.equal(bytes, homeBytes((change.weights ?? weights).get(weight) as Weight), weight);
      }
    });

    test('is the same each time', () => assert.deepEqual(lay(change).program, program));

    test('can be sent to a worker', () => assert.deepEqual(structuredClone(program), program));
  });
}

test('sections share their bytes: more layers of experts take no more of them', () => {
  const [one, two] = [[1], [1, 2]].map((layers) => lay(apart(layers)).program);
  const activations = (program: CpuProgram | undefined) =>
    program?.buffers.find(({ name }) => name === 'activations')?.bytes;
  assert.ok((activations(one) as number) > 0);
  assert.equal(activations(one), activations(two));
  assert.equal(one?.aloneBytes, two?.aloneBytes);
});

test('who computes beside another device waits for its next call without sleeping', () => {
  assert.equal(lay().program.spinMs, 0.05);
  assert.equal(lay(apart([1, 2])).program.spinMs, 1);
});

test('a cache lies where there is attention, and nowhere else', () => {
  for (const change of [{}, apart([1], cutGraph(graph, [2])[1]), apart([1, 2])]) {
    const cached = lay(change).program.cache.flatMap((cache, layer) => (cache === undefined ? [] : [layer]));
    assert.deepEqual(cached, [...cachedLayersOf(change.graph ?? graph)]);
  }
});

test('as many pairs as asked for have room, never more than all rows use', () => {
  const limits = (change: Partial<LayoutOptions>) => lay({ ...apart([1]), ...change }).program.expertLimits;
  assert.deepEqual(limits({ promptRows: 1000 }), { rows: 1000, pairs: 2048 });
  assert.deepEqual(limits({ promptRows: 1000, expertPairs: 2500 }), { rows: 1000, pairs: 2500 });
  assert.deepEqual(limits({ promptRows: 1000, expertPairs: 4000 }), { rows: 1000, pairs: 3000 });
  assert.deepEqual(limits({ promptRows: 10, expertPairs: 7 }), { rows: 64, pairs: 7 });
});

test('lives end: far fewer bytes than if every buffer had its own', () => {
  const { program, builder } = lay();
  const activations = program.buffers.find(({ name }) => name === 'activations')?.bytes as number;
  const apart = [...builder.bytes.values()].reduce((sum, bytes) => sum + bytes, 0);
  assert.ok(activations < apart / 2, `${activations} of ${apart}`);
});

test('small arenas: nothing is cut, and each but the first holds no more than was asked, or one thing alone', () => {
  const laid = lay({ arenaBytes: 2 ** 18 });
  assert.ok(laid.program.arenas.length > 8);
  for (let arena = 1; arena < laid.program.arenas.length; arena++) {
    const things = standing(laid, arena).filter(({ name }) => !/scratch|values of/.test(name));
    const bytes = Math.max(
      ...standing(laid, arena)
        .filter(({ name }) => !name.startsWith('scratch'))
        .map(({ to }) => to),
    );
    assert.ok(things.length === 1 || bytes <= 2 ** 18, `arena ${arena}: ${things.length} things up to byte ${bytes}`);
  }
});

test('what fits in no memory is an error that says what it is', () => {
  const huge = new Map(weights);
  const shape = [2 ** 16, 2 ** 16];
  huge.set('head', { name: 'head', format: 'Q8_0', shape, parts: [], bytes: formatBytes('Q8_0', 2 ** 32) });
  assert.throws(
    () => lay({ weights: huge }),
    (error: unknown) => error instanceof OutOfMemoryError && /^head takes \d+ bytes/.test(error.message),
  );
  assert.throws(
    () => lay({ pages: 2 ** 20 }),
    (error: unknown) => error instanceof OutOfMemoryError && /the cache of layer 0/.test(error.message),
  );
  assert.throws(
    () => lay({ promptRows: 2 ** 20 }),
    (error: unknown) =>
      error instanceof OutOfMemoryError && /with activations an arena takes \d+ bytes/.test(error.message),
  );
});
