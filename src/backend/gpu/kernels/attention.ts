/** Attention on the GPU: keys and values into the layer's pages, then each row's queries against what it sees. */

import type { Demand } from '../../../model/demands.ts';
import type { AttentionOperation } from '../../../model/graph.ts';
import type { CacheType, KernelRequest, Mode, Tolerance } from '../../kernel.ts';
import type { Builder, Dispatch } from '../builder.ts';
import type { GpuRow } from '../row.ts';
import { storeDispatch } from './attention-cache.ts';
import { promptDispatch } from './attention-prompt.ts';
import { promptMatrixDispatch } from './attention-prompt-matrix.ts';
import { stepDispatches } from './attention-step.ts';
import { matrixStepDispatches } from './attention-step-matrix.ts';
import { MATRIX_FEATURE } from './matrix.ts';
import { MAX_WORKGROUPS } from './snippets.ts';

export const attentionTolerances: Readonly<Record<CacheType, Tolerance>> = {
  f32: {
    relativeRms: 2e-6,
    reason: 'f32 scores and sums, where the reference has f64: the error of a score is a relative error of its weight',
  },
  f16: { relativeRms: 2e-3, reason: 'keys and values are kept as f16' },
};

type Widths = Pick<AttentionOperation, 'headDim' | 'valueDim'>;

/** Widest heads: they bound registers and shared memory. Latents are the widest that there are. */
const MOST_WIDTHS: Widths = { headDim: 576, valueDim: 512 };

/** true, or why heads of such widths do not fit the cache's kernels. */
export function headsAccepted({ headDim, valueDim }: Widths, most: Widths): true | string {
  if (headDim % 4 === 0 && valueDim % 4 === 0 && headDim <= most.headDim && valueDim <= most.valueDim) return true;
  return (
    `needs heads in multiples of 4, keys up to ${most.headDim} and values up to ${most.valueDim}, ` +
    `found ${headDim} for keys and ${valueDim} for values`
  );
}

/** Of the rows on subgroup matrices, where a page and what stands beside it fill workgroup memory. */
const MOST_MATRIX_WIDTH = 128;
const MOST_MATRIX_GROUP = 32;

/** true, or why an operation does not fit the kernels on subgroup matrices. */
function matrixAccepted({ operation, features }: KernelRequest): true | string {
  if (!features.has(MATRIX_FEATURE)) return `needs ${MATRIX_FEATURE}, which this device does not offer`;
  const { headDim, valueDim, heads, kvHeads } = operation as AttentionOperation;
  if (heads / kvHeads > MOST_MATRIX_GROUP) {
    return `takes up to ${MOST_MATRIX_GROUP} query heads a key head, found ${heads / kvHeads}`;
  }
  if ([headDim, valueDim].every((width) => width % 16 === 0 && width <= MOST_MATRIX_WIDTH)) return true;
  return `needs heads in multiples of 16 up to ${MOST_MATRIX_WIDTH}, found ${headDim} for keys and ${valueDim} for values`;
}

interface Kernel {
  readonly name: string;
  readonly cache: CacheType;
  readonly modes: readonly Mode[];
  readonly tolerance: Tolerance;
  readonly serves?: readonly Demand[];
  /** What it asks beyond what all do. */
  accepts?(request: KernelRequest): true | string;
  attend(operation: AttentionOperation, builder: Builder, mode: Mode): readonly Dispatch[];
}

function rowOf({ name, cache, modes, tolerance, serves, accepts, attend }: Kernel): GpuRow {
  return {
    name,
    device: 'gpu',
    operation: 'attention',
    modes,
    tolerance,
    serves,
    accepts(request) {
      const operation = request.operation as AttentionOperation;
      const { heads, kvHeads } = operation;
      if (request.cache !== cache) return `keeps a cache of ${cache}, found ${request.cache}`;
      const fits = headsAccepted(operation, MOST_WIDTHS);
      if (fits !== true) return fits;
      if (heads % kvHeads !== 0) return `needs query heads in multiples of key heads, found ${heads} and ${kvHeads}`;
      if (request.rows > MAX_WORKGROUPS) return `takes up to ${MAX_WORKGROUPS} rows a run, found ${request.rows}`;
      return accepts?.(request) ?? true;
    },
    emit(made, builder, mode) {
      const operation = made as AttentionOperation;
      builder.declareValue(operation.output, builder.width(operation.output));
      if (operation.rotated === undefined) builder.dispatch(mode, storeDispatch(operation, builder));
      for (const dispatch of attend(operation, builder, mode)) builder.dispatch(mode, dispatch);
    },
  };
}

const matrixServes: readonly Demand[] = ['a window of attention', 'chunks of attention', 'attention sinks'];

const matrixRows: readonly Kernel[] = [
  {
    name: 'attention-prompt-matrix-f16',
    cache: 'f16',
    modes: ['prompt'],
    tolerance: { relativeRms: 2e-3, reason: 'queries, keys, values and weights are f16; scores and sums are f32' },
    serves: matrixServes,
    accepts: matrixAccepted,
    attend: (operation, builder) => [promptMatrixDispatch(operation, builder)],
  },
  {
    name: 'attention-step-matrix-f16',
    cache: 'f16',
    modes: ['step'],
    tolerance: attentionTolerances.f16,
    serves: matrixServes,
    accepts: matrixAccepted,
    attend: matrixStepDispatches,
  },
];

const plainRows = (['f16', 'f32'] as const).map(
  (cache): Kernel => ({
    name: `attention-${cache}`,
    cache,
    modes: ['prompt', 'step'],
    tolerance: attentionTolerances[cache],
    serves: [...matrixServes, 'attention temperature', 'values that are the beginnings of their keys'],
    attend: (operation, builder, mode) =>
      mode === 'step' ? stepDispatches(operation, builder) : [promptDispatch(operation, builder)],
  }),
);

export const attentionRows: readonly GpuRow[] = [...matrixRows, ...plainRows].map(rowOf);
