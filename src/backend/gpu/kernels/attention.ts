import type { GpuRow } from '../row.ts';

export const attentionRows: readonly GpuRow[] = [];
