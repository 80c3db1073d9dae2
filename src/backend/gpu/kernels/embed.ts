import type { GpuRow } from '../row.ts';

export const embedRows: readonly GpuRow[] = [];
