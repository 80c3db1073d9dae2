/**
 * What a run says about its experts: counters that the executor feeds, and a snapshot of them that is plain data and crosses
 * a worker's port.
 */

import { InternalError } from '../errors.ts';
import type { Accuracy } from './predict.ts';
import type { Brought, ExpertWatcher, Found, LayerWait, RunMode } from './watch.ts';

export type { LayerWait } from './watch.ts';

export interface LayerSnapshot {
  readonly layer: number;
  /** Steps in which the layer was run. */
  readonly steps: number;
  /** Picks: a row's choices of an expert. Hits, passed and misses add up to them where the layer has slots. */
  readonly picks: number;
  /** Of experts in slots. */
  readonly hits: number;
  /** Of experts that were brought to the device for the run of a prompt alone. */
  readonly passed: number;
  /** Computed elsewhere. */
  readonly misses: number;
  /** Steps in which every expert that was picked lay in a slot. */
  readonly wholeSteps: number;
  /** Steps in which the device waited for the host: all but those in which all of the layer's experts lay in slots. */
  readonly stops: number;
  /** Different experts, summed over steps: what a step reads, however many rows share it. */
  readonly uniqueExperts: number;
  /** Picks of the expert with most, over those of the mean one; 1: all alike. */
  readonly load: number;
  /** Of the picks, what the busier half of the experts got. */
  readonly busierHalfShare: number;
  /** Of the distribution of picks over experts, in bits. */
  readonly entropyBits: number;
  /** Of log2 of the experts: 1: all alike. */
  readonly entropyShare: number;
  /** Experts brought to slots, and their bytes where they came from. */
  readonly uploads: number;
  readonly uploadedBytes: number;
  /** Experts brought for a run alone. */
  readonly passes: number;
  readonly passedBytes: number;
  /**
   * Of steps for which experts were foreseen: different ones, summed over steps, that were named, that were used, and that were
   * both. `right` over `used` is the recall.
   */
  readonly foreseen: Accuracy;
  /** Experts that keep their slots for good. */
  readonly pinned: number;
  /** Sums. */
  readonly wait: LayerWait;
}

export interface ExpertStatsSnapshot {
  readonly experts: number;
  readonly steps: number;
  /** Rows of all steps. */
  readonly rows: number;
  /** In the order of the layers. */
  readonly layers: readonly LayerSnapshot[];
}

interface LayerCounters {
  readonly layer: number;
  /** [experts] */
  readonly picks: Float64Array;
  /** [experts] The step of the last pick, by the layer's own count. */
  readonly pickedAt: Float64Array;
  steps: number;
  hits: number;
  passed: number;
  misses: number;
  wholeSteps: number;
  stops: number;
  uniqueExperts: number;
  uploads: number;
  uploadedBytes: number;
  passes: number;
  passedBytes: number;
  named: number;
  usedThen: number;
  right: number;
  pinned: number;
  roundTripMs: number;
  passMs: number;
  cpuMs: number;
}

export class ExpertStats {
  readonly #experts: number;
  readonly #layers: ReadonlyMap<number, LayerCounters>;
  #steps = 0;
  #rows = 0;

  /** @param experts of each layer */
  constructor(layers: readonly number[], experts: number) {
    this.#experts = experts;
    this.#layers = new Map(layers.map((layer) => [layer, countersOf(layer, experts)]));
  }

  /**
   * A layer has chosen, once a step.
   * @param experts [picks] of all rows
   * @param found absent: the layer has no slots
   */
  routed(layer: number, experts: ArrayLike<number>, found?: Found): void {
    const counters = this.#of(layer);
    const step = ++counters.steps;
    for (let index = 0; index < experts.length; index++) {
      const expert = experts[index];
      counters.picks[expert]++;
      if (counters.pickedAt[expert] === step) continue;
      counters.pickedAt[expert] = step;
      counters.uniqueExperts++;
    }
    if (found === undefined) return;
    const { hits, passed } = found;
    counters.hits += hits;
    counters.passed += passed;
    counters.misses += experts.length - hits - passed;
    if (hits === experts.length) counters.wholeSteps++;
  }

