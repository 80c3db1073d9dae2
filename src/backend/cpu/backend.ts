/** The CPU as a device: WebAssembly kernels on a pool of workers over shared memories. */

import { DisposedError, InternalError, NonFiniteError, OutOfMemoryError } from '../../errors.ts';
import type { ExpertWatcher } from '../../experts/watch.ts';
import { type Graph, mtpOperations, type Operation, ownOperations } from '../../model/graph.ts';
import { type RopeTable, ropeAngles, ropeTable } from '../../model/rope.ts';
import type { ModelSpec } from '../../model/spec.ts';
import type { Plan } from '../../plan/plan.ts';
import { type Platform, type PlatformWorker, platform } from '../../platform/index.ts';
import type { Backend, Executable, MtpRunner, PrepareRequest, Step } from '../backend.ts';
import { checkStep, incomingRows } from '../check-step.ts';
import { CpuExpertRunner, readRows } from './expert-runner.ts';
import { throwFault } from './faults.ts';
import { layOut } from './layout.ts';
import { Pool } from './pool.ts';
import type { CpuProgram } from './program.ts';
import type { CpuRow } from './row.ts';
import { cpuRows } from './rows.ts';
import { storePieces, storeWeights } from './store.ts';

/**
 * @param options.workers the workers but its owner of the first pool, where they have been started already; else, and for every
 * other model, `prepare` starts them
 */
export function cpuBackend(options: { readonly workers?: readonly PlatformWorker[] } = {}): Backend {
  let { workers: early } = options;
  return {
    device: 'cpu',
    rows: cpuRows,
    prepare(request) {
      const workers = early;
      early = undefined;
      return prepare(request, workers);
    },
  };
}

async function prepare(request: PrepareRequest, early: readonly PlatformWorker[] | undefined): Promise<Executable> {
  const place = await platform();
  const { plan, weights } = request;
  const workers = early ?? Array.from({ length: plan.threads - 1 }, () => place.spawnWorker('cpu-worker', undefined));
  try {
    if (workers.length !== plan.threads - 1) {
      throw new InternalError(`${workers.length + 1} threads were started for a plan of ${plan.threads}`);
    }
    const program = (request.program as CpuProgram | undefined) ?? programFor(request);
    const pieces = storePieces(weights, program);
    const memories = program.arenas.map(allocateArena);
    const pool = Pool.start(workers, { program, pieces, memories, module: await kernelModule(place, plan) });
    // Reading needs no worker: it begins while they start.
    const stored = storeWeights(request, { program, pieces, memories, pool });
    await Promise.all([pool, stored]);
    return new CpuExecutable(request, program, await pool);
  } catch (error) {
    await Promise.all(workers.map((worker) => worker.terminate()));
    throw error;
  }
}

function allocateArena(bytes: number): WebAssembly.Memory {
  try {
    return new WebAssembly.Memory({ initial: bytes / 65536, maximum: bytes / 65536, shared: true });
  } catch (cause) {
    throw new OutOfMemoryError(`an arena of ${bytes} bytes cannot be had; ask for a shorter context (-c)`, { cause });
  }
}

/** The program that the plan was made from: the same rows, the same places. */
function programFor({ plan, spec, graph, weights }: PrepareRequest): CpuProgram {
  const byName = new Map(cpuRows.map((row) => [row.name, row]));
  const rows = plan.operations.map(({ rows: { step } }) => byName.get(step) as CpuRow);
  return layOut({
    spec,
    graph,
    rows,
    weights,
    threads: plan.threads,
    context: plan.context,
    pages: plan.cache.pages,
    promptRows: plan.maxRows.prompt,
    wantedRows: plan.maxRows.wanted,
    cacheType: plan.cache.type,
    arenaBytes: plan.arenaBytes,
    expertPairs: plan.experts?.hostPairs,
  });
}

/** The kernels for what the runtime has; that it has enough, the rows have asked (`accepts`). */
async function kernelModule(place: Platform, plan: Plan): Promise<WebAssembly.Module> {
  const build = plan.features.includes('relaxed-dot')
    ? 'dot'
    : plan.features.includes('relaxed-simd')
      ? 'relaxed'
      : 'simd';
  return WebAssembly.compile(await place.readAsset(`conclave-${build}.wasm`));
}

interface RopeState {
  readonly table: RopeTable;
  readonly offset: number;
  readonly pairs: number;
  /** Positions whose angles have been written. */
  filled: number;
}

class CpuExecutable implements Executable {
  readonly bytes: number;
  readonly experts?: CpuExpertRunner;
  readonly mtp?: MtpRunner;
  readonly #spec: ModelSpec;
  readonly #program: CpuProgram;
  readonly #plan: Plan;
  readonly #pool: Pool;
  readonly #graph: Graph;
  readonly #ropes: readonly RopeState[];
  /** Of a run of the graph. */
  readonly #operations: readonly Operation[];
  #rows = 0;
  #watcher: ExpertWatcher | undefined;
  #disposed = false;

