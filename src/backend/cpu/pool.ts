/**
 * The workers of a program. The thread that owns the pool is its first worker: it gives a command, does its own share, and
 * goes on when all have come to the last barrier.
 */

import { InternalError } from '../../errors.ts';
import type { PlatformWorker } from '../../platform/platform.ts';
import { CONTROL_WORDS, Command, Control, Fault } from './control.ts';
import type { CpuProgram } from './program.ts';
import { Runner } from './runner.ts';
import { type StorePiece, storeUnit, storeUnits } from './store.ts';
import type { Arena } from './task.ts';

/** What a worker is sent first. */
export interface WorkerData {
  readonly program: CpuProgram;
  readonly pieces: readonly StorePiece[];
  readonly memories: readonly WebAssembly.Memory[];
  readonly module: WebAssembly.Module;
  readonly control: SharedArrayBuffer;
  readonly worker: number;
}

/** A command's argument has its rows in the lower half, and in the upper one wanted rows or the section. */
const UPPER_SHIFT = 16;

/** One worker, whichever thread it is on: does its share of any command. */
export class PoolWorker {
  readonly control: Control;
  readonly runner: Runner;
  readonly #pieces: readonly StorePiece[];
  readonly #worker: number;

  constructor(data: WorkerData) {
    this.control = new Control(data.control, data.program.threads, data.program.spinMs);
    this.runner = new Runner({ ...data, control: this.control });
    this.#pieces = data.pieces;
    this.#worker = data.worker;
  }

  perform(command: number, argument: number): void {
    const rows = argument & ((1 << UPPER_SHIFT) - 1);
    const upper = argument >>> UPPER_SHIFT;
    if (command === Command.run) this.runner.run(0, rows, upper);
    else if (command === Command.mtp) this.runner.run(this.runner.program.mtp as number, rows, upper);
    else if (command === Command.experts) this.#runExperts(upper, rows);
    else if (command === Command.store) this.#store(this.#pieces[argument] as StorePiece);
  }

  /** By all workers but the owner, where there are others. */
  #runExperts(section: number, rows: number): void {
    const { control, runner } = this;
    runner.run(section, rows, 0, Math.max(1, control.threads - 1));
    if (this.#worker === 1) control.done();
  }

  #store(piece: StorePiece): void {
    const units = storeUnits(piece);
    const arena = this.runner.arenas[piece.arena] as Arena;
    try {
      for (let unit = this.control.claim(1); unit < units; unit = this.control.claim(1)) storeUnit(piece, unit, arena);
    } catch (error) {
      this.control.fault(Fault.crash, -1);
      this.runner.onCrash(error);
    }
    this.control.barrier();
  }
}

export class Pool {
  readonly #own: PoolWorker;
  readonly #others: readonly PlatformWorker[];
  #crash: unknown;
  /** The owner's share of what the others have begun, until it is done. */
  #owed: (() => void) | undefined;

  private constructor(own: PoolWorker, others: readonly PlatformWorker[]) {
    this.#own = own;
    this.#others = others;
    own.runner.onCrash = (error) => {
      this.#crash ??= error;
    };
    for (const worker of others) {
      worker.onMessage((message) => {
        this.#crash ??= message;
      });
    }
  }

  /** Gives spawned workers the program and waits until each is ready. */
  static async start(others: readonly PlatformWorker[], data: Omit<WorkerData, 'control' | 'worker'>): Promise<Pool> {
    const control = new SharedArrayBuffer(CONTROL_WORDS * 4);
    const ready = others.map((other, index) => {
      other.postMessage({ ...data, control, worker: index + 1 } satisfies WorkerData);
      return new Promise<void>((resolve, reject) => {
        other.onMessage(() => resolve());
        other.onError(reject);
      });
    });
    const own = new PoolWorker({ ...data, control, worker: 0 });
    await Promise.all(ready);
    // From here on they sleep in shared memory, which must not keep the process alive.
    for (const other of others) other.unref();
    return new Pool(own, others);
  }

  get arenas(): readonly Arena[] {
    return this.#own.runner.arenas;
  }

  get control(): Control {
    return this.#own.control;
  }

  /** Told of every choice of experts, on this thread, while others wait: see `Runner.onRouted`. */
  set onRouted(listener: Runner['onRouted']) {
    this.#own.runner.onRouted = listener;
  }

  /** One run over `rows` rows, of which `wanted` logits are wanted. Everything it reads lies in arena 0 already. */
  run(rows: number, wanted: number): void {
    this.#start(Command.run, rows | (wanted << UPPER_SHIFT))();
  }

  /** As {@link run}, of what predicts further ahead. */
  runMtp(rows: number, wanted: number): void {
    this.#start(Command.mtp, rows | (wanted << UPPER_SHIFT))();
  }

  /**
   * Starts one run of a section of experts over `rows` rows on the other workers, who do all of it: the owner is free meanwhile.
   * @returns the owner's wait for them, and without others its work: to be called once, before anything else is asked of the pool
   */
  startExperts(section: number, rows: number): () => void {
    const argument = rows | (section << UPPER_SHIFT);
    if (this.#others.length === 0) return this.#start(Command.experts, argument);
    const { control } = this.#own;
    const before = control.ended;
    control.command(Command.experts, argument);
    return () => control.waitForEnd(before);
  }

  /** Puts a piece that has been read in order. */
  store(piece: number): void {
    this.#start(Command.store, piece)();
    if (this.control.takeFault() !== undefined) throw this.crash();
  }

  /** What went wrong in a worker's code, once known. */
  crash(): unknown {
    return this.#crash ?? new InternalError('a worker failed; its message has not arrived yet');
  }

  /** Tells the others. @returns what does the owner's share; the others wait for it at the next barrier */
  #start(command: number, argument: number): () => void {
    this.#own.control.command(command, argument);
    const share = () => {
      this.#owed = undefined;
      this.#own.perform(command, argument);
    };
    this.#owed = share;
    return share;
  }

  async dispose(): Promise<void> {
    // Whoever has begun something and does not end it leaves the others waiting.
    this.#owed?.();
    this.#own.control.command(Command.exit, 0);
    await Promise.all(this.#others.map((worker) => worker.terminate()));
  }
}
