/**
 * Rewrites a graph for the GPU, where each dispatch costs more than most of these operations compute: a norm goes into the
 * products that read it, a residual sum into the product before it, and all that lies between the projections of a layer
 * and its attention becomes one operation. What a rewrite takes away nobody else reads; everything else stays as it is.
 */

import type {
  AddOperation,
  AttentionOperation,
  GatedOperation,
  GluOperation,
  Graph,
  LinearOperation,
  MoeOperation,
  NormOperation,
  Operation,
  ProjectOperation,
  RopeOperation,
  RotateOperation,
  RowNorm,
  ValueName,
} from '../../model/graph.ts';
import { inputsOf } from '../../model/inputs.ts';
import { rowNormOf } from '../../model/row-norm.ts';

/** The same values under the same names, but for those inside of fused operations. */
export function fuse(graph: Graph): Graph {
  const fusing = new Fusing(graph);
  for (const operation of graph.operations) {
    if (operation.kind === 'attention') fusing.attention(operation);
    else if (operation.kind === 'glu') fusing.glu(operation);
    else if (operation.kind === 'moe') fusing.moe(operation);
    else if (operation.kind === 'add') fusing.add(operation);
  }
  return fusing.result();
}

class Fusing {
  readonly #graph: Graph;
  readonly #widths: Record<ValueName, number>;
  readonly #makers = new Map<ValueName, Operation>();
  readonly #readers = new Map<ValueName, number>();
  /** What stands in the place of an operation: nothing, or others. Absent: itself. */
  readonly #instead = new Map<Operation, readonly Operation[]>();

  constructor(graph: Graph) {
    this.#graph = graph;
    this.#widths = { ...graph.widths };
    for (const operation of graph.operations) {
      this.#makers.set(operation.output, operation);
      for (const name of inputsOf(operation)) this.#readers.set(name, (this.#readers.get(name) ?? 0) + 1);
    }
    const { logits, mtp } = graph;
    for (const name of mtp === undefined ? [logits] : [logits, mtp.given, mtp.hidden, mtp.logits]) {
      this.#readers.set(name, Number.POSITIVE_INFINITY);
    }
  }

  result(): Graph {
    const operations = this.#graph.operations.flatMap((operation): readonly Operation[] => {
      const instead = this.#instead.get(operation) ?? [operation];
      return operation.mtp === true ? instead.map((made) => ({ ...made, mtp: true })) : instead;
    });
    return { ...this.#graph, operations, widths: this.#widths };
  }

  /** The operation of a kind that makes a value which `readers` operations read and nobody else. */
  #maker<Made extends Operation>(kind: Made['kind'], name: ValueName, readers = 1): Made | undefined {
    const made = this.#makers.get(name);
    return made?.kind === kind && this.#readers.get(name) === readers ? (made as Made) : undefined;
  }

  /** The norm of whole rows whose output `readers` operations read and nobody else; it is taken out. */
  #takeRowNorm(name: ValueName, readers: number): { readonly input: ValueName; readonly norm?: RowNorm } {
    const made = this.#maker<NormOperation>('norm', name, readers);
    const taken = made && rowNormOf(made, this.#widths);
    if (made === undefined || taken === undefined) return { input: name };
    this.#instead.set(made, []);
    return taken;
  }

  /** Projections, norms of heads, rotations and the store of keys and values. */
  attention(operation: AttentionOperation): void {
    const { query, key, value, heads, kvHeads, headDim, valueDim, layer } = operation;
    if (value === undefined) return;
    const queries = this.#projection(query);
    const keys = this.#projection(key);
    const values = this.#maker<LinearOperation>('linear', value);
    if (queries === undefined || keys === undefined || values === undefined) return;
    const [q, k, v] = [queries.linear, keys.linear, values];
    if (q.input !== k.input || q.input !== v.input) return;
    const rope = queries.rope?.rope;
    if (JSON.stringify(rope) !== JSON.stringify(keys.rope?.rope)) return;
    for (const taken of [q, k, ...queries.others, ...keys.others]) {
      this.#instead.set(taken, []);
    }
    const projected = `layers.${layer}.attention.projected`;
    this.#widths[projected] = heads * headDim + kvHeads * (headDim + valueDim);
    const project: ProjectOperation = {
      kind: 'project',
      layer,
      ...this.#takeRowNorm(q.input, 3),
      parts: [q, k, v].map(({ weight, bias }) => ({ weight, bias })),
      output: projected,
    };
    const rotate: RotateOperation = {
      kind: 'rotate',
      layer,
      input: projected,
      queryNorm: queries.norm,
      keyNorm: keys.norm,
      rope,
      heads,
      kvHeads,
      headDim,
      valueDim,
      output: query,
    };
    // The last of the three: what lies between them and attention belongs to the same layer.
    this.#instead.set(v, [project]);
    this.#instead.set(operation, [rotate, { ...operation, rotated: rotate }]);
  }

  /** What makes queries or keys: a product, then perhaps a norm, then perhaps a rotation. */
  #projection(name: ValueName):
    | {
        readonly linear: LinearOperation;
        readonly norm?: RotateOperation['queryNorm'];
        readonly rope?: RopeOperation;
        /** The operations behind the product. */
        readonly others: readonly Operation[];
      }
    | undefined {
    const rope = this.#maker<RopeOperation>('rope', name);
    const norm = this.#maker<NormOperation>('norm', rope?.input ?? name);
    if (rope?.from !== undefined || norm?.rest !== undefined) return undefined;
    const linear = this.#maker<LinearOperation>('linear', norm?.input ?? rope?.input ?? name);
    if (linear === undefined) return undefined;
    const others = [norm, rope].filter((operation) => operation !== undefined);
    if (norm === undefined) return { linear, rope, others };
    const { weight, epsilon, group } = norm;
    return weight === undefined ? undefined : { linear, norm: { weight, epsilon, group }, rope, others };
  }

  /** Gate and up of a dense layer. */
  glu(operation: GluOperation): void {
    const gate = this.#maker<LinearOperation>('linear', operation.gate);
    const up = this.#maker<LinearOperation>('linear', operation.up);
    if (gate === undefined || up === undefined || gate.input !== up.input) return;
    if (gate.bias !== undefined || up.bias !== undefined) return;
    this.#instead.set(gate, []);
    this.#instead.set(up, []);
    const { layer, activation, output } = operation;
    const gated: GatedOperation = {
      kind: 'gated',
      layer,
      ...this.#takeRowNorm(gate.input, 2),
      gate: gate.weight,
      up: up.weight,
      activation,
      output,
    };
    this.#instead.set(operation, [gated]);
  }

  moe(operation: MoeOperation): void {
    const taken = this.#takeRowNorm(operation.input, 1);
    if (taken.norm !== undefined) this.#instead.set(operation, [{ ...operation, ...taken }]);
  }

  /** A residual sum: what was added last becomes part of it. */
  add(operation: AddOperation): void {
    const { left, right, output } = operation;
    const linear = this.#maker<LinearOperation>('linear', right);
    if (linear !== undefined) {
      const { layer, input, weight, bias } = linear;
      this.#instead.set(linear, []);
      this.#instead.set(operation, [{ kind: 'project', layer, input, parts: [{ weight, bias }], add: left, output }]);
    }
    const moe = this.#maker<MoeOperation>('moe', right);
    if (moe !== undefined) {
      const [now] = this.#instead.get(moe) ?? [moe];
      this.#instead.set(moe, []);
      this.#instead.set(operation, [{ ...(now as MoeOperation), add: left, output }]);
    }
  }
}
