/** The reference: every weight decoded to f32, every value of a run kept. */

import { PAGE_ROWS } from '../../backend/backend.ts';
import { MAX_STEP_ROWS } from '../../backend/kernel.ts';
import { referenceRows } from '../../backend/reference/rows.ts';
import { referenceWeightBytes } from '../../backend/reference/store.ts';
import { cacheBytesOf, type Placed, type PlaceRequest, type Placer, pagesFor } from '../placer.ts';
import type { PlannedBuffer, PlannedWeight } from '../plan.ts';

/** It keeps every value of a run, so its runs are short. */
const MOST_PROMPT_ROWS = 64;

export const referencePlacer: Placer = {
  rows: referenceRows,
  features: ({ platform }) => platform.features,
  threads: () => 1,
  defaultCache: () => 'f32',
  promptRows: ({ options }) => Math.min(options.batch ?? MOST_PROMPT_ROWS, MOST_PROMPT_ROWS),
  memoryBytes: ({ options, platform }) => options.memoryBytes ?? platform.freeMemoryBytes,
  place,
};

function place({ request, context, promptRows }: PlaceRequest): Placed {
  const { graph, weights, options } = request;
  const planned = [...weights.values()].map(
    (weight): PlannedWeight => ({
      name: weight.name,
      format: weight.format,
      shape: weight.shape,
      bytes: referenceWeightBytes(weight),
      device: 'reference',
      layout: weight.format === 'F32' ? undefined : 'decoded to f32',
    }),
  );
  const rows = Math.max(promptRows, MAX_STEP_ROWS);
  const weightBytes = planned.reduce((sum, { bytes }) => sum + bytes, 0);
  const cacheBytes = cacheBytesOf(request, pagesFor(context, options) * PAGE_ROWS, 4);
  const bufferBytes = Object.values(graph.widths).reduce((sum, width) => sum + width * rows * 4, 0);
  const buffers: PlannedBuffer[] = [
    { name: 'every value of a run', bytes: bufferBytes, device: 'reference', lifetime: 'step' },
  ];
  return {
    arenas: [],
    weights: planned,
    buffers,
    weightBytes,
    cacheBytes,
    bufferBytes,
    total: weightBytes + cacheBytes + bufferBytes,
  };
}
