/** Attention on the GPU: keys and values into the layer's pages, then each row's queries against what it sees. */

import type { AttentionOperation } from '../../../model/graph.ts';
import type { CacheType, Tolerance } from '../../kernel.ts';
import type { GpuRow } from '../row.ts';
import { storeDispatch } from './attention-cache.ts';
import { promptDispatch } from './attention-prompt.ts';
import { stepDispatches } from './attention-step.ts';
import { MAX_WORKGROUPS } from './snippets.ts';

export const attentionTolerances: Readonly<Record<CacheType, Tolerance>> = {
  f32: {
    relativeRms: 2e-6,
    reason: 'f32 scores and sums, where the reference has f64: the error of a score is a relative error of its weight',
  },
  f16: { relativeRms: 2e-3, reason: 'keys and values are kept as f16' },
};

/** Widest head, and most query heads a key head: they bound registers and shared memory. */
const MOST_WIDTH = 256;
const MOST_GROUP = 32;

/** true, or why heads of such widths do not fit the cache's kernels. */
export function headsAccepted({ headDim, valueDim }: Pick<AttentionOperation, 'headDim' | 'valueDim'>): true | string {
  if (headDim % 4 === 0 && valueDim % 4 === 0 && headDim <= MOST_WIDTH && valueDim <= MOST_WIDTH) return true;
  return `needs heads in multiples of 4 up to ${MOST_WIDTH}, found ${headDim} for keys and ${valueDim} for values`;
}

export const attentionRows: readonly GpuRow[] = (['f16', 'f32'] as const).map(
  (cache): GpuRow => ({
    name: `attention-${cache}`,
    device: 'gpu',
    operation: 'attention',
    modes: ['prompt', 'step'],
    tolerance: attentionTolerances[cache],
    accepts(request) {
      const operation = request.operation as AttentionOperation;
      const { heads, kvHeads } = operation;
      if (request.cache !== cache) return `keeps a cache of ${cache}, found ${request.cache}`;
      const fits = headsAccepted(operation);
      if (fits !== true) return fits;
      if (heads % kvHeads !== 0) return `needs query heads in multiples of key heads, found ${heads} and ${kvHeads}`;
      if (heads / kvHeads > MOST_GROUP)
        return `takes up to ${MOST_GROUP} query heads a key head, found ${heads / kvHeads}`;
      if (request.rows > MAX_WORKGROUPS) return `takes up to ${MAX_WORKGROUPS} rows a run, found ${request.rows}`;
      return true;
    },
    emit(made, builder, mode) {
      const operation = made as AttentionOperation;
      builder.declareValue(operation.output, builder.width(operation.output));
      if (operation.stored !== true) builder.dispatch(mode, storeDispatch(operation, builder));
      const attend = mode === 'step' ? stepDispatches(operation, builder) : [promptDispatch(operation, builder)];
      for (const dispatch of attend) builder.dispatch(mode, dispatch);
    },
  }),
);
