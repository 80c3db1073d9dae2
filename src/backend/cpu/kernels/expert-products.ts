/**
 * What operations with experts have in common: the products of the pairs of rows and experts, once these are in order of
 * their experts. The rows of an expert are multiplied together, so that its weights are read once.
 */

import type { WeightName } from '../../../model/graph.ts';
import type { Activation } from '../../../model/spec.ts';
import type { FormatId } from '../../../quant/index.ts';
import type { WeightShape } from '../../kernel.ts';
import { type Addresses, type Builder, ROW_BLOCK, UNIT_GROUPS } from '../builder.ts';
import { acceptsWeight, type Encoding, groupBytes, groupsOf } from '../formats.ts';
import type { PairPlaces, Place } from '../program.ts';
import { productScratch } from './product.ts';

/** A stack of matrices of one shape. */
export interface Stack {
  readonly arena: number;
  readonly offset: number;
  readonly format: FormatId;
  readonly columns: number;
  readonly rows: number;
  readonly groups: number;
  /** Bytes from one matrix to the next. */
  readonly bytes: number;
}

/** A place for each of {@link PairPlaces}, by the name of its buffer. */
export type PairNames = Readonly<Record<keyof PairPlaces, string>>;

/** What gate and up are multiplied with and what their product is called. */
export interface GatedNames {
  /** `gate`, `up` and `down` are under it, and their biases where there are some. */
  readonly prefix: WeightName;
  /** Whether `gateScale` is there too: an expert's gate is multiplied with its own. */
  readonly scaled?: true;
  readonly input: string;
  /** Made as down's kernel takes it. */
  readonly inner: string;
  readonly activation: Activation;
  readonly biases?: true;
}

export interface ExpertNames extends GatedNames {
  /** [pairs, width] Each pair's result in its own place. */
  readonly output: string;
  readonly pairs: PairNames;
  /** [pairs] What the input of each pair is multiplied with. */
  readonly inputWeights?: string;
  /** A row may have no pairs at all. */
  readonly optional?: boolean;
}

/** true, or why the kernels do not take a matrix, or a stack of them. */
export function acceptsMatrix(name: string, { format, shape }: WeightShape): true | string {
  if (shape.length < 2) return `${name}: needs a matrix, found [${shape.join(', ')}]`;
  return acceptsWeight(name, format, shape.at(-1) as number);
}

/** Declares what {@link emitExpertsIn} and {@link emitExpertsOut} need, for so many pairs in all and of one row. */
export function declareExperts(
  builder: Builder,
  { prefix, inner, output, pairs }: ExpertNames,
  sizes: { readonly pairs: number; readonly used: number; readonly experts: number; readonly width: number },
): void {
  builder.declareOperand(inner, `${prefix}.down`, sizes.pairs, sizes.used);
  builder.declareValue(output, sizes.width, sizes.pairs, sizes.used);
  for (const name of [pairs.order, pairs.orderRows]) builder.declare(name, sizes.pairs * 4, sizes.used * 4);
  const activeBytes = (1 + sizes.experts * 3) * 4;
  builder.declare(pairs.active, activeBytes, activeBytes);
}

export function placesOfPairs(at: Addresses, { order, orderRows, active }: PairNames): PairPlaces {
  return { order: at.buffer(order), orderRows: at.buffer(orderRows), active: at.buffer(active) };
}

/** Gate and up of every row become one, for the one expert that all rows share. */
export function emitGated(builder: Builder, names: GatedNames): void {
  const { reads, scratch, weights, task } = gated(builder, names);
  builder.emit({
    space: 'units',
    reads,
    writes: [names.inner],
    weights,
    scratch,
    make: (at) => ({ kind: 'gatedIn', ...task(at) }),
  });
}

/** Gate and up of each pair become one, in the order of the sorted pairs. */
export function emitExpertsIn(builder: Builder, names: ExpertNames): void {
  const own = gated(builder, names);
  const { inputWeights, pairs, optional } = names;
  builder.emit({
    space: 'units',
    reads: [...own.reads, ...Object.values(pairs), ...(inputWeights === undefined ? [] : [inputWeights])],
    writes: [names.inner],
    weights: own.weights,
    scratch: own.scratch,
    optional,
    make: (at) => ({
      kind: 'expertsIn',
      pairs: placesOfPairs(at, pairs),
      inputWeights: inputWeights === undefined ? undefined : at.buffer(inputWeights),
      ...own.task(at),
    }),
  });
}

/**
 * Down of each pair, from the sorted pairs back to the pair's own place.
 * @param blame the layer to name when a result is not finite; absent where a later task finds that
 */
export function emitExpertsOut(builder: Builder, names: ExpertNames, blame?: number): void {
  const { prefix, inner, output, pairs, biases, optional } = names;
  const down = `${prefix}.down`;
  builder.emit({
    optional,
    space: 'units',
    reads: [inner, ...Object.values(pairs)],
    writes: [output],
    weights: [down],
    scratch: productScratch(builder.operandStride(down)),
    make: (at) => ({
      kind: 'expertsOut',
      pairs: placesOfPairs(at, pairs),
      down: stackOf(builder, at, down),
      input: at.value(inner),
      output: at.value(output),
      bias: biases ? at.weight(`${down}.bias`).offset : 0,
      blame,
    }),
  });
}

/** The parts of a task that multiplies with gate and up. */
export interface GatedParts {
  readonly gate: Stack;
  readonly up: Stack;
  readonly gateInput: Place;
  readonly upInput: Place;
  readonly output: Place;
  /** What the output is made as. */
  readonly encoding: Encoding;
  /** Address of a factor an expert for what comes of the gate, or 0. */
  readonly gateScale: number;
  readonly activation: Activation;
  /** Addresses of the experts' biases one after the other, or 0. */
  readonly gateBias: number;
  readonly upBias: number;
}

function gated(builder: Builder, { prefix, input, inner, activation, biases, scaled }: GatedNames) {
  const weights = [`${prefix}.gate`, `${prefix}.up`] as const;
  const [gate, up] = weights;
  const [gateInput, upInput] = [builder.operand(input, gate), builder.operand(input, up)];
  const columns = builder.weight(gate).shape.at(-1) as number;
  return {
    weights,
    reads: [gateInput, upInput],
    // A product's, and behind it a unit's results of gate and of up.
    scratch: productScratch(columns * 4) + 2 * ROW_BLOCK * UNIT_GROUPS * 16,
    task: (at: Addresses): GatedParts => ({
      gate: stackOf(builder, at, gate),
      up: stackOf(builder, at, up),
      gateInput: at.value(gateInput),
      upInput: at.value(upInput),
      output: at.value(inner),
      encoding: builder.encoding(`${prefix}.down`),
      activation,
      gateBias: biases ? at.weight(`${gate}.bias`).offset : 0,
      upBias: biases ? at.weight(`${up}.bias`).offset : 0,
      gateScale: scaled === true ? at.weight(`${prefix}.gateScale`).offset : 0,
    }),
  };
}

function stackOf(builder: Builder, at: Addresses, name: WeightName): Stack {
  const { format, shape } = builder.weight(name);
  const columns = shape.at(-1) as number;
  const rows = shape.at(-2) as number;
  const groups = groupsOf(rows);
  const { arena, offset } = at.weight(name);
  return { arena, offset, format, columns, rows, groups, bytes: groups * groupBytes(format, columns) };
}
