/**
 * What goes wrong where experts are split is told by name at every moment of a run, whichever device it is on: nothing hangs,
 * and what was not hit goes on, or is loaded again.
 */

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import type { Executable, ExpertRunner, ExpertWork } from '../../src/backend/backend.ts';
import { Gpu } from '../../src/backend/gpu/device.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import { ConclaveError, DeviceLostError, DisposedError, InternalError, NonFiniteError } from '../../src/errors.ts';
import { nodePlatform } from '../../src/platform/node.ts';
import { type MoeCase, spec } from '../conformance/support/moe-cases.ts';
import { rowsStep, type Tiny } from '../conformance/support/tiny-graph.ts';
import { relativeRms } from '../support/device.ts';
import { closeGpuTestDevice, gpuTestDevice } from '../support/gpu.ts';
import {
  ChosenRouting,
  expectedOf,
  prepareSplit,
  type SplitModel,
  splitLayers,
  tableOf,
} from '../support/split-layers.ts';

const given: MoeCase = { hidden: 32, moe: spec(8, 2, 32), formats: {} };
const LAYERS = 3;
const tiny = splitLayers(given, LAYERS);
const table = tableOf(tiny);
/** As in `split-storm.test.ts`. */
const MOST_RMS = 1e-5;
/** Rows of a prompt. */
const PROMPT = 40;

let expected: Awaited<ReturnType<typeof expectedOf>>;
/** Kernels are compiled as long as somebody uses them. */
let kept: SplitModel;

before(async () => {
  expected = await expectedOf(tiny);
  kept = await prepareSplit(tiny, { expertCache: 'slru:2' }, { gpu: await gpuTestDevice() });
});

after(async () => {
  await kept?.executable.dispose();
  await closeGpuTestDevice();
});

/** Rows that all choose the same experts in all layers. */
function choose(routing: ChosenRouting, rows: number, experts: readonly [number, number]): void {
  const ids = Uint32Array.from({ length: rows * 2 }, (_, pair) => experts[pair % 2] as number);
  for (let layer = 0; layer < LAYERS; layer++) routing.choose(layer, ids);
}

/** Rows that choose all experts in turn: of a prompt some of these pass through the GPU, and some stay on the CPU. */
function chooseAll(routing: ChosenRouting, rows: number): void {
  const ids = Uint32Array.from({ length: rows * 2 }, (_, pair) => pair % given.moe.experts);
  for (let layer = 0; layer < LAYERS; layer++) routing.choose(layer, ids);
}

const all = (rows: number) => Array.from({ length: rows }, (_, row) => row);
const runOf = ({ executable }: SplitModel, mode: Mode, rows: number) =>
  executable.run(rowsStep(mode, 0, rows, all(rows)));

/** Steps of changing experts, each as the reference has it. */
async function checkRuns(model: SplitModel, routing: ChosenRouting, source: typeof expected = expected): Promise<void> {
  for (let run = 0; run < 12; run++) {
    const first = (2 * run) % 8;
    choose(routing, 2, [first, first + 1]);
    const found = await runOf(model, 'step', 2);
    const wanted = source(table.subarray(0, 2 * given.hidden), (layer) => routing.ids(layer));
    const error = relativeRms(found, wanted);
    assert.ok(error <= MOST_RMS, `step ${run}: a relative RMS of ${error}`);
  }
}

/** Rejections are of errors that have names. */
async function rejectionOf(running: Promise<unknown>): Promise<ConclaveError> {
  const outcome = await running.then(
    () => assert.fail('nothing went wrong'),
    (error: unknown) => error,
  );
  assert.ok(outcome instanceof ConclaveError, String((outcome as Error).stack));
  return outcome;
}

/** The experts of a prepared executable with something in their place. */
function withRunner(executable: Executable, change: (runner: ExpertRunner) => Partial<ExpertRunner>): Executable {
  const runner = executable.experts;
  if (runner === undefined) return executable;
  const own: ExpertRunner = {
    limits: runner.limits,
    start: (work) => runner.start(work),
    home: (layer, part, expert) => runner.home?.(layer, part, expert) as Uint8Array,
    ...change(runner),
  };
  return {
    run: (step) => executable.run(step),
    bytes: executable.bytes,
    experts: own,
    dispose: () => executable.dispose(),
  };
}

/** The model with weights of one expert of a layer that are no numbers. */
function damaged(layer: number, expert: number): Tiny {
  const part = tiny.weights.get(`layers.${layer}.moe.down`)?.parts[0];
  assert.ok(part !== undefined);
  const bytes = tiny.bytes.slice();
  const each = part.bytes / given.moe.experts;
  bytes.fill(0xff, part.offset + expert * each, part.offset + expert * each + 4);
  return { ...tiny, bytes };
}

