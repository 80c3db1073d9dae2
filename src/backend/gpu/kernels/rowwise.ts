/**
 * What is done to each row by itself on the GPU: norms, rotation, gating and sums. A row's arithmetic and its order are the
 * same whatever rows are beside it.
 */

import type { Demand } from '../../../model/demands.ts';
import type {
  AddOperation,
  ConcatOperation,
  GateOperation,
  GluOperation,
  NormOperation,
  Operation,
  RopeOperation,
  RowNorm,
  ScaleOperation,
  ValueName,
  WeightName,
} from '../../../model/graph.ts';
import type { KernelRequest, Mode, Tolerance } from '../../kernel.ts';
import type { Builder, Dispatch } from '../builder.ts';
import type { GpuRow } from '../row.ts';
import { gateCode, gluCode, servedActivations } from './activation.ts';
import { type Bound, blockSum, declare, f32Literal, MAX_WORKGROUPS, readValue, STEP, writeValue } from './snippets.ts';

const f32Tolerance: Tolerance = {
  relativeRms: 1e-6,
  reason: 'f32 sums in many lanes where the reference has f64 sums, and the exponentials and roots of WGSL',
};

/** Threads of the kernels that do an element each. */
const ELEMENT_THREADS = 256;

function rowwise<Made extends Operation>(options: {
  readonly operation: Made['kind'];
  readonly serves?: readonly Demand[];
  readonly accepts?: (operation: Made, request: KernelRequest) => true | string;
  readonly dispatch: (operation: Made, builder: Builder) => Dispatch;
}): GpuRow {
  return {
    name: options.operation,
    device: 'gpu',
    operation: options.operation,
    modes: ['prompt', 'step'],
    tolerance: f32Tolerance,
    serves: options.serves,
    accepts(request) {
      if (request.rows > MAX_WORKGROUPS) return `takes up to ${MAX_WORKGROUPS} rows a run, found ${request.rows}`;
      return options.accepts?.(request.operation as Made, request) ?? true;
    },
    emit(made, builder, mode) {
      builder.declareValue(made.output, builder.width(made.output));
      builder.dispatch(mode, options.dispatch(made as Made, builder));
    },
  };
}

/** output = `expression` of the inputs, element by element; `rest` elements at the end of a row are those of the input `a`. */
function elementwise(options: {
  readonly label: string;
  /** By what the expression calls their elements. */
  readonly inputs: Readonly<Record<string, ValueName>>;
  readonly output: ValueName;
  /** Bound as `weight`. */
  readonly weight?: WeightName;
  /** WGSL over elements of the type `T`. */
  readonly expression: string;
  /** What it calls; elements are then taken one by one. */
  readonly functions?: string;
  readonly rest?: number;
  readonly builder: Builder;
}): Dispatch {
  const { label, output, weight, expression, functions = '', rest = 0, builder } = options;
  const inputs = Object.entries(options.inputs);
  const width = builder.width(output);
  const inFours = width % 4 === 0 && rest % 4 === 0 && functions === '';
  const units = inFours ? width / 4 : width;
  const changed = inFours ? (width - rest) / 4 : width - rest;
  const element = inFours ? 'vec4f' : 'f32';
  const { text, bindings } = declare([
    ...inputs.map(([name, value]): Bound => [readValue(value), `${name}Values`, element]),
    [writeValue(output), 'output', element],
    STEP,
    ...weightBound(weight, 'f32'),
  ]);
  return {
    label,
    bindings,
    code: `alias T = ${element};
${text}
${functions}

@compute @workgroup_size(${ELEMENT_THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= ${units}u || id.y >= step[${builder.step.rows}]) { return; }
  let i = id.y * ${units}u + id.x;
${inputs.map(([name]) => `  let ${name} = ${name}Values[i];`).join('\n')}
  output[i] = ${rest === 0 ? expression : `select(a, ${expression}, id.x < ${changed}u)`};
}
`,
    workgroups: ({ rows }) => [Math.ceil(units / ELEMENT_THREADS), rows, 1],
  };
}

/** Binds a weight, if there is one, as `weight`. */
function weightBound(name: WeightName | undefined, element: string): readonly Bound[] {
  return name === undefined ? [] : [[{ kind: 'weight', name }, 'weight', element]];
}

/**
 * A workgroup takes one group of one row; its threads sum squares in strides, then all of their sums in a fixed order. That of
 * a row's first group brings what is in no group.
 */
