/**
 * What an operation asks of a kernel beyond its plain form. Every field of every operation, and every word that a field may
 * hold, is described here, so that nothing that is added can be overlooked: it does not compile until it says what it demands,
 * and no row serves a demand that it does not name (`backend/kernel.ts`).
 */

import { InternalError } from '../errors.ts';
import type { Operation, OperationKind } from './graph.ts';
import type { Activation, GateActivation, MoeSpec, ReachSpec, RopeSpec, RouterSpec, SharedExpertSpec } from './spec.ts';

/** As refusals print it, after "does not serve". */
export type Demand =
  | 'a scale on embeddings'
  | 'norms without weights'
  | 'a norm of part of a row'
  | 'a scale on part of a row'
  | 'a rotation of the end of a head'
  | 'a soft cap on logits'
  | 'a window of attention'
  | 'chunks of attention'
  | 'attention sinks'
  | 'attention temperature'
  | 'values that are the beginnings of their keys'
  | 'GELU'
  | 'clamped SwiGLU'
  | 'biases of experts'
  | "a router's bias"
  | "a router's own input"
  | 'scales of experts'
  | 'weights on the inputs of experts'
  | 'experts that give a row as it is'
  | 'scales of matrices of experts';

/** What each field of a value demands, when it is there. */
type Fields<T> = { readonly [Field in keyof T]-?: (value: Exclude<T[Field], undefined>) => readonly Demand[] };

const plain = (): readonly Demand[] => [];
const always = (demand: Demand) => (): readonly Demand[] => [demand];
const where =
  (demand: Demand) =>
  (value: boolean): readonly Demand[] =>
    value ? [demand] : [];

/** What each of some words demands. */
const byWord =
  <Word extends string>(demands: Readonly<Record<Word, readonly Demand[]>>) =>
  (word: Word): readonly Demand[] =>
    demands[word];

type ActivationKind = Exclude<Activation, object> | Extract<Activation, object>['kind'];
const activationKind = byWord<ActivationKind>({
  silu: [],
  geluTanh: ['GELU'],
  clampedSwiglu: ['clamped SwiGLU'],
});
const activation = (value: Activation) => activationKind(typeof value === 'object' ? value.kind : value);
const gateActivation = byWord<GateActivation>({ sigmoid: [], softplus: [] });
const reach = byWord<ReachSpec['kind']>({ window: ['a window of attention'], chunk: ['chunks of attention'] });

const groups: Fields<NonNullable<RouterSpec['groups']>> = {
  count: plain,
  used: plain,
  rankedBy: byWord({ best: [], twoBest: [] }),
};

const shared: Fields<SharedExpertSpec> = { inner: plain, gated: plain };

/** How frequencies are scaled is in the table that all kernels read. */
const rope: Fields<RopeSpec> = {
  pairing: byWord({ adjacent: [], half: [] }),
  dimensions: plain,
  base: plain,
  scaling: plain,
};

const router: Fields<RouterSpec> = {
  gating: byWord({ softmax: [], sigmoid: [] }),
  bias: where("a router's bias"),
  selectionBias: plain,
  groups: (value) => demandsIn(groups, value),
  normalise: plain,
  scale: plain,
  expertScale: where('scales of experts'),
  weighsInput: where('weights on the inputs of experts'),
};

const moe: Fields<MoeSpec> = {
  experts: plain,
  zeroExperts: always('experts that give a row as it is'),
  used: plain,
  inner: plain,
  activation,
  biases: where('biases of experts'),
  router: (value) => demandsIn(router, value),
  shared: (value) => demandsIn(shared, value),
  scaled: where('scales of matrices of experts'),
};

/** A single expert has nothing to do with how it was chosen, but for what its input is multiplied with. */
const singleExpert: Fields<MoeSpec> = {
  ...moe,
  router: ({ weighsInput }) => where('weights on the inputs of experts')(weighsInput === true),
};

/** `mtp` says which run an operation belongs to, not what it does. */
const base = { kind: plain, layer: plain, output: plain, mtp: plain };

const operations: { readonly [Kind in OperationKind]: Fields<Extract<Operation, { readonly kind: Kind }>> } = {
  embed: { ...base, weight: plain, scale: always('a scale on embeddings') },
  incoming: base,
  norm: { ...base, input: plain, weight: plain, epsilon: plain, group: plain, rest: always('a norm of part of a row') },
  linear: { ...base, input: plain, weight: plain, bias: plain },
  headLinear: { ...base, input: plain, weight: plain, heads: plain, rest: plain },
  rope: {
    ...base,
    input: plain,
    headDim: plain,
    rope: (value) => demandsIn(rope, value),
    from: always('a rotation of the end of a head'),
  },
  attention: {
    ...base,
    query: plain,
    key: plain,
    value: plain,
    heads: plain,
    kvHeads: plain,
    headDim: plain,
    valueDim: plain,
    scale: plain,
    reach: ({ kind }) => reach(kind),
    sinks: always('attention sinks'),
    temperature: always('attention temperature'),
    rotated: plain,
  },
  glu: { ...base, gate: plain, up: plain, activation },
  gate: { ...base, input: plain, gate: plain, activation: gateActivation },
  scale: { ...base, input: plain, factor: plain, weight: plain, rest: always('a scale on part of a row') },
  moe: {
    ...base,
    input: plain,
    prefix: plain,
    moe: (value) => demandsIn(moe, value),
    routerInput: always("a router's own input"),
    norm: plain,
    add: plain,
    split: plain,
  },
  experts: { ...base, input: plain, norm: plain, prefix: plain, moe: (value) => demandsIn(singleExpert, value) },
  add: { ...base, left: plain, right: plain },
  concat: { ...base, left: plain, right: plain },
  head: { ...base, input: plain, weight: plain, softcap: always('a soft cap on logits') },
  project: { ...base, input: plain, norm: plain, parts: plain, add: plain },
  gated: { ...base, input: plain, norm: plain, gate: plain, up: plain, activation },
  rotate: {
    ...base,
    input: plain,
    queryNorm: plain,
    keyNorm: plain,
    rope: (value) => demandsIn(rope, value),
    heads: plain,
    kvHeads: plain,
    headDim: plain,
    valueDim: plain,
  },
};

/** @throws InternalError `internal` for a field that is not described */
export function demandsOf(operation: Operation): readonly Demand[] {
  const fields = operations[operation.kind] as Fields<Operation>;
  const own = demandsIn(fields, operation);
  // What is not there cannot describe itself.
  if (operation.kind === 'norm' && operation.weight === undefined) return [...own, 'norms without weights'];
  if (operation.kind === 'attention' && operation.value === undefined) {
    return [...own, 'values that are the beginnings of their keys'];
  }
  return own;
}

function demandsIn<T extends object>(fields: Fields<T>, value: T): readonly Demand[] {
  return (Object.keys(value) as (keyof T & string)[]).flatMap((name) => {
    const part = value[name];
    if (part === undefined) return [];
    const describe = fields[name] as Fields<T>[typeof name] | undefined;
    if (describe === undefined)
      throw new InternalError(`what a kernel must do about the field ${name} is not described`);
    return describe(part as Exclude<T[typeof name], undefined>);
  });
}
