/** Profiles: which rows are run for one, how runs are added up, and what comes back from the engine's worker. */

import assert from 'node:assert/strict';
import { suite, test } from 'node:test';
import { FakeExecutable, ProfilingExecutable } from '../../test/support/fake-executable.ts';
import { fakeModel, SAFE, VOCABULARY } from '../../test/support/fake-model.ts';
import { NonFiniteError, OutOfMemoryError, UsageError } from '../errors.ts';
import { PagePool, Timeline } from './kv-cache.ts';
import { addProfiles, profileRows } from './profile.ts';

const tokens = Int32Array.from({ length: 70 }, (_, i) => i);

async function runsOf(rows: 'prompt' | 'step', count: number) {
  const executable = new ProfilingExecutable({ pages: 4, vocabulary: VOCABULARY });
  const timeline = new Timeline(new PagePool(4), 256);
  const asked = { tokens: tokens.subarray(0, count), rows, repetitions: 3 };
  const profile = await profileRows(asked, { executable, timeline, promptRows: 32 });
  const runs = executable.runs.map(({ mode, positions }) => [mode, positions[0], positions.length]);
  return { profile, runs };
}

suite('profileRows', () => {
  test('a prompt is profiled chunk by chunk, all of them together', async () => {
    const { profile, runs } = await runsOf('prompt', 70);
    assert.deepEqual(runs, [
      ['prompt', 0, 32],
      ['prompt', 32, 32],
      ['prompt', 64, 6],
    ]);
    assert.deepEqual(profile, {
      dispatches: 12,
      encodeMs: 3,
      runMs: 6,
      kernels: [
        { label: 'both', dispatches: 3, ns: 140 },
        { label: 'prompt', dispatches: 9, ns: 70 },
      ],
    });
  });

  test('a step is profiled alone, after the rows before it', async () => {
    const { profile, runs } = await runsOf('step', 70);
    assert.deepEqual(runs, [
      ['prompt', 0, 32],
      ['prompt', 32, 32],
      ['prompt', 64, 5],
      ['step', 69, 1],
    ]);
    assert.deepEqual(profile, {
      dispatches: 4,
      encodeMs: 1,
      runMs: 2,
      kernels: [
        { label: 'both', dispatches: 1, ns: 2 },
        { label: 'step', dispatches: 3, ns: 1 },
      ],
    });
    assert.deepEqual((await runsOf('step', 1)).runs, [['step', 0, 1]]);
  });

  test('without a clock on the device there are no kernels, and kernels of a part are none of the whole', () => {
    const timed = { dispatches: 1, encodeMs: 2, runMs: 3, kernels: [{ label: 'a', dispatches: 1, ns: 5 }] };
    const untimed = { dispatches: 1, encodeMs: 2, runMs: 3 };
    assert.deepEqual(addProfiles([untimed, timed]), { dispatches: 2, encodeMs: 4, runMs: 6 });
  });

  test('a backend that tells nothing is not run', async () => {
    const executable = new FakeExecutable({ pages: 4, vocabulary: VOCABULARY });
    const timeline = new Timeline(new PagePool(4), 256);
    const asked = { tokens, rows: 'step', repetitions: 1 } as const;
    assert.equal(await profileRows(asked, { executable, timeline, promptRows: 32 }), undefined);
    assert.deepEqual(executable.runs, []);
  });
});

suite('Model.profile', () => {
  const few = [...tokens];

  test('comes back from the worker, with a bandwidth that is measured once', async () => {
    const model = await fakeModel({ architecture: 'profiled' });
    const prompt = await model.profile(few);
    assert.equal(prompt?.dispatches, 12, 'a prompt in chunks of 32, three repetitions');
    assert.deepEqual(prompt?.bandwidth, { bytesPerSecond: 1e9, bytes: 1 });
    const step = await model.profile(few, { rows: 'step', repetitions: 5 });
    assert.deepEqual(step, {
      dispatches: 6,
      encodeMs: 1,
      runMs: 2,
      kernels: [
        { label: 'both', dispatches: 1, ns: 2 },
        { label: 'step', dispatches: 5, ns: 1 },
      ],
      bandwidth: { bytesPerSecond: 1e9, bytes: 1 },
    });
    await model.dispose();
  });

  test('leaves the cache to others, also after an error', async () => {
    const model = await fakeModel({ architecture: 'profiled', pages: 2, context: 128 });
    const session = model.session();
    const ask = async (count: number) => {
      for await (const part of session.generate(
        { tokens: few.slice(0, count) },
        { ...SAFE, temperature: 0, maxTokens: 50 },
      )) {
        if (part.type === 'finish') return part.text;
      }
      return '';
    };
    const before = await ask(60);
    // Both pages: the resting session gives its own back.
    await model.profile([...few, ...few].slice(0, 128));
    await assert.rejects(model.profile([120]), NonFiniteError);
    assert.equal(await ask(60), before);
    await model.dispose();
  });

  test('is refused for rows and options that are none, and where the cache is taken', async () => {
    const model = await fakeModel({ architecture: 'profiled', pages: 1, context: 512 });
    for (const [bad, options, message] of [
      [[], {}, /empty/],
      [[VOCABULARY], {}, /128/],
      [Array.from({ length: 513 }, () => 1), {}, /a profile of 513 tokens.*512/],
      [[1], { rows: 'all' as 'step' }, /rows: found "all", expected 'prompt' or 'step'/],
      [[1], { repetitions: 0 }, /repetitions: found 0/],
      [[1], { often: 1 } as object, /profile has no option "often"/],
    ] as const) {
      await assert.rejects(
        model.profile(bad, options),
        (error) => error instanceof UsageError && message.test(error.message),
        message.source,
      );
    }
    await assert.rejects(model.profile(few), OutOfMemoryError);
    await model.dispose();
  });

  test('is nothing where the backend tells nothing', async () => {
    const model = await fakeModel();
    assert.equal(await model.profile(few), undefined);
    await model.dispose();
  });
});
