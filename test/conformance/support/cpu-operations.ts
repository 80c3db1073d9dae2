/** Operations that do something to each row by itself, run on the CPU and held to the reference. */

import { cpuRows } from '../../../src/backend/cpu/rows.ts';
import type { Operation, OperationKind } from '../../../src/model/graph.ts';
import { checkRows, checkSameBits, PLAIN, ROWS } from './compare.ts';
import { type TinyWeight, tinyGraph } from './tiny-graph.ts';

export const cpuRowsOf = (kind: OperationKind) => cpuRows.filter(({ operation }) => operation === kind);

/** Operations of one kind side by side, each output by its name. */
export async function checkOperations(
  what: string,
  given: {
    readonly inputs: Readonly<Record<string, Float32Array<ArrayBuffer>>>;
    readonly operations: readonly Operation[];
    readonly widths: Readonly<Record<string, number>>;
    readonly weights?: Readonly<Record<string, TinyWeight>>;
  },
): Promise<void> {
  const names = given.operations.map(({ output }) => output);
  const tiny = tinyGraph({ ...given, rows: ROWS, output: names.at(-1) as string });
  const stated = cpuRowsOf(given.operations[0]?.kind as OperationKind)[0]?.tolerance.relativeRms as number;
  const values = await checkRows(tiny, { names, tolerance: () => stated, what });
  await checkSameBits(tiny, values, { features: PLAIN }, `${what}, plain SIMD`);
}
