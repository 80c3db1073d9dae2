/** Which experts are in the GPU's slots: a cache of experts as runs see it, which change it only between each other. */

import type { ExpertCache, Upload } from '../../experts/cache.ts';
import type { Mode } from '../kernel.ts';
import type { Placing, Residency } from './split-run.ts';

export class CachedResidency implements Residency {
  readonly #cache: ExpertCache;
  /** Most experts that are brought in a step. */
  readonly #uploads: number;
  readonly #changed = new Set<number>();
  #begun: readonly Upload[] = [];

  constructor(cache: ExpertCache, uploads: number) {
    this.#cache = cache;
    this.#uploads = uploads;
  }

  slotOf(layer: number, expert: number): number | undefined {
    return this.#cache.lookup(layer, expert);
  }

  chosen(layer: number, ids: ArrayLike<number>, rows: number): void {
    if (this.#cache.groupOf(layer) !== undefined) this.#cache.touch(layer, ids, rows);
  }

  /** What fills the slots before the first run. */
  fill(): readonly Placing[] {
    return this.#begin(this.#cache.fill());
  }

  begin(mode: Mode): readonly Placing[] {
    if (mode === 'prompt') return [];
    const uploads: Upload[] = [];
    while (uploads.length < this.#uploads) {
      const candidate = this.#cache.candidate();
      const upload = candidate && this.#cache.begin(candidate);
      if (upload === undefined) break;
      uploads.push(upload);
    }
    return this.#begin(uploads);
  }

  #begin(uploads: readonly Upload[]): readonly Placing[] {
    for (const { evicted } of uploads) if (evicted !== undefined) this.#changed.add(evicted.layer);
    this.#begun = uploads;
    return uploads;
  }

  commit(): void {
    for (const upload of this.#begun) {
      this.#cache.commit(upload);
      this.#changed.add(upload.layer);
    }
    this.#begun = [];
  }

  abort(): void {
    for (const upload of this.#begun) this.#cache.abort(upload);
    this.#begun = [];
  }

  ended(rows: number): void {
    this.#cache.endStep(rows);
  }

  changed(): readonly number[] {
    const layers = [...this.#changed];
    this.#changed.clear();
    return layers;
  }
}
