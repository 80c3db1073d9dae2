/** `conclave bench` against a library made for the test: what it runs, and what it makes of the figures. */

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { type Asked, fakeLibrary, world } from '../../test/support/cli-world.ts';
import { SKEWED } from '../../test/support/trace-source.ts';
import type { ChatMessage, ExpertStatistics, Profile } from '../engine/types.ts';
import { RunStats } from '../experts/stats.ts';
import type { PlannedPart } from '../plan/plan.ts';
import type { GivenTrace } from '../plan/routing.ts';
import { series, tokenSource } from './bench.ts';
import { main } from './commands.ts';
import type { Library } from './context.ts';

for (const [flags, message] of [
  [['-p', '9007199254740991'], /the prefill test of 9007199254740991 tokens \(-p\) needs a context of/],
  [
    ['-p', '0', '-d', '10', '-n', '60'],
    /the decode test of 60 tokens \(-n, after the 10 of -d\) needs a context of 70, and the model has 64/,
  ],
  [['-p', '0', '-n', '5000'], /the decode test of 5000 tokens \(-n\) needs a context of 5001, and the model has \d+/],
] as const) {
  test(`bench ${flags.join(' ')} does not fit the context: a usage error before anything is computed`, async () => {
    const { library, asked } = fakeLibrary(() => ['x']);
    const { context, err } = world(library);
    assert.equal(await main(['bench', ...flags, '-r', '1'], context), 2);
    assert.match(err(), message);
    assert.deepEqual([asked[0]!.prompts, asked[0]!.disposed], [[], 1]);
  });
}

test('bench measures what it says: a warm-up dropped, prompts in sessions of their own, nothing ended by an end token', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  const { context, out } = world(library);
  assert.equal(await main(['bench', '-p', '16', '-n', '8', '-r', '2', '--json'], context), 0);
  const result = JSON.parse(out());
  assert.deepEqual(result.prefill, { tokens: 16, runs: [500, 500], median: 500, min: 500, max: 500 });
  assert.deepEqual(result.decode, { tokens: 8, runs: [150, 150], median: 150, min: 150, max: 150 });
  assert.ok(result.bandwidth.bytesPerSecond > 0 && result.bandwidth.bytes >= 65_536);
  // The cache's one byte a page of 64 rows; the fifth token of eight comes after a prompt of one and reads five of them.
  assert.equal(result.cacheBytesPerToken, 5 / 64);
  assert.ok(Math.abs(result.bandwidthShare - (150 * (1000 + 5 / 64)) / result.bandwidth.bytesPerSecond) < 1e-12);
  assert.ok(!('profile' in result), 'a device that tells nothing');
  assert.ok(result.peakMemoryBytes > 1e7);
  const [{ prompts, sessions }] = asked as [Asked];
  assert.equal(sessions, 4);
  const tokens = prompts.map(({ prompt }) => (prompt as { tokens: number[] }).tokens);
  assert.deepEqual(
    tokens.map((each) => each.length),
    [16, 16, 16, 1, 1, 1],
  );
  assert.ok(tokens.flat().every((id) => Number.isInteger(id) && id >= 0 && id < 100));
  assert.notDeepEqual(tokens[0], tokens[1]);
  assert.deepEqual(
    prompts.map(({ options }) => options.maxTokens),
    [1, 1, 1, 8, 8, 8],
  );
  assert.ok(prompts.every(({ options }) => options.ignoreEos === true && options.temperature === 0));
});

test('decoding after a depth: one session, and prompts that differ in their last token alone', async () => {
  const { library, asked } = fakeLibrary(() => ['x']);
  const { context, out } = world(library);
  assert.equal(await main(['bench', '-p', '0', '-n', '8', '-d', '20', '-r', '4', '--json'], context), 0);
  const { decode, prefill, cacheBytesPerToken } = JSON.parse(out());
  assert.equal(prefill, undefined);
  assert.deepEqual([decode.tokens, decode.depth, decode.runs.length], [8, 20, 4]);
  assert.equal(cacheBytesPerToken, 24 / 64);
  const [{ prompts, sessions }] = asked as [Asked];
  assert.equal(sessions, 1);
  const tokens = prompts.map(({ prompt }) => (prompt as { tokens: number[] }).tokens);
  assert.deepEqual(
    tokens.map((each) => each.length),
    [20, 20, 20, 20, 20],
  );
  assert.equal(new Set(tokens.map((each) => each.slice(0, 19).join())).size, 1);
  assert.ok(new Set(tokens.map((each) => each.at(-1))).size > 1);
});

