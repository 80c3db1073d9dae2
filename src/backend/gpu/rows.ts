/** The GPU's kernel table, in the order `select` tries it. */

import { attentionRows } from './kernels/attention.ts';
import { embedRows } from './kernels/embed.ts';
import { headLinearRows } from './kernels/head-linear.ts';
import { linearRows } from './kernels/linear.ts';
import { matrixRows } from './kernels/matrix.ts';
import { moeRows } from './kernels/moe.ts';
import { moeMatrixRows } from './kernels/moe-prompt-matrix.ts';
import { projectRows } from './kernels/project.ts';
import { rotateRows } from './kernels/rotate.ts';
import { rowwiseRows } from './kernels/rowwise.ts';
import type { GpuRow } from './row.ts';

/** Rows whose tests run with and without the device's checks; one that is not there yet stands behind, by itself. */
const tried: readonly GpuRow[] = [
  ...embedRows,
  ...rowwiseRows,
  ...matrixRows,
  ...linearRows,
  ...headLinearRows,
  ...projectRows,
  ...rotateRows,
  ...attentionRows,
  ...moeMatrixRows,
  ...moeRows,
];

export const gpuRows: readonly GpuRow[] = tried.map((row): GpuRow => ({ ...row, unchecked: true }));
