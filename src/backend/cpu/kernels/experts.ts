/** The tasks of the MoE layer and of single experts, as each worker runs them; `moe.ts` and `single-experts.ts` say when. */

import type { RouterSpec } from '../../../model/spec.ts';
import { ROW_BLOCK, UNIT_GROUPS } from '../builder.ts';
import { Fault } from '../control.ts';
import { encodedBlockBytes } from '../formats.ts';
import type { PairPlaces, Place, Task } from '../program.ts';
import type { Arena, KernelCall, RunningTask, WorkerView } from '../task.ts';
import { gluOf } from './activation.ts';
import type { GatedParts, Stack } from './expert-products.ts';
import type { RoutingPlaces } from './moe.ts';
import { Product, type ProductRequest, productScratch } from './product.ts';
import { rowOf } from './row-task.ts';
import { encoder } from './rowwise.ts';

interface RouteTask extends Task {
  readonly logits: Place;
  readonly routing: RoutingPlaces;
  readonly experts: number;
  /** Ids that may be chosen: the experts, then those that give a row as it is. */
  readonly choices: number;
  readonly used: number;
  readonly router: RouterSpec;
  /** Addresses of [experts] f32 each, or 0: what is added to scores for the choice, and what weights are multiplied with. */
  readonly bias: number;
  readonly expertScale: number;
  /** Address of what each expert's output is multiplied with, or 0. */
  readonly outputScale: number;
  readonly layer: number;
}

export function makeRoute(data: Task, worker: WorkerView): RunningTask {
  const { logits, routing, experts, choices, used, router, bias, expertScale, outputScale, layer } = data as RouteTask;
  const { kernels, scratch, i32, f32 } = worker.home;
  const route = kernels.route as KernelCall;
  const { gating, groups, normalise, scale } = router;
  /** Multiplies what each of a row's pairs has with the number of the pair's expert. */
  const multiplyChosen = (row: number, place: Place, numbers: number) => {
    for (let pair = row * used; pair < (row + 1) * used; pair++) {
      const expert = i32[routing.ids.offset / 4 + pair] as number;
      const at = place.offset / 4 + pair;
      f32[at] = (f32[at] as number) * (f32[numbers / 4 + expert] as number);
    }
  };
  return {
    units: () => 0,
    run(row) {
      const notANumber = route(
        rowOf(logits, row),
        choices,
        used,
        gating === 'sigmoid' ? 1 : 0,
        bias,
        groups?.count ?? 1,
        groups?.used ?? 1,
        groups?.rankedBy === 'twoBest' ? 1 : 0,
        normalise ? 1 : 0,
        scale,
        routing.ids.offset + row * used * 4,
        routing.weights.offset + row * used * 4,
        scratch,
      );
      if (notANumber !== 0) {
        worker.control.fault(Fault.router, layer);
        // The step is lost; ids must still name experts.
        worker.home.i32.fill(0, routing.ids.offset / 4 + row * used, routing.ids.offset / 4 + (row + 1) * used);
      }
      if (expertScale !== 0) multiplyChosen(row, routing.weights, expertScale);
      if (routing.ones !== undefined) {
        const at = routing.ones.offset / 4;
        f32.fill(1, at + row * used, at + (row + 1) * used);
      }
      if (outputScale !== 0) multiplyChosen(row, routing.ones ?? routing.weights, outputScale);
      // One row needs no barrier before its pairs are sorted.
      if (worker.step.rows === 1) sortPairs(worker.home, routing, { pairs: used, used, experts });
    },
  };
}

/** Where a layer's choice of experts stands, as long as its pairs are not sorted. */
export interface Choice {
  readonly layer: number;
  readonly ids: Place;
  readonly used: number;
}

/**
 * The choices that tasks make, of layers whose ids all name experts. Places are the tasks' own, and follow them where they
 * go.
 */
export function choicesOf(tasks: readonly Task[]): readonly Choice[] {
  return tasks
    .filter(({ kind, choices, experts }) => kind === 'route' && choices === experts)
    .map((task) => {
      const { layer, routing, used } = task as RouteTask;
      return { layer, ids: routing.ids, used };
    });
}

export function makeSortPairs(data: Task, worker: WorkerView): RunningTask {
  const { routing, experts, used } = data as Task & {
    readonly routing: RoutingPlaces;
    readonly experts: number;
    readonly used: number;
  };
  return {
    units: () => (worker.step.rows === 1 ? 0 : 1),
    run: () => sortPairs(worker.home, routing, { pairs: worker.step.rows * used, used, experts }),
  };
}

/** Puts pairs in order of their experts; `used` pairs after each other are of one row. */
export function sortPairs(
  { kernels, i32, scratch }: Arena,
  { ids, order, orderRows, active }: PairPlaces & { readonly ids: Place },
  { pairs, used, experts }: { readonly pairs: number; readonly used: number; readonly experts: number },
): void {
  i32[active.offset / 4] = (kernels.sortPairs as KernelCall)(
    ids.offset,
    pairs,
    used,
    experts,
    order.offset,
    orderRows.offset,
    active.offset + 4,
    scratch,
  );
}

