/**
 * Runs on their way, landed in the order in which they were sent. A device that draws tokens is sent runs whose tokens it
 * alone knows yet, so that it never waits for the host; any other gets the next run when the one before has come back.
 */

/** What became of a run. */
export type Outcome<T> = { readonly value: T } | { readonly error: unknown };

interface Flight {
  /** Settles when the run has come back; never rejects. Gives what is then to be done. */
  readonly landing: Promise<() => void | Promise<void>>;
}

export class Flights {
  /** Runs that may be on their way at once. */
  readonly most: number;
  readonly #flights: Flight[] = [];

  constructor(most: number) {
    this.most = most;
  }

  get count(): number {
    return this.#flights.length;
  }

  get full(): boolean {
    return this.count >= this.most;
  }

  /** @param land called by {@link land}, when the run's turn has come */
  send<T>(run: Promise<T>, land: (outcome: Outcome<T>) => void | Promise<void>): void {
    const landing = run.then(
      (value) => () => land({ value }),
      (error: unknown) => () => land({ error }),
    );
    this.#flights.push({ landing });
  }

  /** Waits for the run that was sent first, where there is one. */
  async land(): Promise<void> {
    const [flight] = this.#flights;
    if (flight === undefined) return;
    const land = await flight.landing;
    this.#flights.shift();
    await land();
  }

  async landAll(): Promise<void> {
    while (this.count > 0) await this.land();
  }
}