function normDispatch(operation: NormOperation, builder: Builder): Dispatch {
  const { input, weight, output, epsilon, group, rest = 0, layer } = operation;
  const groups = (builder.width(output) - rest) / group;
  const inFours = group % 4 === 0 && rest % 4 === 0;
  const units = inFours ? group / 4 : group;
  const others = inFours ? rest / 4 : rest;
  const across = groups * units + others;
  let threads = 32;
  while (threads < 256 && threads * 2 <= units) threads *= 2;
  const element = inFours ? 'vec4f' : 'f32';
  const { text, bindings } = declare([
    [readValue(input), 'input', element],
    ...weightBound(weight, element),
    [writeValue(output), 'output', element],
    STEP,
  ]);
  return {
    label: `layers.${layer}.norm ${output}`,
    bindings,
    code: `${text}
${blockSum(threads)}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.y;
  if (row >= step[${builder.step.rows}]) { return; }
  let start = row * ${across}u + workgroup.x * ${units}u;
  var squares = ${element}();
  for (var i = thread; i < ${units}u; i += ${threads}u) {
    let x = input[start + i];
    squares = fma(x, x, squares);
  }
  let sum = blockSum(thread, ${inFours ? '(squares.x + squares.y) + (squares.z + squares.w)' : 'squares'});
  let scale = inverseSqrt(sum / ${f32Literal(group)} + ${f32Literal(epsilon)});
  for (var i = thread; i < ${units}u; i += ${threads}u) {
    output[start + i] = input[start + i] * scale${weight === undefined ? '' : ' * weight[i]'};
  }${
    others === 0
      ? ''
      : `
  if (workgroup.x > 0u) { return; }
  for (var i = ${groups * units}u + thread; i < ${across}u; i += ${threads}u) { output[start + i] = input[start + i]; }`
  }
}
`,
    workgroups: ({ rows }) => [groups, rows, 1],
  };
}

/** A thread takes an element, with the gate that it has its share in. */
function gateDispatch({ input, gate, output, activation, layer }: GateOperation, builder: Builder): Dispatch {
  const width = builder.width(output);
  const gates = builder.width(gate);
  const { text, bindings } = declare([
    [readValue(input), 'input', 'f32'],
    [readValue(gate), 'gates', 'f32'],
    [writeValue(output), 'output', 'f32'],
    STEP,
  ]);
  return {
    label: `layers.${layer}.gate ${output}`,
    bindings,
    code: `${text}
${gateCode(activation)}
@compute @workgroup_size(${ELEMENT_THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= ${width}u || id.y >= step[${builder.step.rows}]) { return; }
  let i = id.y * ${width}u + id.x;
  output[i] = input[i] * act(gates[id.y * ${gates}u + id.x / ${width / gates}u]);
}
`,
    workgroups: ({ rows }) => [Math.ceil(width / ELEMENT_THREADS), rows, 1],
  };
}

/**
 * Emits the norm in front of a fused operation by itself, for modes in which many kernels read the normed rows.
 * @returns the value that holds them; the operation's own input where there is no norm
 */
export function emitRowNorm(
  builder: Builder,
  mode: Mode,
  fused: { readonly layer: number; readonly input: ValueName; readonly output: ValueName; readonly norm?: RowNorm },
): ValueName {
  const { layer, input, norm } = fused;
  if (norm === undefined) return input;
  const output = `${fused.output}.normed`;
  const group = builder.width(input);
  builder.declareValue(output, group);
  builder.dispatch(mode, normDispatch({ kind: 'norm', layer, input, ...norm, group, output }, builder));
  return output;
}

function ropeDispatch({ input, output, headDim, rope, from = 0, layer }: RopeOperation, builder: Builder): Dispatch {
  const width = builder.width(output);
  const pairs = rope.dimensions / 2;
  const half = rope.pairing === 'half';
  const { text, bindings } = declare([
    [readValue(input), 'input', 'f32'],
    [{ kind: 'rope', rope }, 'table', 'f32'],
    [writeValue(output), 'output', 'f32'],
    STEP,
  ]);
  return {
    label: `layers.${layer}.rope ${output}`,
    bindings,
    code: `${text}

@compute @workgroup_size(${ELEMENT_THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  let row = id.y;
  if (id.x >= ${width}u || row >= step[${builder.step.rows}]) { return; }
  let i = row * ${width}u + id.x;
  // Those before the first that is rotated wrap round to beyond the last.
  let d = id.x % ${headDim}u - ${from}u;
  let x = input[i];
  if (d >= ${rope.dimensions}u) {
    output[i] = x;
    return;
  }
  let second = ${half ? `d >= ${pairs}u` : '(d & 1u) == 1u'};
  let pair = ${half ? `select(d, d - ${pairs}u, second)` : 'd >> 1u'};
  let distance = ${half ? pairs : 1}u;
  let partner = input[select(i + distance, i - distance, second)];
  // [context][2][pairs]: cosines, then sines.
  let angle = step[${builder.step.positions}u + row] * ${2 * pairs}u + pair;
  output[i] = fma(x, table[angle], select(-partner, partner, second) * table[angle + ${pairs}u]);
}
`,
    workgroups: ({ rows }) => [Math.ceil(width / ELEMENT_THREADS), rows, 1],
  };
}