type GatedTask = Task & GatedParts;

/** Groups of one matrix. */
interface Unit {
  readonly first: number;
  readonly groups: number;
}

function unitOf(index: number, unitGroups: number, groups: number): Unit {
  const first = index * unitGroups;
  return { first, groups: Math.min(unitGroups, groups - first) };
}

type Rows = Pick<ProductRequest, 'xIndex' | 'count' | 'key'>;

/**
 * Gate and up become one for one unit of one expert, encoded at once for the product that reads it; `place` is the first row
 * of the output, `factor` what the input of a row of the output is multiplied with, where it is. A product is multiplied
 * instead: that is the same.
 */
function gatedUnit(
  task: GatedTask,
  worker: WorkerView,
  factor?: (place: number) => number,
): (expert: number, unit: Unit, rows: Rows, place: number) => void {
  const { gate, up, gateInput, upInput, output, encoding, activation, gateScale, gateBias, upBias } = task;
  const gateProduct = new Product(worker, { ...gate, xStride: gateInput.stride });
  const upProduct = new Product(worker, { ...up, xStride: upInput.stride });
  const { f32, kernels } = worker.home;
  const glu = gluOf(kernels, activation);
  const scale = kernels.scale as KernelCall;
  const add = kernels.add as KernelCall;
  const encode = encoding === 'f32' ? undefined : encoder(worker, encoding);
  const encodedBytes = encoding === 'f32' ? 0 : encodedBlockBytes[encoding];
  const gateAt = worker.home.scratch + productScratch(gate.columns * 4);
  const upAt = gateAt + ROW_BLOCK * UNIT_GROUPS * 16;
  return (expert, { first, groups }, rows, place) => {
    const width = groups * 16;
    for (let row = 0; row < rows.count; row += ROW_BLOCK) {
      const count = Math.min(ROW_BLOCK, rows.count - row);
      const part = {
        groups,
        count,
        xIndex: rows.xIndex === 0 ? 0 : rows.xIndex + row * 4,
        outStride: width,
        outIndex: 0,
        key: rows.key * 65536 + row,
      };
      const skipped = rows.xIndex === 0 ? row : 0;
      gateProduct.multiply({
        ...part,
        weight: gate.offset + expert * gate.bytes + first * gateProduct.groupBytes,
        x: rowOf(gateInput, skipped),
        out: gateAt,
      });
      upProduct.multiply({
        ...part,
        weight: up.offset + expert * up.bytes + first * upProduct.groupBytes,
        x: rowOf(upInput, skipped),
        out: upAt,
      });
      if (gateScale !== 0) multiplyAll(f32, { at: gateAt, count: count * groups * 4, by: gateScale + expert * 4 });
      for (let at = 0; at < count; at++) {
        const to = rowOf(output, place + row + at);
        const made = gateAt + at * width;
        const madeUp = upAt + at * width;
        if (factor !== undefined) {
          const own = factor(place + row + at);
          scale(made, made, own, groups * 4);
          scale(madeUp, madeUp, own, groups * 4);
        }
        if (gateBias !== 0) {
          const from = (expert * gate.rows + first * 4) * 4;
          add(made, gateBias + from, made, groups * 4);
          add(madeUp, upBias + from, madeUp, groups * 4);
        }
        glu(made, madeUp, encode === undefined ? to + first * 16 : made, groups * 4);
        // Units are of whole blocks.
        encode?.(made, to + (first / 8) * encodedBytes, groups / 8);
      }
    }
  };
}

/** Multiplies `count` values from the address `at` on by the one at the address `by`. */
function multiplyAll(f32: Float32Array, { at, count, by }: { at: number; count: number; by: number }): void {
  const factor = f32[by / 4] as number;
  for (let i = at / 4; i < at / 4 + count; i++) f32[i]! *= factor;
}

/** Gate and up of the shared expert: every row. */
export function makeGatedIn(data: Task, worker: WorkerView): RunningTask {
  const task = data as GatedTask;
  const run = gatedUnit(task, worker);
  const { groups } = task.gate;
  const units = Math.ceil(groups / UNIT_GROUPS);
  return {
    units: () => units,
    run(unit) {
      run(0, unitOf(unit, UNIT_GROUPS, groups), { xIndex: 0, count: worker.step.rows, key: 0 }, 0);
    },
  };
}

/** Where few units are, they are halved: the last ones would leave most workers without work. */
const FEW_UNITS_A_WORKER = 4;

