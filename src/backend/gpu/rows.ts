/** The GPU's kernel table, in the order `select` tries it. */

import { attentionRows } from './kernels/attention.ts';
import { embedRows } from './kernels/embed.ts';
import { linearRows } from './kernels/linear.ts';
import { matrixRows } from './kernels/matrix.ts';
import { moeRows } from './kernels/moe.ts';
import { moeMatrixRows } from './kernels/moe-prompt-matrix.ts';
import { projectRows } from './kernels/project.ts';
import { rotateRows } from './kernels/rotate.ts';
import { rowwiseRows } from './kernels/rowwise.ts';
import type { GpuRow } from './row.ts';

export const gpuRows: readonly GpuRow[] = [
  ...embedRows,
  ...rowwiseRows,
  ...matrixRows,
  ...linearRows,
  ...projectRows,
  ...rotateRows,
  ...attentionRows,
  ...moeMatrixRows,
  ...moeRows,
];
