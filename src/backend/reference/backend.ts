/**
 * The reference as a device: runs the graph operation by operation, keeps every value, and says where a value stopped
 * being finite. Prompt and step rows are computed by the same code.
 */

import { DisposedError, InternalError, NonFiniteError } from '../../errors.ts';
import type { ExpertWatcher } from '../../experts/watch.ts';
import { cacheWidths } from '../../model/cache-widths.ts';
import { cachedLayersOf } from '../../model/cut.ts';
import { type ExpertsOperation, type Graph, mtpOperations, type Operation, ownOperations } from '../../model/graph.ts';
import { type RopeTable, ropeTable } from '../../model/rope.ts';
import { allLayers, type ModelSpec, type RopeSpec } from '../../model/spec.ts';
import {
  type Backend,
  type Executable,
  type ExpertRunner,
  type ExpertWork,
  type MtpRunner,
  PAGE_ROWS,
  type PrepareRequest,
  type Step,
} from '../backend.ts';
import { checkExpertWork, expertsByLayer } from '../check-experts.ts';
import { incomingRows } from '../check-step.ts';
import { expertOutput, moe, type Route } from './moe.ts';
import {
  add,
  attention,
  concat,
  embed,
  gate,
  gather,
  glu,
  headLinear,
  type LayerCache,
  linear,
  norm,
  rope,
  scale,
  softcap,
} from './operations.ts';
import { referenceRows } from './rows.ts';
import { allocateF32, decodeWeights } from './store.ts';

const NO_LIMITS = { rows: Number.POSITIVE_INFINITY, pairs: Number.POSITIVE_INFINITY };

/** Uses of the plan only `cache.pages`. */
export const referenceBackend: Backend = {
  device: 'reference',
  rows: referenceRows,
  async prepare(request: PrepareRequest): Promise<ReferenceExecutable> {
    const weights = await decodeWeights(request);
    return new ReferenceExecutable(request.spec, request.graph, weights, request.plan.cache.pages);
  },
};

export class ReferenceExecutable implements Executable {
  readonly bytes: number;
  readonly experts?: ExpertRunner;
  readonly mtp?: MtpRunner;
  readonly #spec: ModelSpec;
  readonly #graph: Graph;
  readonly #weights: Map<string, Float32Array>;
  readonly #pages: number;
  readonly #caches: LayerCache[];
  readonly #ropeTables = new Map<RopeSpec, RopeTable>();
  readonly #values = new Map<string, Float32Array>();
  readonly #routes = new Map<number, Route[]>();
  #watcher: ExpertWatcher | undefined;
  #disposed = false;

