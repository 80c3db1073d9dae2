/** A model on the reference backend without engine or plan: for tests of what lies below them. */

import { PAGE_ROWS } from '../../src/backend/backend.ts';
import type { Mode } from '../../src/backend/kernel.ts';
import { type ReferenceExecutable, referenceBackend } from '../../src/backend/reference/backend.ts';
import { openModelFile } from '../../src/format/open.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import type { Graph } from '../../src/model/graph.ts';
import { readModel } from '../../src/model/read-model.ts';
import type { ModelSpec } from '../../src/model/spec.ts';
import type { Plan } from '../../src/plan/plan.ts';
import { nodeModelSource } from './node-source.ts';

export interface ReferenceModel {
  readonly spec: ModelSpec;
  readonly graph: Graph;
  readonly executable: ReferenceExecutable;
}

/** Loads a model with a KV cache of `pages` pages and gives it to `use`; everything is closed afterwards. */
export async function withReference<T>(
  path: string,
  use: (model: ReferenceModel) => Promise<T>,
  pages = 4,
): Promise<T> {
  const file = await openModelFile(await nodeModelSource(path));
  try {
    const { spec, weights, sources } = readModel(file);
    const graph = buildGraph(spec);
    // The reference asks nothing else of its plan.
    const plan = { cache: { pages } } as Plan;
    const executable = await referenceBackend.prepare({ plan, spec, graph, weights, sources });
    try {
      return await use({ spec, graph, executable: executable as ReferenceExecutable });
    } finally {
      await executable.dispose();
    }
  } finally {
    await file.close();
  }
}

/** Pages `first`, `first + step` … that hold `rows` positions. */
export function pagesFor(rows: number, first = 0, step = 1): Int32Array {
  return Int32Array.from({ length: Math.ceil(rows / PAGE_ROWS) }, (_, i) => first + i * step);
}

/** Runs tokens of one sequence from a position on; the logits of every row, copied: [T, vocabulary]. */
export async function runRows(
  { executable }: ReferenceModel,
  tokens: ArrayLike<number>,
  start: number,
  mode: Mode,
  pages = pagesFor(start + tokens.length),
): Promise<Float32Array> {
  const rows = Int32Array.from({ length: tokens.length }, (_, t) => t);
  const logits = await executable.run({
    mode,
    tokens: Int32Array.from(tokens),
    positions: rows.map((t) => start + t),
    sequences: new Int32Array(tokens.length),
    pageTables: [pages],
    wanted: rows,
  });
  return logits.slice();
}

/** The index of the greatest value, the lower one of equals. */
export function argmax(values: Float32Array): number {
  let best = 0;
  values.forEach((value, i) => {
    if (value > values[best]) best = i;
  });
  return best;
}
