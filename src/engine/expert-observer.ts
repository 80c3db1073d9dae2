/** What the engine's loop wants to know of the model's experts: statistics, where they were asked for, and a recording while there is one. */

import type { Executable } from '../backend/backend.ts';
import { RunStats } from '../experts/stats.ts';
import { watchedBy } from '../experts/watch.ts';
import type { RoutedModel } from '../plan/routing.ts';
import { type RoutingBlock, RoutingRecorder } from './routing-recorder.ts';

export class ExpertObserver {
  readonly stats: RunStats | undefined;
  readonly #executable: Pick<Executable, 'watch'>;
  readonly #routed: RoutedModel | undefined;
  readonly #post: (block: RoutingBlock) => void;
  #recorder: RoutingRecorder | undefined;

  constructor(options: {
    readonly executable: Pick<Executable, 'watch'>;
    /** Absent: the model has no experts, or some that nothing is told of. */
    readonly routed: RoutedModel | undefined;
    /** Whether what they do is counted. */
    readonly counts: boolean;
    readonly post: (block: RoutingBlock) => void;
  }) {
    const { executable, routed, counts, post } = options;
    this.#executable = executable;
    this.#routed = routed;
    this.#post = post;
    if (counts && routed !== undefined) this.stats = new RunStats(routed.seen, routed.experts);
    this.#watch();
  }

  /** Begins to record, or ends it when all is posted. Not while a run is on its way. */
  async record(on: boolean): Promise<void> {
    await this.#recorder?.flush(true);
    const routed = on ? this.#routed : undefined;
    this.#recorder = routed && new RoutingRecorder({ layers: routed.seen, used: routed.used, post: this.#post });
    this.#watch();
  }

  /** Between runs. @param last whether none follows for now */
  async settle(last: boolean): Promise<void> {
    await this.#recorder?.flush(last);
  }

  /** Does something that nothing is to be known of. */
  async unwatched<Result>(act: () => Promise<Result>): Promise<Result> {
    this.#executable.watch?.(undefined);
    try {
      return await act();
    } finally {
      this.#watch();
    }
  }

  /** The main side is done with a block. */
  taken(): void {
    this.#recorder?.taken();
  }

  #watch(): void {
    this.#executable.watch?.(watchedBy([this.stats, this.#recorder].filter((watcher) => watcher !== undefined)));
  }
}