describe('weights that are not finite', () => {
  for (const [where, expertCache, expert] of [
    ['the CPU', 'static:6', 7],
    ['the GPU', 'static:6', 0],
  ] as const) {
    for (let layer = 0; layer < LAYERS; layer++) {
      test(`of an expert on ${where} name layer ${layer}; rows that do not choose it are as before`, async () => {
        const routing = new ChosenRouting();
        const gpu = await gpuTestDevice();
        const model = await prepareSplit(damaged(layer, expert), { expertCache }, { gpu, routing });
        try {
          for (const mode of ['step', 'prompt'] as const) {
            for (const rows of mode === 'step' ? [1, 3] : [1, PROMPT]) {
              choose(routing, rows, [expert, 3]);
              const error = await rejectionOf(runOf(model, mode, rows));
              assert.ok(error instanceof NonFiniteError, error.message);
              assert.match(error.message, new RegExp(`^layer ${layer} \\(blk\\.${layer}\\): .* is not finite`));
              assert.equal(error.data.layer, layer);
              choose(routing, rows, [2, 3]);
              const found = await runOf(model, mode, rows);
              const wanted = expected(table.subarray(0, rows * given.hidden), (of) => routing.ids(of));
              assert.ok(relativeRms(found, wanted) <= MOST_RMS);
            }
          }
        } finally {
          await model.executable.dispose();
        }
      });
    }
  }
});

describe('the experts on the CPU', () => {
  for (const moment of ['when they begin', 'when they end', 'when a copy of one is asked for'] as const) {
    test(`fail ${moment}: the run fails with what they say, and the next ones are right`, async () => {
      const routing = new ChosenRouting();
      let fails = false;
      const failure =
        moment === 'when a copy of one is asked for'
          ? new InternalError('made to fail')
          : new NonFiniteError('layer 0 (blk.0): made to fail', { data: { layer: 0 } });
      const model = await prepareSplit(
        tiny,
        { expertCache: 'slru:2' },
        {
          gpu: await gpuTestDevice(),
          routing,
          damage: (executable) =>
            withRunner(executable, (runner) => ({
              start(work: ExpertWork) {
                if (fails && moment === 'when they begin') throw failure;
                const finish = runner.start(work);
                return () => {
                  const made = finish();
                  if (fails && moment === 'when they end') throw failure;
                  return made;
                };
              },
              home(layer, part, expert) {
                if (fails && moment === 'when a copy of one is asked for') throw failure;
                return runner.home?.(layer, part, expert) as Uint8Array;
              },
            })),
        },
      );
      try {
        await checkRuns(model, routing);
        for (const mode of ['step', 'prompt'] as const) {
          fails = true;
          for (let run = 0; run < 3; run++) {
            // All experts: more than there are slots.
            const rows = mode === 'step' ? given.moe.experts / 2 : PROMPT;
            chooseAll(routing, rows);
            const error = await rejectionOf(runOf(model, mode, rows));
            // Who is to blame is found by other runs, which fail as well.
            if (error !== failure) assert.match(error.message, /^layer 0 \(blk\.0\): .* is not finite/);
            assert.equal(error.code, failure.code);
          }
          fails = false;
          await checkRuns(model, routing);
        }
      } finally {
        await model.executable.dispose();
      }
    });
  }
});

/** Moments of a run: when its experts on the CPU begin, and when a copy of one is asked for. */
const moments = [
  { what: 'a step between its choice and what comes after', mode: 'step', at: 'start' },
  { what: 'a step that brings an expert', mode: 'step', at: 'home' },
  { what: 'a prompt whose experts pass through', mode: 'prompt', at: 'home' },
  { what: 'a prompt whose rows are on the CPU', mode: 'prompt', at: 'start' },
] as const;