  brought(layer: number, { experts, bytes, to }: Brought): void {
    const counters = this.#of(layer);
    if (to === 'slots') {
      counters.uploads += experts;
      counters.uploadedBytes += bytes;
    } else {
      counters.passes += experts;
      counters.passedBytes += bytes;
    }
  }

  /** How well a layer's step was foreseen, if anything was named for it. */
  foreseen(layer: number, { named, used, right }: Accuracy): void {
    if (named === 0) return;
    const counters = this.#of(layer);
    counters.named += named;
    counters.usedThen += used;
    counters.right += right;
  }

  /** So many of a layer's experts keep their slots for good. */
  pinned(layer: number, experts: number): void {
    this.#of(layer).pinned = experts;
  }

  waited(layer: number, { roundTripMs, passMs, cpuMs }: LayerWait): void {
    const counters = this.#of(layer);
    counters.stops++;
    counters.roundTripMs += roundTripMs;
    counters.passMs += passMs;
    counters.cpuMs += cpuMs;
  }

  /** A run of the graph over so many rows has ended. */
  endStep(rows: number): void {
    this.#steps++;
    this.#rows += rows;
  }

  snapshot(): ExpertStatsSnapshot {
    return {
      experts: this.#experts,
      steps: this.#steps,
      rows: this.#rows,
      layers: [...this.#layers.values()].map((counters) => layerSnapshot(counters)),
    };
  }

  #of(layer: number): LayerCounters {
    const counters = this.#layers.get(layer);
    if (counters === undefined) throw new InternalError(`layer ${layer} is none of those whose experts are counted`);
    return counters;
  }
}

/** What was counted of a model's runs: a prompt's many rows and a step's few have nothing to do with each other. */
export type RunStatsSnapshot = Readonly<Record<RunMode, ExpertStatsSnapshot>>;

/** Counts what runs say. A run that fails counts for as far as it came, but is no step. */
export class RunStats implements ExpertWatcher {
  readonly #make: () => ExpertStats;
  #stats: Readonly<Record<RunMode, ExpertStats>>;
  /** Experts pinned, by layer. */
  readonly #pinned = new Map<number, number>();
  #mode: RunMode = 'prompt';
  #rows = 0;

  /** @param experts of each layer */
  constructor(layers: readonly number[], experts: number) {
    this.#make = () => new ExpertStats(layers, experts);
    this.#stats = { prompt: this.#make(), step: this.#make() };
  }

  began(mode: RunMode, rows: number): void {
    this.#mode = mode;
    this.#rows = rows;
  }

  routed(layer: number, ids: ArrayLike<number>, found?: Found): void {
    this.#stats[this.#mode].routed(layer, ids, found);
  }

  waited(layer: number, wait: LayerWait): void {
    this.#stats[this.#mode].waited(layer, wait);
  }

  brought(layer: number, brought: Brought): void {
    this.#stats[this.#mode].brought(layer, brought);
  }

  foreseen(layer: number, accuracy: Accuracy): void {
    this.#stats[this.#mode].foreseen(layer, accuracy);
  }

  pinned(layer: number, experts: number): void {
    this.#pinned.set(layer, experts);
    this.#tellPins();
  }

  ended(): void {
    this.#stats[this.#mode].endStep(this.#rows);
  }

