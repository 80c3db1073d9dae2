/** The CPU's kernel table, in the order `select` tries it. */

import { attentionRows } from './kernels/attention.ts';
import { linearRows } from './kernels/linear.ts';
import { moeRows } from './kernels/moe.ts';
import { rowwiseRows } from './kernels/rowwise.ts';
import type { CpuRow } from './row.ts';

export const cpuRows: readonly CpuRow[] = [...rowwiseRows, ...linearRows, ...attentionRows, ...moeRows];
