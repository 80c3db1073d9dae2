/** Which experts are in the GPU's slots: a cache of experts as runs see it, which change it only between each other. */

import type { ExpertCache, Upload } from '../../experts/cache.ts';
import type { Mode } from '../kernel.ts';

/** An expert and the slot of its layer's slab that it lies in, or goes to. */
export interface Placing {
  readonly layer: number;
  readonly expert: number;
  readonly slot: number;
}

/** Which experts are in slots, as the host knows it: what it says changes between runs only. */
export interface Residency {
  slotOf(layer: number, expert: number): number | undefined;
  /** Whether any of a layer's experts is in a slot, and whether all are. */
  holds(layer: number): boolean;
  holdsAll(layer: number): boolean;
  /** Whether what runs choose has a part in what is in slots. */
  readonly learns: boolean;
  /** Which experts the rows of a layer's run chose, [rows · used]. */
  chosen(layer: number, ids: ArrayLike<number>, rows: number): void;
  /** A run over so many rows has been through all layers. */
  ended(rows: number): void;
  /** What fills the slots before the first run. */
  fill(): readonly Placing[];
  /**
   * Experts that go to slots now: before a run of steps, or after one of a prompt. What was in these slots is not there any
   * more.
   */
  begin(mode: Mode, rows: number): readonly Placing[];
  /** The experts of `begin` are in their slots. */
  commit(): void;
  /** They are not, and nothing else is. */
  abort(): void;
  /** Layers of which {@link slotOf} answers otherwise than when this was asked last. */
  changed(): Iterable<number>;
}

/** Copies experts to slots. */
export interface Carrier {
  /**
   * What is submitted once it settles finds them there.
   * @throws DeviceLostError `device_lost`, DisposedError `disposed`; `signal.reason` when aborted
   */
  carry(placings: readonly Placing[], signal?: AbortSignal): Promise<void>;
  /** The same, by and by. */
  begin(placings: readonly Placing[]): Carrying;
  /** Gives up what is on its way. */
  destroy(): void;
  /** Settles when nothing is on its way any more. */
  settled(): Promise<void>;
  /** Bytes that an expert of a layer has on its way. */
  expertBytes(layer: number): number;
  /** Bytes on the device. */
  readonly bytes: number;
}

/** Experts on their way to slots, as far as somebody had the time. */
export interface Carrying {
  /** Copies one more matrix, if there is one and it can be done at once: about 0.1 ms. */
  advance(): void;
  /** Copies the others, and sends all. Once it settles what is submitted finds them in their slots. */
  finish(): Promise<void>;
}

/** Rows of a prompt for each expert that may be brought to a slot after it. */
const PROMPT_ROWS_AN_UPLOAD = 2;

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

  holds(layer: number): boolean {
    return this.#cache.table(layer)?.some((slot) => slot >= 0) ?? false;
  }

  holdsAll(layer: number): boolean {
    return this.#cache.table(layer)?.every((slot) => slot >= 0) ?? false;
  }

  get learns(): boolean {
    return this.#uploads > 0;
  }

  chosen(layer: number, ids: ArrayLike<number>, rows: number): void {
    if (this.#cache.groupOf(layer) !== undefined) this.#cache.touch(layer, ids, rows);
  }

  fill(): readonly Placing[] {
    return this.#begin(this.#cache.fill());
  }

  begin(mode: Mode, rows: number): readonly Placing[] {
    const most = mode === 'step' ? this.#uploads : Math.floor((rows * this.#uploads) / PROMPT_ROWS_AN_UPLOAD);
    const uploads: Upload[] = [];
    while (uploads.length < most) {
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