  snapshot(): RunStatsSnapshot {
    return { prompt: this.#stats.prompt.snapshot(), step: this.#stats.step.snapshot() };
  }

  /** Begins anew; what is pinned still is. */
  reset(): void {
    this.#stats = { prompt: this.#make(), step: this.#make() };
    this.#tellPins();
  }

  #tellPins(): void {
    for (const stats of Object.values(this.#stats)) {
      for (const [layer, experts] of this.#pinned) stats.pinned(layer, experts);
    }
  }
}

function countersOf(layer: number, experts: number): LayerCounters {
  return {
    layer,
    picks: new Float64Array(experts),
    pickedAt: new Float64Array(experts),
    steps: 0,
    hits: 0,
    passed: 0,
    misses: 0,
    wholeSteps: 0,
    stops: 0,
    uniqueExperts: 0,
    uploads: 0,
    uploadedBytes: 0,
    passes: 0,
    passedBytes: 0,
    named: 0,
    usedThen: 0,
    right: 0,
    pinned: 0,
    roundTripMs: 0,
    passMs: 0,
    cpuMs: 0,
  };
}

function layerSnapshot({ picks, ...counters }: LayerCounters): LayerSnapshot {
  const { roundTripMs, passMs, cpuMs, named, usedThen, right, pickedAt: _, ...counted } = counters;
  const all = picks.reduce((sum, count) => sum + count, 0);
  const entropyBits = entropyOf(picks);
  return {
    ...counted,
    picks: all,
    load: all === 0 ? 0 : (Math.max(...picks) * picks.length) / all,
    busierHalfShare: busierHalf(picks),
    entropyBits,
    entropyShare: picks.length > 1 ? entropyBits / Math.log2(picks.length) : 0,
    foreseen: { named, used: usedThen, right },
    wait: { roundTripMs, passMs, cpuMs },
  };
}

/** Shannon's entropy of the distribution that `counts` are of, in bits. */
export function entropyOf(counts: Float64Array): number {
  const all = counts.reduce((sum, count) => sum + count, 0);
  let bits = 0;
  for (const count of counts) if (count > 0) bits += (count / all) * Math.log2(all / count);
  return bits;
}

/** What the larger half of `counts` has of their sum. */
function busierHalf(counts: Float64Array): number {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all === 0) return 0;
  return (
    counts
      .toSorted()
      .subarray(Math.floor(counts.length / 2))
      .reduce((sum, count) => sum + count, 0) / all
  );
}

/** A snapshot's layers as one; what is a mean of a layer is a mean of all layers that chose anything. */
export function totalOf({ layers }: ExpertStatsSnapshot): Omit<LayerSnapshot, 'layer'> {
  const sum = (pick: (layer: LayerSnapshot) => number) => layers.reduce((total, layer) => total + pick(layer), 0);
  const chose = layers.filter(({ picks }) => picks > 0);
  const mean = (pick: (layer: LayerSnapshot) => number) =>
    chose.reduce((total, layer) => total + pick(layer), 0) / Math.max(1, chose.length);
  return {
    steps: sum(({ steps }) => steps),
    picks: sum(({ picks }) => picks),
    hits: sum(({ hits }) => hits),
    passed: sum(({ passed }) => passed),
    misses: sum(({ misses }) => misses),
    wholeSteps: sum(({ wholeSteps }) => wholeSteps),
    stops: sum(({ stops }) => stops),
    uniqueExperts: sum(({ uniqueExperts }) => uniqueExperts),
    load: mean(({ load }) => load),
    busierHalfShare: mean(({ busierHalfShare }) => busierHalfShare),
    entropyBits: mean(({ entropyBits }) => entropyBits),
    entropyShare: mean(({ entropyShare }) => entropyShare),
    uploads: sum(({ uploads }) => uploads),
    uploadedBytes: sum(({ uploadedBytes }) => uploadedBytes),
    passes: sum(({ passes }) => passes),
    passedBytes: sum(({ passedBytes }) => passedBytes),
    foreseen: {
      named: sum(({ foreseen }) => foreseen.named),
      used: sum(({ foreseen }) => foreseen.used),
      right: sum(({ foreseen }) => foreseen.right),
    },
    pinned: sum(({ pinned }) => pinned),
    wait: {
      roundTripMs: sum(({ wait }) => wait.roundTripMs),
      passMs: sum(({ wait }) => wait.passMs),
      cpuMs: sum(({ wait }) => wait.cpuMs),
    },
  };
}
