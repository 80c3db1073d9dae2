/**
 * Workers keep in step: no barrier is left before all have come to it, each unit of work is claimed once, and nobody sleeps
 * through a wake-up, however the threads happen to run. This file is also what the workers run.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { isMainThread, Worker, workerData } from 'node:worker_threads';
import { CONTROL_WORDS, Command, Control, Fault } from './control.ts';

interface Shared {
  readonly control: SharedArrayBuffer;
  /** For each worker: the round it is in. */
  readonly rounds: SharedArrayBuffer;
  /** For each unit: by how many it was claimed. */
  readonly units: SharedArrayBuffer;
  /** Words that say what a worker saw that it must not see. */
  readonly faults: SharedArrayBuffer;
  readonly threads: number;
  readonly worker: number;
  /** Of how many rounds one has a worker that comes so late that the others sleep. */
  readonly lateEach: number;
}

const UNITS = 37;
const LIMIT_MS = 60_000;
const SPIN_MS = 0.05;

/** Some time in which nothing is waited for, longer than others spin. */
function dawdle(milliseconds: number): void {
  const until = performance.now() + milliseconds;
  while (performance.now() < until);
}

/** One command: rounds with a barrier after each; in every round all units are claimed. */
function work(shared: Shared, control: Control, count: number): void {
  const { threads, worker, lateEach } = shared;
  const rounds = new Int32Array(shared.rounds);
  const units = new Int32Array(shared.units);
  const faults = new Int32Array(shared.faults);
  for (let round = 1; round <= count; round++) {
    if (lateEach > 0 && (round * 7 + worker * 13) % lateEach === 0) dawdle(0.2);
    // Plain writes: the barrier alone makes them visible.
    rounds[worker] = round;
    for (let unit = control.claim(1); unit < UNITS; unit = control.claim(1)) Atomics.add(units, unit, 1);
    control.barrier();
    for (let other = 0; other < threads; other++) if (rounds[other] !== round) Atomics.add(faults, 0, 1);
    for (let unit = 0; unit < UNITS; unit++) if (units[unit] !== round) Atomics.add(faults, 1, 1);
    // Nobody begins the next round before all have looked.
    control.barrier();
  }
}

if (!isMainThread) {
  const shared = workerData as Shared;
  const control = new Control(shared.control, shared.threads, SPIN_MS);
  let generation = 0;
  for (;;) {
    const next = control.next(generation);
    generation = next.generation;
    if (next.command === Command.exit) break;
    work(shared, control, next.argument);
  }
} else {
  // Who sleeps through a wake-up sleeps for ever, and the test's own timer with it: another thread has to end it.
  const watchdog = new Worker(`setTimeout(() => process.kill(process.pid, 'SIGABRT'), ${LIMIT_MS})`, { eval: true });
  after(() => watchdog.terminate());

  for (const { threads, rounds, commands, lateEach } of [
    { threads: 1, rounds: 2000, commands: 3, lateEach: 0 },
    { threads: 2, rounds: 6000, commands: 3, lateEach: 0 },
    { threads: 2, rounds: 200, commands: 100, lateEach: 97 },
    // More than there are cores here, so that workers are often not running.
    { threads: 5, rounds: 400, commands: 3, lateEach: 31 },
  ]) {
    test(`${threads} workers stay in step over ${commands} × ${rounds} rounds${lateEach ? ', some of them late' : ''}`, async () => {
      const buffer = (words: number) => new SharedArrayBuffer(words * 4);
      const all = { control: buffer(CONTROL_WORDS), rounds: buffer(threads), units: buffer(UNITS), faults: buffer(2) };
      const control = new Control(all.control, threads, SPIN_MS);
      const own: Shared = { ...all, threads, worker: 0, lateEach };
      const others = Array.from({ length: threads - 1 }, (_, index) => {
        return new Worker(new URL(import.meta.url), { workerData: { ...own, worker: index + 1 } });
      });
      const ended = others.map((worker) => new Promise<number>((resolve) => worker.once('exit', resolve)));
      for (let command = 0; command < commands; command++) {
        new Int32Array(all.units).fill(0);
        const count = Math.ceil(rounds / (command % 2 === 0 ? 1 : 10));
        control.command(Command.run, count);
        work(own, control, count);
        // Between commands workers go to sleep.
        if (command % 50 === 1) dawdle(1);
      }
      assert.deepEqual([...new Int32Array(all.faults)], [0, 0]);
      control.command(Command.exit, 0);
      assert.deepEqual(await Promise.all(ended), new Array(threads - 1).fill(0));
    });
  }

  test('the first fault is kept, with its layer, until it is taken', () => {
    const control = new Control(new SharedArrayBuffer(CONTROL_WORDS * 4), 1, SPIN_MS);
    assert.equal(control.takeFault(), undefined);
    for (const [kind, layer] of [
      [Fault.notFinite, -1],
      [Fault.router, 0],
      [Fault.cache, 93],
    ] as const) {
      control.fault(kind, layer);
      control.fault(Fault.notFinite, 7);
      assert.deepEqual(control.takeFault(), { kind, layer });
      assert.equal(control.takeFault(), undefined);
    }
  });

  test('a barrier of one worker resets the work counter, as of many', () => {
    const control = new Control(new SharedArrayBuffer(CONTROL_WORDS * 4), 1, SPIN_MS);
    assert.deepEqual([control.claim(3), control.claim(1), control.claim(1)], [0, 3, 4]);
    control.barrier();
    assert.equal(control.claim(2), 0);
  });

  test('a command counts generations, so that nobody takes it twice', () => {
    const control = new Control(new SharedArrayBuffer(CONTROL_WORDS * 4), 2, SPIN_MS);
    control.command(Command.run, 5);
    assert.deepEqual(control.next(0), { generation: 1, command: Command.run, argument: 5 });
    control.command(Command.store, 6);
    assert.deepEqual(control.next(1), { generation: 2, command: Command.store, argument: 6 });
  });
}