test('of a model on two devices both are named, and no bandwidth is', async () => {
  const { library } = fakeLibrary(() => ['x']);
  const load: Library['load'] = async (source, options) => {
    const model = await library.load(source, options);
    const [part] = model.plan.parts as [PlannedPart];
    const parts: readonly PlannedPart[] = [
      { ...part, device: 'gpu' },
      { ...part, device: 'cpu' },
    ];
    return { ...model, plan: { ...model.plan, device: 'gpu', adapter: 'a card', threads: 3, parts } };
  };
  const bench = async (...flags: readonly string[]) => {
    const { context, out } = world({ ...library, load });
    assert.equal(await main(['bench', '-p', '16', '-n', '8', '-r', '1', ...flags], context), 0);
    return out();
  };
  const result = JSON.parse(await bench('--json'));
  assert.equal(result.device, 'gpu + cpu');
  assert.ok(!('bandwidth' in result) && !('bandwidthShare' in result));
  const text = await bench();
  assert.match(text, / on gpu \+ cpu, a card, 3 threads, 1 run after a warm-up/);
  assert.match(text, /memory bandwidth +not measured: the model reads the memory of two devices/);
  assert.doesNotMatch(text, /share of it/);
});

describe('on a device that tells where its time goes', () => {
  const told: Profile = {
    dispatches: 3,
    encodeMs: 0.25,
    runMs: 1.5,
    kernels: [
      { label: 'moe gate and up', dispatches: 2, ns: 300_000 },
      { label: 'embed', dispatches: 1, ns: 100_000 },
    ],
    bandwidth: { bytesPerSecond: 2e12, bytes: 2 ** 30 },
  };
  const bench = async (profile: Profile, ...flags: readonly string[]) => {
    const { library, asked } = fakeLibrary(() => ['x'], { profile });
    const { context, out } = world(library);
    assert.equal(await main(['bench', '-p', '16', '-n', '8', '-r', '1', ...flags], context), 0);
    return { out: out(), asked: (asked as [Asked])[0].profiles };
  };

  test('the prompt and a token in the middle of decoding are profiled, and its own bandwidth counts', async () => {
    const { out, asked } = await bench(told, '-d', '20', '--json');
    assert.deepEqual(asked, [
      { tokens: 16, rows: 'prompt' },
      { tokens: 24, rows: 'step' },
    ]);
    const result = JSON.parse(out);
    const { bandwidth, ...run } = told;
    assert.deepEqual(result.profile, {
      prefill: { tokens: 16, position: 0, ...run },
      decode: { tokens: 1, position: 23, ...run },
    });
    assert.deepEqual(result.bandwidth, bandwidth);
    assert.equal(result.bandwidthShare, (150 * (1000 + 24 / 64)) / 2e12);
  });

  test('a test that is left out is not profiled', async () => {
    assert.deepEqual((await bench(told, '-n', '0')).asked, [{ tokens: 16, rows: 'prompt' }]);
    assert.deepEqual((await bench(told, '-p', '0')).asked, [{ tokens: 5, rows: 'step' }]);
  });

  test('the text has a table of kernels for each, the longest first, with their shares', async () => {
    const { out } = await bench(told);
    assert.match(out, /^memory bandwidth +2,000 GB\/s \(1\.07 GB read by the GPU\)$/m);
    assert.match(out, /^prefill, 16 tokens: 3 dispatches, encoded in 0\.25 ms, done in 1\.50 ms$/m);
    const decode = out.slice(out.indexOf('decode, one token at position 4: 3 dispatches'));
    assert.deepEqual(decode.trimEnd().split('\n').slice(1), [
      'each kernel by itself  dispatches     time   share',
      'moe gate and up                 2  0.30 ms   75.0%',
      'embed                           1  0.10 ms   25.0%',
      'all                             3  0.40 ms  100.0%',
    ]);
  });

  test('what it could not measure is said', async () => {
    const { kernels, bandwidth, ...rest } = told;
    const { out } = await bench(rest);
    assert.match(out, /^memory bandwidth +not measured: the GPU has no room left for it$/m);
    assert.doesNotMatch(out, /share of it/);
    assert.equal(out.match(/^no time by kernel: this GPU has no timestamps$/gm)?.length, 2);
  });
});

