/** Which experts are in the GPU's slots: a cache of experts as runs see it, which change it only between each other. */

import type { ExpertCache, Upload } from '../../experts/cache.ts';
import type { Accuracy } from '../../experts/predict.ts';
import type { Prefetch } from '../../experts/prefetch.ts';
import type { Mode } from '../kernel.ts';

/** An expert and the slot of its layer's slab that it lies in, or goes to. */
export interface Placing {
  readonly layer: number;
  readonly expert: number;
  readonly slot: number;
}

/** What a run is over. */
export interface RunRows {
  readonly mode: Mode;
  readonly rows: number;
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
  chosen(layer: number, ids: ArrayLike<number>, run: RunRows): void;
  /** Which ones the layer's router named for a step on the hidden state of the layer before, [rows · ranks]. */
  named(layer: number, ids: ArrayLike<number>, ranks: number): void;
  /** A run has been through all layers. @returns by layer how well it was foreseen */
  ended(run: RunRows): ReadonlyMap<number, Accuracy>;
  /** By layer how many experts keep their slots for good, of those of which that was not said yet. */
  pinned(): ReadonlyMap<number, number>;
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
  /** Absent where nothing is foreseen. */
  readonly #prefetch: Prefetch | undefined;
  readonly #changed = new Set<number>();
  #begun: readonly Upload[] = [];
  #pinsTold = false;

  constructor(cache: ExpertCache, uploads: number, prefetch?: Prefetch) {
    this.#cache = cache;
    this.#uploads = uploads;
    this.#prefetch = prefetch;
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

  chosen(layer: number, ids: ArrayLike<number>, { mode, rows }: RunRows): void {
    if (this.#cache.groupOf(layer) === undefined) return;
    this.#cache.touch(layer, ids, rows);
    // A prompt uses nearly all, and says nothing of the next token.
    if (mode === 'step') this.#prefetch?.used(layer, ids);
  }

  named(layer: number, ids: ArrayLike<number>, ranks: number): void {
    this.#prefetch?.named(layer, ids, ranks);
  }

  fill(): readonly Placing[] {
    return this.#begin(this.#cache.fill());
  }

  begin(mode: Mode, rows: number): readonly Placing[] {
    const most = mode === 'step' ? this.#uploads : Math.floor((rows * this.#uploads) / PROMPT_ROWS_AN_UPLOAD);
    const uploads: Upload[] = [];
    while (uploads.length < most) {
      const upload = (mode === 'step' ? this.#prefetch?.begin() : undefined) ?? this.#beginWanted();
      if (upload === undefined) break;
      uploads.push(upload);
    }
    return this.#begin(uploads);
  }

  #beginWanted(): Upload | undefined {
    const id = this.#cache.candidate();
    return id && this.#cache.begin(id);
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

  ended({ mode, rows }: RunRows): ReadonlyMap<number, Accuracy> {
    this.#cache.endStep(rows);
    return (mode === 'step' ? this.#prefetch?.endStep() : undefined) ?? new Map();
  }

  pinned(): ReadonlyMap<number, number> {
    if (this.#pinsTold) return new Map();
    const layers = this.#cache.groups.flatMap((group) => group.layers);
    const pins = layers.map((layer) => [layer, this.#cache.pinsOf(layer)] as const).filter(([, pins]) => pins > 0);
    this.#pinsTold = pins.length > 0;
    return new Map(pins);
  }

  changed(): readonly number[] {
    const layers = [...this.#changed];
    this.#changed.clear();
    return layers;
  }
}
