import type { GpuRow } from '../row.ts';

export const linearRows: readonly GpuRow[] = [];