test('random tokens are the same for a seed, differ between seeds and cover the vocabulary', () => {
  assert.deepEqual(tokenSource(1000, 7)(50), tokenSource(1000, 7)(50));
  assert.notDeepEqual(tokenSource(1000, 7)(50), tokenSource(1000, 8)(50));
  assert.equal(new Set(tokenSource(10, 1)(500)).size, 10);
});

test('the median of an even number of runs lies between the two in the middle', () => {
  assert.deepEqual(series(1, [4, 1, 3, 2]), { tokens: 1, runs: [4, 1, 3, 2], median: 2.5, min: 1, max: 4 });
  assert.equal(series(1, [5, 1, 3]).median, 3);
});

describe('with experts that are counted', () => {
  /** Two layers, one of them missed once in a run. */
  const counted = (split: boolean): ExpertStatistics => {
    const stats = new RunStats([0, 1], 4);
    for (const mode of ['prompt', 'step'] as const) {
      stats.began(mode, 1);
      stats.routed(0, [0, 1], split ? { hits: 2, passed: 0 } : undefined);
      stats.routed(1, [0, 2], split ? { hits: 1, passed: 0 } : undefined);
      if (split) for (const layer of [0, 1]) stats.waited(layer, { roundTripMs: 0.05, passMs: 0, cpuMs: layer });
      stats.ended();
    }
    return { ...stats.snapshot(), notCounted: split ? [] : [3] };
  };
  const told: Profile = {
    dispatches: 9,
    encodeMs: 0.25,
    runMs: 1.5,
    kernels: [{ label: 'experts in slots', dispatches: 2, ns: 300_000 }],
    bandwidth: { bytesPerSecond: 2e12, bytes: 2 ** 30 },
  };
  const memory = { device: 'gpu', bytes: 5e8, peakBytes: 6e8, plannedBytes: 7e8 } as const;
  const bench = async (split: boolean, ...flags: readonly string[]) => {
    const { library, asked } = fakeLibrary(() => ['x'], {
      experts: counted(split),
      ...(split ? { profile: told, memory } : {}),
    });
    const { context, out } = world(library);
    assert.equal(await main(['bench', '-p', '16', '-n', '8', '-r', '2', ...flags], context), 0);
    return { out: out(), asked: (asked as [Asked])[0] };
  };

  test('warm-ups are forgotten, and each test has its own rows', async () => {
    const { out, asked } = await bench(true, '--json');
    assert.deepEqual(asked.stats, [true, false, true, false]);
    const { prompt, step, notCounted } = counted(true);
    assert.deepEqual(JSON.parse(out).experts, { prefill: prompt, decode: step, notCounted });
    assert.equal(asked.load.expertStats, undefined, 'split experts are counted without being asked for');
  });

  test('hits and waits of split experts are shown by themselves, the GPU’s part by its clock', async () => {
    const { out } = await bench(true);
    for (const name of ['prefill', 'decode']) {
      const at = out.indexOf(`experts, ${name}: 75.0% hits (3 hits, 1 miss); a run: 1.0 misses`);
      assert.ok(at > 0, out);
      assert.deepEqual(out.slice(at).split('\n').slice(1, 3), [
        "a run stops 2 times: 0.10 ms (0.050 a stop) of round trips, 1.00 ms (0.500 a stop) of the CPU's part",
        "the GPU's part: 0.30 ms (0.150 a stop) by its own clock, beside the CPU's",
      ]);
    }
    assert.doesNotMatch(out, /^layer /m);
  });

  test('what the GPU’s memory held stands beside what was planned', async () => {
    assert.match((await bench(true)).out, /^peak memory of the GPU +600 MB, 700 MB were planned$/m);
    assert.deepEqual(JSON.parse((await bench(true, '--json')).out).gpuMemory, memory);
    assert.doesNotMatch((await bench(false)).out, /of the GPU/);
  });

  test('--expert-stats asks for them, and shows every layer', async () => {
    const { out, asked } = await bench(false, '--expert-stats');
    assert.equal(asked.load.expertStats, true);
    assert.match(
      out,
      /\nexperts, prefill: 1 run of 1 row in all, 2 layers of 4 experts\nlayer {2}experts a step .*\n0 /,
    );
    assert.match(out, /\nexperts, decode: 1 run of 1 row in all/);
    assert.match(out, /\nnot counted: layer 3, whose experts are all on the GPU/);
    assert.doesNotMatch(
      await bench(false).then((plain) => plain.out),
      /experts, decode/,
      'nothing that nobody asked for',
    );
  });

  test('--routing is read before the model, and given to it', async () => {
    const { asked } = await bench(true, '--routing', SKEWED);
    const { layers, experts, used, ids } = asked.load.routing as GivenTrace;
    assert.deepEqual([layers, experts, used, ids.length], [48, 128, 8, 2048 * 48 * 8]);
    const { library, asked: none } = fakeLibrary(() => ['x']);
    const { context, err } = world(library);
    assert.equal(await main(['bench', '--routing', '/nowhere'], context), 1);
    assert.match(err(), /trace\.json: no such file.*a trace is a folder with trace\.json and trace\.bin/);
    assert.deepEqual(none, []);
  });

  test('--expert-uses counts a trace for the plan', async () => {
    const { asked } = await bench(true, '--expert-uses', SKEWED);
    const uses = asked.load.expertUses as readonly Float64Array[];
    assert.deepEqual([uses.length, uses[0]?.length], [48, 128]);
    assert.equal(
      uses[47]?.reduce((sum, count) => sum + count),
      2048 * 8,
    );
  });
});

