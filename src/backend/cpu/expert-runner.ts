/** Single experts on the pool, each layer's in a section of its own, for rows that come from another device. */

import { DisposedError, InternalError } from '../../errors.ts';
import type { ExpertsOperation, Graph } from '../../model/graph.ts';
import type { ExpertPart } from '../../model/weights.ts';
import type { ExpertRunner, ExpertWork } from '../backend.ts';
import { checkExpertWork, expertsByLayer } from '../check-experts.ts';
import { throwFault } from './faults.ts';
import { sortPairs } from './kernels/experts.ts';
import type { Pool } from './pool.ts';
import type { CpuProgram, ExpertsPlace, WeightPlace } from './program.ts';
import type { Arena } from './task.ts';

interface Layer {
  readonly operation: ExpertsOperation;
  readonly place: ExpertsPlace;
}

export class CpuExpertRunner implements ExpertRunner {
  readonly limits: ExpertRunner['limits'];
  readonly #pool: Pool;
  readonly #program: CpuProgram;
  readonly #widths: Graph['widths'];
  readonly #layers: ReadonlyMap<number, Layer>;
  #closed = false;

  constructor(pool: Pool, program: CpuProgram, graph: Graph) {
    this.limits = program.expertLimits;
    this.#pool = pool;
    this.#program = program;
    this.#widths = graph.widths;
    const operations = expertsByLayer(graph);
    this.#layers = new Map(
      program.experts.map((place) => [
        place.layer,
        { place, operation: operations.get(place.layer) as ExpertsOperation },
      ]),
    );
  }

  start(work: ExpertWork): () => Float32Array {
    if (this.#closed) throw new DisposedError('the CPU backend');
    const { operation, place } = this.#layer(work.layer);
    const { moe, input, output } = operation;
    const width = this.#widths[input] as number;
    const rows = checkExpertWork(work, { limits: this.limits, width, experts: moe.experts });
    const pairs = work.rowOf.length;
    if (pairs === 0) return () => new Float32Array(0);
    this.#write(work, place, rows, moe.experts);
    const finish = this.#pool.startExperts(place.section, rows);
    return () => {
      // The pool has ended it, or the others are gone and would be waited for in vain.
      if (this.#closed) throw new DisposedError('the CPU backend');
      finish();
      throwFault(this.#pool, `experts of ${pairs} pairs of ${rows} rows`, { pairs, rows });
      return readRows(this.#home.f32, place.output, { rows: pairs, width: this.#widths[output] as number });
    };
  }

  home(layer: number, part: ExpertPart, expert: number): Uint8Array {
    const { prefix, moe } = this.#layer(layer).operation;
    if (!(expert >= 0 && expert < moe.experts)) {
      throw new InternalError(
        `the home of expert ${expert} of layer ${layer} was asked for, of ${moe.experts} experts`,
      );
    }
    const { arena, offset, bytes } = this.#program.weights[`${prefix}.${part}`] as WeightPlace;
    const each = bytes / moe.experts;
    const from = offset + expert * each;
    return (this.#pool.arenas[arena] as Arena).bytes.subarray(from, from + each);
  }

  close(): void {
    this.#closed = true;
  }

  #layer(layer: number): Layer {
    const found = this.#layers.get(layer);
    if (found === undefined) throw new InternalError(`no experts of layer ${layer} are on the CPU`);
    return found;
  }

  get #home(): Arena {
    return this.#pool.arenas[0] as Arena;
  }

  /** Rows as they come, and pairs in order of their experts; before any worker is told of it. */
  #write({ rows: values, rowOf, expertOf }: ExpertWork, place: ExpertsPlace, rows: number, experts: number): void {
    const { f32, i32 } = this.#home;
    const { input, ids, pairs } = place;
    const stride = input.stride / 4;
    const width = values.length / rows;
    if (stride === width) f32.set(values, input.offset / 4);
    else {
      for (let row = 0; row < rows; row++) {
        f32.set(values.subarray(row * width, (row + 1) * width), input.offset / 4 + row * stride);
      }
    }
    i32.set(expertOf, ids.offset / 4);
    sortPairs(this.#home, { ids, ...pairs }, { pairs: rowOf.length, used: 1, experts });
    const [order, orderRows] = [pairs.order.offset / 4, pairs.orderRows.offset / 4];
    for (let at = 0; at < rowOf.length; at++) i32[orderRows + at] = rowOf[i32[order + at] as number] as number;
  }
}

/** Rows without gaps: a view where they lie so, valid until somebody else writes there, else a copy. */
export function readRows(
  f32: Float32Array,
  { offset, stride }: { readonly offset: number; readonly stride: number },
  { rows, width }: { readonly rows: number; readonly width: number },
): Float32Array {
  const [from, step] = [offset / 4, stride / 4];
  if (step === width) return f32.subarray(from, from + rows * width);
  const result = new Float32Array(rows * width);
  for (let row = 0; row < rows; row++) {
    result.set(f32.subarray(from + row * step, from + row * step + width), row * width);
  }
  return result;
}
