/** Counts where a model's picks were computed. */

import type { Executable } from '../../src/backend/backend.ts';
import type { Accuracy } from '../../src/experts/predict.ts';
import type { Brought, ExpertWatcher } from '../../src/experts/watch.ts';

export class PickCounter implements ExpertWatcher {
  /** Picks whose expert lay in a slot, was computed elsewhere, or was brought to the device for a run. */
  hits = 0;
  misses = 0;
  passed = 0;
  /** Experts brought to slots. */
  uploads = 0;
  /** Layers of runs. */
  stops = 0;

  /** @param executable that tells of its experts */
  static of(executable: Executable): PickCounter {
    const counter = new PickCounter();
    executable.watch?.(counter);
    return counter;
  }

  began(): void {}

  routed(_layer: number, ids: ArrayLike<number>, found?: { readonly hits: number; readonly passed: number }): void {
    const { hits = 0, passed = 0 } = found ?? {};
    this.stops++;
    this.hits += hits;
    this.passed += passed;
    this.misses += ids.length - hits - passed;
  }

  waited(): void {}
  brought(_layer: number, { experts, to }: Brought): void {
    if (to === 'slots') this.uploads += experts;
  }
  foreseen(_layer: number, _accuracy: Accuracy): void {}
  pinned(_layer: number, _experts: number): void {}
  ended(): void {}
}