describe('after the prompts of a file', () => {
  const folder = mkdtempSync(join(tmpdir(), 'conclave-bench-'));
  const file = join(folder, 'prompts.txt');
  writeFileSync(file, 'What is a glacier?\n\nDefine justice.\n');
  after(() => rmSync(folder, { recursive: true }));

  test('each is answered in a session of its own, and all of them are a run', async () => {
    const { library, asked } = fakeLibrary(() => ['x']);
    const { context, out } = world(library);
    assert.equal(await main(['bench', '-p', '0', '-n', '8', '-r', '2', '-f', file, '--json'], context), 0);
    // Seven tokens after the first in 20 ms, of each.
    const { decode, speculation } = JSON.parse(out());
    assert.deepEqual(decode, { tokens: 8, runs: [350, 350], median: 350, min: 350, max: 350 });
    assert.equal(speculation, undefined);
    const [{ prompts, sessions }] = asked as [Asked];
    assert.equal(sessions, 6);
    const said = prompts.map(({ prompt }) => (prompt as readonly ChatMessage[])[0]?.content);
    assert.deepEqual(
      said,
      [1, 2, 3].flatMap(() => ['What is a glacier?', 'Define justice.']),
    );
    assert.ok(prompts.every(({ options }) => options.ignoreEos === true && options.maxTokens === 8));
  });

  test('what drafts came to is shown, that of the warm-up left out', async () => {
    const speculation = {
      source: 'mtp',
      drafts: 2,
      steps: 10,
      tokens: 27,
      checked: [10, 9],
      accepted: [9, 8],
      plainSteps: 1,
      tokensPerSecond: { drafting: 120, plain: 100 },
      drafting: true,
    } as const;
    const { library, asked } = fakeLibrary(() => ['x'], { speculation });
    const { context, out } = world(library);
    assert.equal(await main(['bench', '-p', '0', '-n', '8', '-r', '1', '-f', file, '--spec', 'mtp:2'], context), 0);
    assert.equal(asked[0]?.load.speculation, 'mtp:2');
    assert.deepEqual(asked[0]?.stats.slice(0, 2), [true, true]);
    assert.match(out(), /^drafts: mtp, up to 2 tokens; 2\.70 tokens a step in 10 steps, 1 step without$/m);
    assert.match(out(), /^measured: 120\.0 tokens\/s with drafts, 100\.0 tokens\/s without; now with drafts$/m);
  });

  test('what does not go together, and an empty file, are told before anything is loaded', async () => {
    const { library, asked } = fakeLibrary(() => ['x']);
    const empty = join(folder, 'empty.txt');
    writeFileSync(empty, '\n \n');
    for (const [flags, message] of [
      [['-f', file, '-d', '4'], /--depth is of random tokens/],
      [['-f', empty], /empty\.txt has no prompt in it/],
      [['--spec', 'mtp:9'], /speculation: found "mtp:9"/],
    ] as const) {
      const { context, err } = world(library);
      assert.equal(await main(['bench', ...flags], context), 2);
      assert.match(err(), message);
    }
    assert.deepEqual(asked, []);
  });
});