  constructor(spec: ModelSpec, graph: Graph, weights: Map<string, Float32Array>, pages: number) {
    this.#spec = spec;
    this.#graph = graph;
    this.#weights = weights;
    this.#pages = pages;
    const cached = cachedLayersOf(graph);
    this.#caches = allLayers(spec).map(({ attention }, layer) => {
      const rows = cached.has(layer) ? pages * PAGE_ROWS : 0;
      const { keys, values } = cacheWidths(attention);
      return {
        keys: allocateF32(rows * keys, `the keys of layer ${layer}`),
        values: allocateF32(rows * values, `the values of layer ${layer}`),
      };
    });
    const sizes = [...weights.values(), ...this.#caches.flatMap(({ keys, values }) => [keys, values])];
    this.bytes = sizes.reduce((sum, { byteLength }) => sum + byteLength, 0);
    if (expertsByLayer(graph).size > 0) {
      this.experts = { limits: NO_LIMITS, start: (work) => this.#startExperts(work) };
    }
    if (graph.mtp !== undefined) {
      const { given, logits, hidden } = graph.mtp;
      this.mtp = {
        given: () => this.#value(given),
        run: async (step) => {
          this.#perform(mtpOperations(graph), step);
          return { logits: this.#value(logits), hidden: this.#value(hidden) };
        },
      };
    }
  }

  async run(step: Step): Promise<Float32Array> {
    this.#values.clear();
    this.#routes.clear();
    this.#watcher?.began(step.mode, step.tokens.length);
    this.#perform(ownOperations(this.#graph), step);
    this.#watcher?.ended();
    return this.#value(this.#graph.logits);
  }

  #perform(operations: readonly Operation[], step: Step): void {
    if (this.#disposed) throw new DisposedError('the reference backend');
    this.#check(step);
    for (const operation of operations) {
      // What it reads comes from elsewhere, when `experts` is asked.
      if (operation.kind === 'experts') continue;
      let output: Float32Array;
      try {
        output = this.#compute(operation, step, operations);
      } catch (error) {
        if (!(error instanceof NonFiniteError)) throw error;
        throw new NonFiniteError(`${this.#where(operation)}: ${error.message}`, {
          data: { ...error.data, layer: operation.layer, output: operation.output },
          cause: error,
        });
      }
      this.#requireFinite(operation, output, step);
      this.#values.set(operation.output, output);
    }
  }

  watch(watcher: ExpertWatcher | undefined): void {
    this.#watcher = watcher;
  }

  /** A copy of a value of the last run, [T, width]; the logits are [wanted, vocabulary]. */
  value(name: string): Float32Array {
    return Float32Array.from(this.#value(name));
  }

  /** Which experts the last run chose in a layer, a row each; empty for a dense layer. */
  routes(layer: number): readonly Route[] {
    return this.#routes.get(layer) ?? [];
  }

  /** One pair after the other. */
  #startExperts(work: ExpertWork): () => Float32Array {
    if (this.#disposed) throw new DisposedError('the reference backend');
    const operation = expertsByLayer(this.#graph).get(work.layer);
    if (operation === undefined) throw new InternalError(`no experts of layer ${work.layer} are here`);
    const { input, moe: spec } = operation;
    const width = this.#graph.widths[input] as number;
    checkExpertWork(work, { limits: NO_LIMITS, width, experts: spec.experts });
    return () => this.#computeExperts(operation, work);
  }

  #computeExperts(operation: ExpertsOperation, work: ExpertWork): Float32Array {
    if (this.#disposed) throw new DisposedError('the reference backend');
    const { input, norm: rowNorm, moe: spec, prefix } = operation;
    const width = this.#graph.widths[input] as number;
    const rows =
      rowNorm === undefined ? work.rows : norm(work.rows, this.#weight(rowNorm.weight), width, rowNorm.epsilon);
    const output = new Float32Array(work.rowOf.length * width);
    work.rowOf.forEach((row, pair) => {
      const x = rows.subarray(row * width, (row + 1) * width);
      const made = expertOutput(x, spec, (name) => this.#weight(`${prefix}.${name}`), work.expertOf[pair]);
      const bad = made.find((value) => value - value !== 0);
      if (bad !== undefined) {
        throw new NonFiniteError(
          `${this.#where(operation)}: expert ${work.expertOf[pair]} made ${bad} of row ${row}; expected finite values; ` +
            'a weight of the file is damaged or values overflowed',
          { data: { layer: operation.layer, expert: work.expertOf[pair], row } },
        );
      }
      output.set(made, pair * width);
    });
    return output;
  }

  async dispose(): Promise<void> {
    this.#disposed = true;
    this.#weights.clear();
    this.#values.clear();
    this.#caches.length = 0;
  }

  #compute(operation: Operation, step: Step, all: readonly Operation[]): Float32Array {
    switch (operation.kind) {
      case 'embed':
        return embed(
          this.#weight(operation.weight),
          step.tokens,
          this.#graph.widths[operation.output],
          operation.scale,
        );
      case 'incoming':
        // A copy: the part before may write over its own.
        return Float32Array.from(incomingRows(this.#graph, step, all)?.rows ?? []);
      case 'norm':
        return norm(
          this.#value(operation.input),
          this.#optional(operation.weight),
          operation.group,
          operation.epsilon,
          {
            width: this.#graph.widths[operation.output] as number,
            rest: operation.rest ?? 0,
          },
        );
      case 'linear':
        return linear(
          this.#value(operation.input),
          this.#matrix(operation.weight, operation.output),
          this.#optional(operation.bias),
        );
      case 'headLinear': {
        const { input, weight, heads, rest = 0, output } = operation;
        const { widths } = this.#graph;
        const shape = { heads, rest, width: widths[input] as number, outputWidth: widths[output] as number };
        return headLinear(this.#value(input), this.#weight(weight), shape);
      }
      case 'rope':
        return rope(this.#value(operation.input), step.positions, {
          table: this.#ropeTable(operation.rope),
          headDim: operation.headDim,
          pairing: operation.rope.pairing,
          from: operation.from,
        });
      case 'attention': {
        const { query, key, value } = operation;
        return attention(
          {
            query: this.#value(query),
            key: this.#value(key),
            value: value === undefined ? undefined : this.#value(value),
          },
          this.#caches[operation.layer],
          step,
          operation,
          this.#optional(operation.sinks),
        );
      }
      case 'glu':
        return glu(this.#value(operation.gate), this.#value(operation.up), operation.activation);
      case 'moe': {
        const routes: Route[] = [];
        this.#routes.set(operation.layer, routes);
        const weights = (name: string) => this.#weight(`${operation.prefix}.${name}`);
        const { input, routerInput = input, moe: spec } = operation;
        const onRoute = (_: number, route: Route) => routes.push(route);
        const made = moe(this.#value(input), spec, weights, onRoute, this.#value(routerInput));
        // Ids beyond the experts name none.
        if (operation.mtp !== true && spec.zeroExperts === undefined) {
          this.#watcher?.routed(
            operation.layer,
            routes.flatMap(({ experts }) => [...experts]),
          );
        }
        return made;
      }
      case 'gate':
        return gate(this.#value(operation.input), this.#value(operation.gate), operation.activation);
      case 'scale': {
        const [own = 1] = this.#optional(operation.weight) ?? [];
        return scale(this.#value(operation.input), operation.factor * own, {
          width: this.#graph.widths[operation.output] as number,
          rest: operation.rest ?? 0,
        });
      }
      case 'add':
        return add(this.#value(operation.left), this.#value(operation.right));
      case 'concat': {
        const { left, right } = operation;
        const { widths } = this.#graph;
        return concat(this.#value(left), this.#value(right), [widths[left], widths[right]]);
      }
      case 'head': {
        const wanted = gather(this.#value(operation.input), step.wanted, this.#graph.widths[operation.input]);
        const logits = linear(wanted, this.#matrix(operation.weight, operation.output));
        return operation.softcap === undefined ? logits : softcap(logits, operation.softcap);
      }
      case 'experts':
      case 'project':
      case 'gated':
      case 'rotate':
        throw new InternalError(`${operation.output}: the reference runs no operation of the kind ${operation.kind}`);
    }
  }

  #weight(name: string): Float32Array {
    const weight = this.#weights.get(name);
    if (weight === undefined) throw new InternalError(`the graph names the weight ${name}, which was not prepared`);
    return weight;
  }

  #optional(name: string | undefined): Float32Array | undefined {
    return name === undefined ? undefined : this.#weight(name);
  }

  #matrix(name: string, output: string) {
    const data = this.#weight(name);
    const rows = this.#graph.widths[output];
    return { data, offset: 0, rows, columns: data.length / rows };
  }

  #value(name: string): Float32Array {
    const value = this.#values.get(name);
    if (value === undefined)
      throw new InternalError(`no value ${name}: nothing has run, or the graph has none of that name`);
    return value;
  }

  #ropeTable(spec: RopeSpec): RopeTable {
    let table = this.#ropeTables.get(spec);
    if (table === undefined) {
      table = ropeTable(spec, spec.scaling.kind === 'factors' ? this.#weight('ropeFactors') : undefined);
      this.#ropeTables.set(spec, table);
    }
    return table;
  }

  /** A row outside the vocabulary or the cache would read or write another's memory. */
  #check(step: Step): void {
    const { tokens, positions, sequences, pageTables, wanted } = step;
    const bad = (what: string) => new InternalError(`the reference backend was given ${what}`);
    if (positions.length !== tokens.length || sequences.length !== tokens.length) {
      throw bad(`${tokens.length} tokens, ${positions.length} positions and ${sequences.length} sequences`);
    }
    tokens.forEach((token, t) => {
      if (token < 0 || token >= this.#spec.vocabulary) throw bad(`token ${token} of ${this.#spec.vocabulary}`);
      const pages = pageTables[sequences[t]]?.subarray(0, Math.floor(positions[t] / PAGE_ROWS) + 1);
      if (pages === undefined || positions[t] < 0 || pages.length * PAGE_ROWS <= positions[t]) {
        throw bad(`position ${positions[t]} of sequence ${sequences[t]}, for which it has no page`);
      }
      const stray = pages.find((page) => page < 0 || page >= this.#pages);
      if (stray !== undefined) throw bad(`page ${stray} of ${this.#pages}`);
    });
    const outside = wanted.find((t) => t < 0 || t >= tokens.length);
    if (outside !== undefined) throw bad(`row ${outside} of ${tokens.length} as one whose logits are wanted`);
  }

  #where(operation: Operation): string {
    if (operation.mtp === true) return `ahead of the last layer (MTP, blk.${operation.layer})`;
    if (operation.layer < 0) return 'before layer 0 (token_embd)';
    if (operation.layer >= this.#spec.layers.length) return 'after the last layer (output)';
    return `layer ${operation.layer} (blk.${operation.layer})`;
  }

  #requireFinite(operation: Operation, output: Float32Array, step: Step): void {
    // x − x is 0 for finite values and NaN for all others.
    const at = output.findIndex((x) => x - x !== 0);
    if (at < 0) return;
    const row = Math.floor(at / this.#graph.widths[operation.output]);
    const t = operation.kind === 'head' ? step.wanted[row] : row;
    throw new NonFiniteError(
      `${this.#where(operation)}: ${operation.kind} made ${output[at]} in ${operation.output}, ${step.mode} row ${t} at ` +
        `position ${step.positions[t]}; expected finite values; a weight of the file is damaged or values overflowed`,
      {
        data: {
          layer: operation.layer,
          operation: operation.kind,
          output: operation.output,
          mode: step.mode,
          row: t,
          position: step.positions[t],
        },
      },
    );
  }
}
