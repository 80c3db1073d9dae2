import type { GpuRow } from '../row.ts';

export const moeRows: readonly GpuRow[] = [];