function concatDispatch({ left, right, output, layer }: ConcatOperation, builder: Builder): Dispatch {
  const [first, second, width] = [builder.width(left), builder.width(right), builder.width(output)];
  const { text, bindings } = declare([
    [readValue(left), 'left', 'f32'],
    [readValue(right), 'right', 'f32'],
    [writeValue(output), 'output', 'f32'],
    STEP,
  ]);
  return {
    label: `layers.${layer}.concat ${output}`,
    bindings,
    code: `${text}

@compute @workgroup_size(${ELEMENT_THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  let row = id.y;
  if (id.x >= ${width}u || row >= step[${builder.step.rows}]) { return; }
  if (id.x < ${first}u) {
    output[row * ${width}u + id.x] = left[row * ${first}u + id.x];
  } else {
    output[row * ${width}u + id.x] = right[row * ${second}u + id.x - ${first}u];
  }
}
`,
    workgroups: ({ rows }) => [Math.ceil(width / ELEMENT_THREADS), rows, 1],
  };
}

export const rowwiseRows: readonly GpuRow[] = [
  {
    name: 'incoming',
    device: 'gpu',
    operation: 'incoming',
    modes: ['prompt', 'step'],
    tolerance: { relativeRms: 1e-6, reason: 'the values themselves' },
    accepts: () => true,
    // The host writes it before the run's submission: there is nothing to compute.
    emit: ({ output }, builder) => builder.declareValue(output, builder.width(output)),
  },
  rowwise<NormOperation>({
    operation: 'norm',
    serves: ['norms without weights', 'a norm of part of a row'],
    accepts({ output, group, rest = 0 }, { widths }) {
      const groups = ((widths[output] as number) - rest) / group;
      return groups <= MAX_WORKGROUPS || `takes up to ${MAX_WORKGROUPS} groups a row, found ${groups}`;
    },
    dispatch: normDispatch,
  }),
  rowwise<RopeOperation>({
    operation: 'rope',
    serves: ['a rotation of the end of a head'],
    dispatch: ropeDispatch,
  }),
  rowwise<GluOperation>({
    operation: 'glu',
    serves: servedActivations,
    dispatch({ gate, up, output, layer, activation }, builder) {
      const made =
        activation === 'silu'
          ? // Far below zero the exponential is infinite and the quotient 0; far above it is 0 and the quotient the gate.
            { expression: 'a / (T(1.0) + exp(-a)) * b' }
          : { expression: 'glu(a, b)', functions: gluCode(activation) };
      return elementwise({
        label: `layers.${layer}.glu ${output}`,
        inputs: { a: gate, b: up },
        output,
        ...made,
        builder,
      });
    },
  }),
  rowwise<GateOperation>({ operation: 'gate', dispatch: gateDispatch }),
  rowwise<AddOperation>({
    operation: 'add',
    dispatch: ({ left, right, output, layer }, builder) =>
      elementwise({
        label: `layers.${layer}.add ${output}`,
        inputs: { a: left, b: right },
        output,
        expression: 'a + b',
        builder,
      }),
  }),
  rowwise<ScaleOperation>({
    operation: 'scale',
    serves: ['a scale on part of a row'],
    dispatch: ({ input, factor, weight, rest, output, layer }, builder) =>
      elementwise({
        label: `layers.${layer}.scale ${output}`,
        inputs: { a: input },
        output,
        weight,
        expression: `T(${f32Literal(factor)}${weight === undefined ? '' : ' * weight[0]'}) * a`,
        rest,
        builder,
      }),
  }),
  rowwise<ConcatOperation>({ operation: 'concat', dispatch: concatDispatch }),
];

/** The buffer of {@link emitFiniteCheck}: one u32, which the host sets to {@link NO_FAULT} before a run. */
export const FAULTS = 'faults';
export const NO_FAULT = 0xffffffff;

/**
 * Emits a look at a value [rows, width]: the least layer whose value has a NaN or an infinity in any of the run's rows
 * ends up in {@link FAULTS}. The layer is not in the kernel's text but is its count of workgroups in y, less one, which
 * also share the row's elements: so the checks of all layers over one width are one pipeline.
 *
 * @param layer 0 or more
 */
export function emitFiniteCheck(builder: Builder, mode: Mode, value: ValueName, layer: number): void {
  const width = builder.width(value);
  builder.declareBuffer(FAULTS, 4);
  const { text, bindings } = declare([
    [readValue(value), 'input', 'u32'],
    [{ kind: 'buffer', name: FAULTS, access: 'write' }, 'faults', 'atomic<u32>'],
    STEP,
  ]);
  builder.dispatch(mode, {
    label: `layers.${layer}.finite ${value}`,
    bindings,
    code: `${text}

@compute @workgroup_size(${ELEMENT_THREADS})
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) workgroups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = workgroup.x;
  if (row >= step[${builder.step.rows}]) { return; }
  // By bits: a comparison with NaN may be optimised away.
  var found = false;
  for (var i = workgroup.y * ${ELEMENT_THREADS}u + thread; i < ${width}u; i += workgroups.y * ${ELEMENT_THREADS}u) {
    found = found || (input[row * ${width}u + i] & 0x7f800000u) == 0x7f800000u;
  }
  if (found) { atomicMin(&faults[0], workgroups.y - 1u); }
}
`,
    workgroups: ({ rows }) => [rows, layer + 1, 1],
  });
}