/** Which expert a unit belongs to, with which of its groups, and the expert's rows among the sorted pairs. */
function activeExperts(worker: WorkerView, pairs: PairPlaces, groups: number) {
  const { i32 } = worker.home;
  const few = FEW_UNITS_A_WORKER * worker.control.threads;
  const whole = Math.ceil(groups / UNIT_GROUPS);
  const count = () => i32[pairs.active.offset / 4] as number;
  const unitGroups = () => (count() * whole < few ? UNIT_GROUPS / 2 : UNIT_GROUPS);
  return {
    units: () => count() * Math.ceil(groups / unitGroups()),
    of(unit: number): Unit & { readonly expert: number; readonly place: number; readonly count: number } {
      const size = unitGroups();
      const each = Math.ceil(groups / size);
      const number = Math.floor(unit / each);
      const at = pairs.active.offset / 4 + 1 + number * 3;
      return {
        ...unitOf(unit - number * each, size, groups),
        expert: i32[at] as number,
        place: i32[at + 1] as number,
        count: i32[at + 2] as number,
      };
    },
  };
}

/** Gate and up of the chosen experts; results stand in the order of the sorted pairs. */
export function makeExpertsIn(data: Task, worker: WorkerView): RunningTask {
  const task = data as GatedTask & { readonly pairs: PairPlaces; readonly inputWeights: Place | undefined };
  const { inputWeights, pairs } = task;
  const { i32, f32 } = worker.home;
  const factor =
    inputWeights &&
    ((place: number) => f32[inputWeights.offset / 4 + (i32[pairs.order.offset / 4 + place] as number)] as number);
  const run = gatedUnit(task, worker, factor);
  const active = activeExperts(worker, task.pairs, task.gate.groups);
  return {
    units: active.units,
    run(index) {
      const unit = active.of(index);
      const { expert, place, count } = unit;
      run(expert, unit, { xIndex: task.pairs.orderRows.offset + place * 4, count, key: expert }, place);
    },
  };
}

/** Down of the chosen experts, from the sorted pairs back to each pair's own place. */
export function makeExpertsOut(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly pairs: PairPlaces;
    readonly down: Stack;
    readonly input: Place;
    readonly output: Place;
    /** Address of the experts' biases one after the other, or 0. */
    readonly bias: number;
    readonly blame?: number;
  };
  const { pairs, down, input, output, bias, blame } = task;
  const { i32, f32, kernels } = worker.home;
  const add = kernels.add as KernelCall;
  const product = new Product(worker, { ...down, xStride: input.stride });
  const active = activeExperts(worker, pairs, down.groups);
  return {
    units: active.units,
    run(index) {
      const { expert, first, groups, place, count } = active.of(index);
      product.multiply({
        weight: down.offset + expert * down.bytes + first * product.groupBytes,
        groups,
        x: rowOf(input, place),
        xIndex: 0,
        count,
        out: output.offset + first * 16,
        outStride: output.stride,
        outIndex: pairs.order.offset + place * 4,
        key: expert,
      });
      if (blame === undefined && bias === 0) return;
      for (let pair = place; pair < place + count; pair++) {
        const at = rowOf(output, i32[pairs.order.offset / 4 + pair] as number) + first * 16;
        if (bias !== 0) add(at, bias + (expert * down.rows + first * 4) * 4, at, groups * 4);
        if (blame !== undefined && !isFiniteAll(f32, at / 4, groups * 4)) {
          worker.control.fault(Fault.notFinite, blame);
        }
      }
    },
  };
}

function isFiniteAll(values: Float32Array, first: number, count: number): boolean {
  let nothing = 0;
  // x - x is 0 for finite values and NaN for all others.
  for (let at = first; at < first + count; at++) nothing += (values[at] as number) - (values[at] as number);
  return nothing === 0;
}

/** Σ w_i·E_i in rank order, then the shared expert. */
export function makeCombine(data: Task, worker: WorkerView): RunningTask {
  const task = data as Task & {
    readonly experts: Place;
    readonly weights: Place;
    readonly used: number;
    readonly width: number;
    readonly shared: Place | undefined;
    readonly gate: Place | undefined;
    /** Ids from `from` on give the input's row as it is. */
    readonly zero: { readonly ids: Place; readonly from: number; readonly input: Place } | undefined;
    readonly output: Place;
  };
  const { bytes, i32, f32, kernels } = worker.home;
  const { experts, weights, used, width, shared, gate, zero, output } = task;
  const combine = kernels.combine as KernelCall;
  const sigmoid = kernels.sigmoid as KernelCall;
  /** Puts the row in the place of what experts would have made of it. */
  const passRow = ({ ids, from, input }: NonNullable<typeof zero>, row: number) => {
    const start = rowOf(input, row);
    for (let pair = row * used; pair < (row + 1) * used; pair++) {
      if ((i32[ids.offset / 4 + pair] as number) < from) continue;
      bytes.copyWithin(rowOf(experts, pair), start, start + width * 4);
    }
  };
  return {
    units: () => 0,
    run(row) {
      if (zero !== undefined) passRow(zero, row);
      const factor = gate === undefined ? 1 : sigmoid(f32[rowOf(gate, row) / 4] as number);
      combine(
        rowOf(experts, row * used),
        experts.stride,
        weights.offset + row * used * 4,
        used,
        shared === undefined ? 0 : rowOf(shared, row),
        factor,
        rowOf(output, row),
        width,
      );
    },
  };
}