  constructor({ spec, plan, graph }: PrepareRequest, program: CpuProgram, pool: Pool) {
    this.#spec = spec;
    this.#plan = plan;
    this.#program = program;
    this.#pool = pool;
    this.#graph = graph;
    this.#operations = ownOperations(graph);
    if (graph.mtp !== undefined) this.mtp = this.#mtpRunner(graph.mtp, mtpOperations(graph));
    if (program.experts.length > 0) this.experts = new CpuExpertRunner(pool, program, graph);
    this.bytes = program.arenas.reduce((sum, bytes) => sum + bytes, 0);
    const factors = program.weights.ropeFactors;
    this.#ropes = program.ropes.map(({ offset, pairs, rope }) => {
      const at = factors === undefined || rope.scaling.kind !== 'factors' ? undefined : factors.offset / 4;
      const own = at === undefined ? undefined : this.#home.f32.slice(at, at + pairs);
      return { table: ropeTable(rope, own), offset: offset / 4, pairs, filled: 0 };
    });
  }

  get #home() {
    return this.#pool.arenas[0] as Pool['arenas'][number];
  }

  async run(step: Step): Promise<Float32Array> {
    if (this.#disposed) throw new DisposedError('the CPU backend');
    if (this.#program.sections[0]?.length === 0) throw new InternalError('a run was asked for where only experts are');
    this.#write(step, this.#operations);
    this.#rows = step.tokens.length;
    this.#watcher?.began(step.mode, step.tokens.length);
    this.#pool.run(step.tokens.length, step.wanted.length);
    this.#throwFault(step);
    const { outgoing, logits } = this.#graph;
    const given = outgoing === undefined ? this.#read(logits, step.wanted.length) : this.#read(outgoing, this.#rows);
    this.#requireFinite(given, step);
    this.#watcher?.ended();
    return given;
  }

  #mtpRunner({ given, logits, hidden }: NonNullable<Graph['mtp']>, operations: readonly Operation[]): MtpRunner {
    return {
      given: () => this.#read(given, this.#rows),
      run: async (step) => {
        if (this.#disposed) throw new DisposedError('the CPU backend');
        this.#write(step, operations);
        const rows = step.tokens.length;
        this.#pool.runMtp(rows, step.wanted.length);
        this.#throwFault(step);
        return { logits: this.#read(logits, step.wanted.length), hidden: this.#read(hidden, rows) };
      },
    };
  }

  #throwFault({ mode, tokens, positions: [position] }: Step): void {
    throwFault(this.#pool, `the ${mode} of ${tokens.length} rows from position ${position} on`, { mode, position });
  }

  watch(watcher: ExpertWatcher | undefined): void {
    this.#watcher = watcher;
    this.#pool.onRouted = watcher && ((layer, ids) => watcher.routed(layer, ids));
  }

  /** A named value of the last run, where no later one has taken its place. */
  value(name: string): Float32Array {
    return this.#read(name, this.#rows).slice();
  }

  /** Puts what a run of some operations needs into arena 0, before any worker is told of it. */
  #write(step: Step, operations: readonly Operation[]): void {
    checkStep(step, this.#plan, this.#spec.vocabulary);
    const { i32 } = this.#home;
    const places = this.#program.step;
    const { tokens, positions, sequences, pageTables, wanted } = step;
    const rows = tokens.length;
    let used = 0;
    const starts = pageTables.map((table) => {
      const start = used;
      i32.set(table, places.pages / 4 + start);
      used += table.length;
      return start;
    });
    let furthest = 0;
    for (let row = 0; row < rows; row++) {
      const position = positions[row] as number;
      i32[places.tokens / 4 + row] = tokens[row] as number;
      i32[places.positions / 4 + row] = position;
      i32[places.limits / 4 + row] = position + 1;
      i32[places.pageStart / 4 + row] = starts[sequences[row] as number] as number;
      furthest = Math.max(furthest, position);
    }
    i32.set(wanted, places.wanted / 4);
    const incoming = incomingRows(this.#graph, step, operations);
    if (incoming !== undefined) this.#home.f32.set(incoming.rows, (places.incoming as number) / 4);
    for (const rope of this.#ropes) this.#fillAngles(rope, furthest + 1);
  }

  #fillAngles(rope: RopeState, positions: number): void {
    const { f32 } = this.#home;
    const { pairs, offset, table } = rope;
    const sin = f32.subarray(pairs);
    for (let position = rope.filled; position < positions; position++) {
      ropeAngles(table, position, { cos: f32, sin, offset: offset + position * pairs * 2 });
    }
    rope.filled = Math.max(rope.filled, positions);
  }

  /** What comes after the last norm has no other norm to find it: the logits, or the last layer's rows for another part. */
  #requireFinite(given: Float32Array, step: Step): void {
    let nothing = 0;
    // x - x is 0 for finite values and NaN for all others.
    for (let i = 0; i < given.length; i++) nothing += (given[i] as number) - (given[i] as number);
    if (nothing === 0) return;
    const { mode, positions, tokens } = step;
    const position = positions[0];
    const layer = this.#operations.at(-1)?.layer ?? this.#spec.layers.length;
    const [what, why] =
      this.#graph.outgoing === undefined
        ? ['after the last layer (output): a logit', 'the final norm or the output weights are damaged']
        : [`layer ${layer} (blk.${layer}): a value`, 'the weights are damaged or the model does not fit its format'];
    throw new NonFiniteError(
      `${what} is not finite, in the ${mode} of ${tokens.length} rows from position ${position} on; ${why}`,
      { data: { layer, mode, position } },
    );
  }

  #read(name: string, rows: number): Float32Array {
    const { f32 } = this.#home;
    const place = this.#program.values[name];
    const width = this.#graph.widths[name];
    if (place === undefined || width === undefined) throw new InternalError(`no value is called ${name}`);
    const own =
      rows === 1 && place.alone !== undefined ? (this.#program.scratch[0] as number) + place.alone : undefined;
    return readRows(f32, { offset: own ?? place.offset, stride: place.stride }, { rows, width });
  }

  async dispose(): Promise<void> {
    if (this.#disposed) return;
    this.#disposed = true;
    this.experts?.close();
    await this.#pool.dispose();
  }
}
