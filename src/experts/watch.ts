/** What a run of the model says of its experts while it runs, to whoever wants to know: statistics, a trace being recorded. */

import type { Accuracy } from './predict.ts';

/** `prompt`: rows of a prompt; `step`: decoded tokens. */
export type RunMode = 'prompt' | 'step';

/** Where a layer's picks found their experts, where some lie in slots; all others are computed elsewhere. */
export interface Found {
  /** Picks whose expert lay in a slot. */
  readonly hits: number;
  /** Picks whose expert was brought to the device for this run alone. */
  readonly passed: number;
}

/** Milliseconds that a layer of a run took, as its executor saw them. */
export interface LayerWait {
  /** From the submission that finds the ids to having them on the host; what the device computes before it is in it. */
  readonly roundTripMs: number;
  /** Bringing experts to the device for this run alone. */
  readonly passMs: number;
  /** The misses, on the CPU. */
  readonly cpuMs: number;
}

/** Experts that were copied to the device. */
export interface Brought {
  readonly experts: number;
  readonly bytes: number;
  /** `slots`: they stay there. `run`: they were there for one run alone. */
  readonly to: 'slots' | 'run';
}

/**
 * Told by a backend, layer after layer, between the beginning and the end of a run; of uploads to slots also after the end.
 * Nothing that it is given is to be kept, and it throws nothing: others may wait for the thread that it is called on.
 */
export interface ExpertWatcher {
  /** A run over so many rows begins. One that has not ended by then has failed. */
  began(mode: RunMode, rows: number): void;
  /**
   * A layer has chosen.
   * @param ids [rows · used], a row's best first
   * @param found absent: the layer has no slots
   */
  routed(layer: number, ids: ArrayLike<number>, found?: Found): void;
  waited(layer: number, wait: LayerWait): void;
  brought(layer: number, brought: Brought): void;
  /** How well the experts of a layer's run were foreseen, where a predictor names them. */
  foreseen(layer: number, accuracy: Accuracy): void;
  /** So many of a layer's experts keep their slots from now on. Told once a layer. */
  pinned(layer: number, experts: number): void;
  ended(): void;
}

/** Several as one; of none there is none. */
export function watchedBy(watchers: readonly ExpertWatcher[]): ExpertWatcher | undefined {
  if (watchers.length < 2) return watchers[0];
  const tell = (say: (watcher: ExpertWatcher) => void) => {
    for (const watcher of watchers) say(watcher);
  };
  return {
    began: (mode, rows) => tell((watcher) => watcher.began(mode, rows)),
    routed: (layer, ids, found) => tell((watcher) => watcher.routed(layer, ids, found)),
    waited: (layer, wait) => tell((watcher) => watcher.waited(layer, wait)),
    brought: (layer, brought) => tell((watcher) => watcher.brought(layer, brought)),
    foreseen: (layer, accuracy) => tell((watcher) => watcher.foreseen(layer, accuracy)),
    pinned: (layer, experts) => tell((watcher) => watcher.pinned(layer, experts)),
    ended: () => tell((watcher) => watcher.ended()),
  };
}
