/** The letter box of the engine's loop: what the main side has posted, and in shared memory how much it has announced. */

import { type Command, FLAG_COMMANDS, FLAG_RECEIVED } from './protocol.ts';

/** Commands as they come, and whether more are on their way. */
export class Mail {
  readonly #flags: Int32Array | undefined;
  #commands: Command[] = [];
  #received = 0;
  #wake: (() => void) | undefined;

  constructor(flags: SharedArrayBuffer | undefined) {
    this.#flags = flags && new Int32Array(flags);
  }

  deliver(command: Command): void {
    this.#commands.push(command);
    this.#received++;
    this.#wake?.();
  }

  /** Every command there is; waits for one when `idle`, else only for those that were announced. */
  async take(idle: boolean): Promise<readonly Command[]> {
    while (idle ? this.#commands.length === 0 : this.#announced()) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    // Without shared memory nothing tells of commands: look after every run.
    if (!idle && this.#flags === undefined) await new Promise((resolve) => setTimeout(resolve, 0));
    if (this.#commands.length === 0) return [];
    const commands = this.#commands;
    this.#commands = [];
    return commands;
  }

  /** How many `tokens` messages the main side has dealt with; all of them where that is not known. */
  get tokensReceived(): number {
    return this.#flags === undefined ? Infinity : Atomics.load(this.#flags, FLAG_RECEIVED);
  }

  #announced(): boolean {
    return this.#flags !== undefined && this.#received < Atomics.load(this.#flags, FLAG_COMMANDS);
  }
}
