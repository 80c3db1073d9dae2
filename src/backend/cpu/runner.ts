/** One worker's view of a program: a kernel instance for each arena, and the loop over stages that all workers run in step. */

import { type Control, Fault } from './control.ts';
import { makeTask } from './kernels/index.ts';
import type { CpuProgram, Space } from './program.ts';
import type { Arena, Kernels, RunningTask, StepShape, WorkerView } from './task.ts';

interface RunningStage {
  readonly space: Space;
  readonly used: number;
  readonly tasks: readonly RunningTask[];
}

export class Runner implements WorkerView {
  readonly control: Control;
  readonly program: CpuProgram;
  readonly arenas: readonly Arena[];
  readonly step: StepShape = { rows: 0, wanted: 0 };
  /** Counts stages run, so that a task can tell what it brought into an arena in this one. */
  serial = 0;
  readonly #stages: readonly RunningStage[];
  onCrash: (error: unknown) => void = () => {};

  constructor(options: {
    readonly control: Control;
    readonly program: CpuProgram;
    readonly memories: readonly WebAssembly.Memory[];
    readonly module: WebAssembly.Module;
    readonly worker: number;
  }) {
    const { control, program, memories, module, worker } = options;
    this.control = control;
    this.program = program;
    this.arenas = memories.map((memory, index) => ({
      kernels: new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as Kernels,
      bytes: new Uint8Array(memory.buffer),
      i32: new Int32Array(memory.buffer),
      f32: new Float32Array(memory.buffer),
      scratch: (program.scratch[index] ?? 0) + worker * (program.scratchBytes[index] ?? 0),
      brought: { serial: -1, from: 0, key: 0 },
    }));
    this.#stages = program.stages.map(({ space, used, tasks }) => ({
      space,
      used,
      tasks: tasks.map((task) => makeTask(task, this)),
    }));
  }

  /** The arena that holds activations. */
  get home(): Arena {
    return this.arenas[0] as Arena;
  }

  /** This worker's share of one run; all workers call it at once. */
  run(rows: number, wanted: number): void {
    this.step.rows = rows;
    this.step.wanted = wanted;
    for (const stage of this.#stages) {
      this.serial++;
      const total = this.#total(stage);
      // Every worker finds the same total, so all skip the barrier together.
      if (total === 0) continue;
      try {
        if (stage.space === 'units') this.#runUnits(stage, total);
        else this.#runRows(stage, total);
      } catch (error) {
        this.control.fault(Fault.crash, -1);
        this.onCrash(error);
      }
      this.control.barrier();
    }
  }

  #total(stage: RunningStage): number {
    if (stage.space === 'rows') return this.step.rows;
    if (stage.space === 'pairs') return this.step.rows * stage.used;
    let total = 0;
    for (const task of stage.tasks) total += task.units();
    return total;
  }

  #runUnits(stage: RunningStage, total: number): void {
    const { tasks } = stage;
    for (let unit = this.control.claim(1); unit < total; unit = this.control.claim(1)) {
      let within = unit;
      for (const task of tasks) {
        const units = task.units();
        if (within < units) {
          task.run(within);
          break;
        }
        within -= units;
      }
    }
  }

  #runRows(stage: RunningStage, total: number): void {
    const { tasks } = stage;
    const size = Math.max(1, Math.floor(total / (this.control.threads * 4)));
    for (let first = this.control.claim(size); first < total; first = this.control.claim(size)) {
      const end = Math.min(total, first + size);
      for (let row = first; row < end; row++) {
        for (const task of tasks) task.run(row);
      }
    }
  }
}