/** A model that does something once at a moment of its runs, and the run that it happens in. */
async function atMoment(
  gpu: Gpu,
  { mode, at }: (typeof moments)[number],
  happen: (model: SplitModel) => void,
): Promise<{ readonly model: SplitModel; readonly running: Promise<unknown> }> {
  const routing = new ChosenRouting();
  let armed = false;
  const now = () => {
    if (!armed) return;
    armed = false;
    happen(model);
  };
  const model: SplitModel = await prepareSplit(
    tiny,
    { expertCache: 'slru:2' },
    {
      gpu,
      routing,
      damage: (executable) =>
        withRunner(executable, (runner) => ({
          start(work: ExpertWork) {
            const finish = runner.start(work);
            // What later layers leave to the CPU depends on how long the first one took.
            if (at === 'start' && work.layer === 0) now();
            return finish;
          },
          home(layer, part, expert) {
            // As soon as whoever asks lets others come.
            if (at === 'home') queueMicrotask(now);
            return runner.home?.(layer, part, expert) as Uint8Array;
          },
        })),
    },
  );
  await checkRuns(model, routing);
  armed = true;
  if (mode === 'prompt') chooseAll(routing, PROMPT);
  else choose(routing, 3, [3, 4]);
  const running = (async () => {
    // What is brought was missed in the step before.
    for (let run = 0; run < 3; run++) await runOf(model, mode, mode === 'prompt' ? PROMPT : 3);
  })();
  return { model, running };
}

describe('a model that is disposed of', () => {
  for (const moment of moments) {
    test(`in ${moment.what} gives the run up`, async () => {
      let disposed: Promise<void> | undefined;
      const { model, running } = await atMoment(await gpuTestDevice(), moment, ({ executable }) => {
        disposed = executable.dispose();
      });
      assert.ok((await rejectionOf(running)) instanceof DisposedError);
      assert.ok(disposed !== undefined);
      await disposed;
      await assert.rejects(runOf(model, 'step', 1), DisposedError);
    });
  }

  test('at any other time of a run as well', async () => {
    const gpu = await gpuTestDevice();
    for (const mode of ['step', 'prompt'] as const) {
      for (const turns of [0, 1, 3, 10]) {
        const routing = new ChosenRouting();
        const model = await prepareSplit(tiny, { expertCache: 'slru:2' }, { gpu, routing });
        const rows = mode === 'step' ? 3 : PROMPT;
        chooseAll(routing, rows);
        const running = rejectionOf(runOf(model, mode, rows));
        for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
        await model.executable.dispose();
        assert.ok((await running) instanceof DisposedError);
      }
    }
  });

  test('leaves the device to others', async () => {
    const routing = new ChosenRouting();
    const model = await prepareSplit(tiny, { expertCache: 'lfu:2' }, { gpu: await gpuTestDevice(), routing });
    await checkRuns(model, routing);
    await model.executable.dispose();
  });
});

describe('loading', () => {
  test('that is given up ends with the reason, before and while the slots are filled', async () => {
    const gpu = await gpuTestDevice();
    for (const when of ['before', 'while'] as const) {
      const controller = new AbortController();
      const reason = new Error(`given up ${when}`);
      let asked = 0;
      if (when === 'before') controller.abort(reason);
      await assert.rejects(
        prepareSplit(
          tiny,
          { expertCache: 'static:90%' },
          {
            gpu,
            signal: controller.signal,
            damage: (executable) =>
              withRunner(executable, (runner) => ({
                home(layer, part, expert) {
                  if (++asked === 5) controller.abort(reason);
                  return runner.home?.(layer, part, expert) as Uint8Array;
                },
              })),
          },
        ),
        reason,
      );
    }
  });
});

describe('a lost device', () => {
  for (const moment of [moments[0], moments[2]]) {
    test(`in ${moment.what} is told by name, and the model can be loaded again`, async () => {
      const gpu = await Gpu.open(nodePlatform);
      const { model, running } = await atMoment(gpu, moment, () => gpu.device.destroy());
      const error = await rejectionOf(running);
      assert.ok(error instanceof DeviceLostError, error.message);
      assert.match(error.message, /load the model again, or use --device cpu$/);
      assert.ok((await rejectionOf(runOf(model, 'step', 1))) instanceof DeviceLostError);
      await model.executable.dispose();
      const routing = new ChosenRouting();
      const again = await prepareSplit(tiny, { expertCache: 'slru:2' }, { gpu: await gpuTestDevice(), routing });
      await checkRuns(again, routing);
      await again.executable.dispose();
    });
  }

  test('in loading, while the slots are filled', async () => {
    const gpu = await Gpu.open(nodePlatform);
    const loading = prepareSplit(
      tiny,
      { expertCache: 'slru:50%' },
      {
        gpu,
        damage: (executable) =>
          withRunner(executable, (runner) => ({
            home(layer, part, expert) {
              gpu.device.destroy();
              return runner.home?.(layer, part, expert) as Uint8Array;
            },
          })),
      },
    );
    assert.ok((await rejectionOf(loading)) instanceof DeviceLostError);
  });
});
