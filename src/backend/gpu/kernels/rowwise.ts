import type { GpuRow } from '../row.ts';

export const rowwiseRows: readonly GpuRow[] = [];
