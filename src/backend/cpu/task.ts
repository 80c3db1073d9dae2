/** What a task sees of the worker that runs it. */

import type { Control } from './control.ts';
import type { CpuProgram } from './program.ts';

/** The functions of `assembly/index.ts`, by name; pointers and counts are numbers. */
export type Kernels = Readonly<Record<string, KernelCall>>;
export type KernelCall = (...parameters: number[]) => number;

export interface Arena {
  readonly kernels: Kernels;
  readonly bytes: Uint8Array;
  readonly i32: Int32Array;
  readonly f32: Float32Array;
  /** This worker's scratch. */
  readonly scratch: number;
  /** What the worker has last copied into its scratch from arena 0: the stage, and whose rows they are. */
  brought: { serial: number; from: number; key: number };
}

/** What a step is, known to every worker before it runs. */
export interface StepShape {
  rows: number;
  wanted: number;
}

/** A task made ready for one worker. `units` is asked once a stage; `run` gets a row, a pair or a unit. */
export interface RunningTask {
  units(): number;
  run(unit: number): void;
}

export interface WorkerView {
  readonly control: Control;
  readonly program: CpuProgram;
  readonly arenas: readonly Arena[];
  /** Arena 0, which holds the activations. */
  readonly home: Arena;
  readonly step: Readonly<StepShape>;
  /** Counts stages run, so that a task can tell what it brought into an arena in this one. */
  readonly serial: number;
}
