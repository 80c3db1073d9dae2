/** What a row's attention sees, and how sharply: numbers that every backend takes from here. */

import type { ReachSpec, TemperatureSpec } from './spec.ts';

/** The first position that a row at `position` sees; it sees all from there to its own. */
export function firstVisible(reach: ReachSpec | undefined, position: number): number {
  if (reach === undefined) return 0;
  const { kind, length } = reach;
  return kind === 'window' ? Math.max(0, position + 1 - length) : position - (position % length);
}

/** What the scores of a row at `position` are multiplied with, f32. */
export function temperatureAt({ length, scale }: TemperatureSpec, position: number): number {
  return Math.fround(1 + scale * Math.log1p(Math.floor((position + 1) / length)));
}
