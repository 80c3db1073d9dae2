/** What a GPU's memory held of a model, beside what was planned. */

import type { DeviceMemory } from '../engine/types.ts';
import { showBytes } from './format.ts';

/** At the most, so far. */
export function describeMemory({ peakBytes, plannedBytes, memoryBytes }: DeviceMemory): string {
  const budget = memoryBytes === undefined ? '' : `, ${showBytes(memoryBytes)} may be used`;
  return `${showBytes(peakBytes)}, ${showBytes(plannedBytes)} were planned${budget}`;
}
