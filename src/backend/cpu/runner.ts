/** One worker's view of a program: a kernel instance for each arena, and the loop over stages that all workers run in step. */

import { type Control, Fault } from './control.ts';
import { type Choice, choicesOf } from './kernels/experts.ts';
import { makeTask } from './kernels/index.ts';
import type { CpuProgram, Place, Space } from './program.ts';
import type { Arena, Kernels, RunningTask, StepShape, WorkerView } from './task.ts';

interface RunningStage {
  readonly space: Space;
  readonly tasks: readonly RunningTask[];
  /** Choices of experts that stand when it is done. */
  readonly choices: readonly Choice[];
}

export class Runner implements WorkerView {
  readonly control: Control;
  readonly program: CpuProgram;
  readonly arenas: readonly Arena[];
  readonly step: StepShape = { rows: 0, wanted: 0 };
  /** Counts stages run, so that a task can tell what it brought into an arena in this one. */
  serial = 0;
  readonly #sections: readonly (readonly RunningStage[])[];
  readonly #places: readonly { readonly place: { offset: number }; readonly shared: number; readonly alone: number }[];
  #alone = false;
  onCrash: (error: unknown) => void = () => {};
  /**
   * Told what a layer has chosen, [rows · used], valid during the call, as soon as this worker knows that it stands. Absent:
   * nobody looks.
   */
  onRouted: ((layer: number, ids: Int32Array) => void) | undefined;

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
    const scratchOf = (arena: number) => (program.scratch[arena] ?? 0) + worker * (program.scratchBytes[arena] ?? 0);
    this.arenas = memories.map((memory, index) => ({
      kernels: new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as Kernels,
      bytes: new Uint8Array(memory.buffer),
      i32: new Int32Array(memory.buffer),
      f32: new Float32Array(memory.buffer),
      scratch: scratchOf(index) + (index === 0 ? program.aloneBytes : 0),
      brought: { serial: -1, from: 0, key: 0 },
    }));
    // The worker's own copy: its places change with what it runs.
    const sections = structuredClone(program.sections);
    this.#places = sections
      .flatMap((stages) => stages.flatMap(({ tasks }) => tasks.flatMap(placesOf)))
      .map((place) => ({
        place,
        shared: place.offset,
        alone: scratchOf(0) + (place.alone as number),
      }));
    this.#sections = sections.map((stages, section) =>
      stages.map(({ space, tasks }) => ({
        space,
        tasks: tasks.map((task) => makeTask(task, this)),
        // What only drafts is nobody's layer.
        choices: section === program.mtp ? [] : choicesOf(tasks),
      })),
    );
  }

  /** The arena that holds activations. */
  get home(): Arena {
    return this.arenas[0] as Arena;
  }

  /** This worker's share of one run of a section; all `workers` call it at once. */
  run(section: number, rows: number, wanted: number, workers = this.control.threads): void {
    this.step.rows = rows;
    this.step.wanted = wanted;
    this.#settle(rows === 1);
    // Whether workers may still be in stages that no barrier has ended.
    let open = false;
    for (const stage of this.#sections[section] as readonly RunningStage[]) {
      this.serial++;
      const total = this.#total(stage);
      // Every worker finds the same total, so all skip the barrier together.
      if (total === 0) continue;
      // What one row needs is done sooner than waited for: every worker does all of it, for itself.
      const alone = rows === 1 && stage.space !== 'units';
      try {
        if (alone) this.#runChain(stage, 0, total);
        else if (stage.space === 'units') this.#runUnits(stage, total);
        else this.#runRows(stage, total);
      } catch (error) {
        this.control.fault(Fault.crash, -1);
        this.onCrash(error);
      }
      if (!alone) this.control.barrier(workers);
      open = alone;
      if (this.onRouted !== undefined && stage.choices.length > 0) this.#tell(stage.choices, this.onRouted);
    }
    if (open) this.control.barrier(workers);
  }

  /** What reads the choices comes in the next stage, and this worker's own share of that is not done: nothing has taken their place. */
  #tell(choices: readonly Choice[], listener: NonNullable<Runner['onRouted']>): void {
    try {
      for (const { layer, ids, used } of choices) {
        listener(layer, this.home.i32.subarray(ids.offset / 4, ids.offset / 4 + this.step.rows * used));
      }
    } catch (error) {
      // The others wait at the next barrier.
      this.control.fault(Fault.crash, -1);
      this.onCrash(error);
    }
  }

  /** Points every place that has a copy for runs of one row at that copy, or back. */
  #settle(alone: boolean): void {
    if (alone === this.#alone) return;
    this.#alone = alone;
    for (const entry of this.#places) entry.place.offset = alone ? entry.alone : entry.shared;
  }

  #total(stage: RunningStage): number {
    if (stage.space === 'rows') return this.step.rows;
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
    const size = Math.max(1, Math.floor(total / (this.control.threads * 4)));
    for (let first = this.control.claim(size); first < total; first = this.control.claim(size)) {
      this.#runChain(stage, first, Math.min(total, first + size));
    }
  }

  #runChain({ tasks }: RunningStage, first: number, end: number): void {
    for (let row = first; row < end; row++) {
      for (const task of tasks) task.run(row);
    }
  }
}

/** The places in a task, however deep, that have a copy for runs of one row. */
function placesOf(value: unknown): (Place & { offset: number })[] {
  if (typeof value !== 'object' || value === null) return [];
  const place = value as Place;
  if (typeof place.alone === 'number') return [place as Place & { offset: number }];
  return Object.values(value).flatMap(placesOf);
}
