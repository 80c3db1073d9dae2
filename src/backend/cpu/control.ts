/**
 * The shared words by which the workers of a pool keep in step: a command with its generation, a work counter, a barrier,
 * and the first fault. Waiting spins for a while, then sleeps.
 */

/** Words of the control block (Int32). */
export const CONTROL_WORDS = 16;

const COMMAND_GENERATION = 0;
const COMMAND = 1;
const ARGUMENT = 2;
const COUNTER = 3;
const ARRIVED = 4;
const PHASE = 5;
const SLEEPERS = 6;
const FAULT = 7;
const DONE = 8;

/** What the pool is told to do. */
export const Command = { exit: 0, run: 1, store: 2, measure: 3, experts: 4, mtp: 5 } as const;

/** Kinds of fault; a fault word is layer · 16 + kind, with layer + 1 so that the embedding (-1) fits. */
export const Fault = { none: 0, notFinite: 1, router: 2, crash: 3, cache: 4 } as const;

export class Control {
  readonly words: Int32Array;
  readonly threads: number;
  readonly #spinMs: number;

  /** @param spinMs how long a wait spins before it sleeps */
  constructor(buffer: SharedArrayBuffer, threads: number, spinMs: number) {
    this.words = new Int32Array(buffer);
    this.threads = threads;
    this.#spinMs = spinMs;
  }

  /** Tells the others; the caller then does its own share. */
  command(command: number, argument: number): void {
    Atomics.store(this.words, COMMAND, command);
    Atomics.store(this.words, ARGUMENT, argument);
    this.#advance(COMMAND_GENERATION);
  }

  /** Waits for the next command after `generation`. */
  next(generation: number): { generation: number; command: number; argument: number } {
    this.#wait(COMMAND_GENERATION, generation);
    return {
      generation: Atomics.load(this.words, COMMAND_GENERATION),
      command: Atomics.load(this.words, COMMAND),
      argument: Atomics.load(this.words, ARGUMENT),
    };
  }

  get generation(): number {
    return Atomics.load(this.words, COMMAND_GENERATION);
  }

  /** The next `size` units of the stage's work; returns the first of them. */
  claim(size: number): number {
    return Atomics.add(this.words, COUNTER, size);
  }

  /**
   * Returns when every worker has come; what each wrote before is then visible to all. Resets the work counter.
   * @param workers how many take part; all must say the same
   */
  barrier(workers = this.threads): void {
    if (workers === 1) {
      this.words[COUNTER] = 0;
      return;
    }
    const phase = Atomics.load(this.words, PHASE);
    if (Atomics.add(this.words, ARRIVED, 1) === workers - 1) {
      Atomics.store(this.words, ARRIVED, 0);
      Atomics.store(this.words, COUNTER, 0);
      this.#advance(PHASE);
    } else {
      this.#wait(PHASE, phase);
    }
  }

  /** How many runs have been ended by {@link done}. */
  get ended(): number {
    return Atomics.load(this.words, DONE);
  }

  /** Says that a run without the owner has ended: by one of its workers, behind their last barrier. */
  done(): void {
    this.#advance(DONE);
  }

  /** Returns when a run has ended that had not when {@link ended} was `before`. */
  waitForEnd(before: number): void {
    this.#wait(DONE, before);
  }

  /** Keeps the first fault. */
  fault(kind: number, layer: number): void {
    Atomics.compareExchange(this.words, FAULT, 0, (layer + 1) * 16 + kind);
  }

  takeFault(): { kind: number; layer: number } | undefined {
    const word = Atomics.exchange(this.words, FAULT, 0);
    return word === 0 ? undefined : { kind: word & 15, layer: (word >> 4) - 1 };
  }

  #advance(index: number): void {
    Atomics.add(this.words, index, 1);
    if (Atomics.load(this.words, SLEEPERS) > 0) Atomics.notify(this.words, index);
  }

  #wait(index: number, before: number): void {
    const { words } = this;
    let until = 0;
    for (let spins = 1; Atomics.load(words, index) === before; spins++) {
      pause();
      if (spins % 64 !== 0) continue;
      const now = performance.now();
      if (until === 0) until = now + this.#spinMs;
      else if (now > until) {
        // Announced before sleeping: who advances after this sees a sleeper, who advanced before makes `wait` return at once.
        Atomics.add(words, SLEEPERS, 1);
        Atomics.wait(words, index, before);
        Atomics.sub(words, SLEEPERS, 1);
      }
    }
  }
}

/** Tells the core that this is a spin, where the engine has the instruction. */
const pause: () => void = 'pause' in Atomics ? () => (Atomics as unknown as { pause(): void }).pause() : () => {};
