/** The CPU's kernel table, in the order `select` tries it. */

import { attentionRows } from './kernels/attention.ts';
import { elementwiseRows } from './kernels/elementwise.ts';
import { headLinearRows } from './kernels/head-linear.ts';
import { linearRows } from './kernels/linear.ts';
import { moeRows } from './kernels/moe.ts';
import { rowwiseRows } from './kernels/rowwise.ts';
import { singleExpertRows } from './kernels/single-experts.ts';
import type { CpuRow } from './row.ts';

/** What every kernel is built with. Relaxed SIMD is used where it is there, and changes no bit. */
const needed = ['simd', 'threads'];

export const cpuRows: readonly CpuRow[] = [
  ...rowwiseRows,
  ...elementwiseRows,
  ...linearRows,
  ...headLinearRows,
  ...attentionRows,
  ...moeRows,
  ...singleExpertRows,
].map((row) => ({
  ...row,
  accepts(request) {
    const lacking = needed.find((feature) => !request.features.has(feature));
    return lacking === undefined ? row.accepts(request) : `needs WebAssembly ${lacking}, which this runtime lacks`;
  },
}));
