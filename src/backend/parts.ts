/**
 * Runs a plan whose layers are on several devices: each part is prepared by its own device's backend, and a run goes
 * through them in order, each on the rows that the one before gave. Nothing is computed here.
 */

import { InternalError } from '../errors.ts';
import type { ExpertWatcher } from '../experts/watch.ts';
import { weightsOfGraph } from '../model/cut.ts';
import type { Graph } from '../model/graph.ts';
import { graphsOfParts, runsLayers } from '../model/part-graphs.ts';
import type { Plan, PlannedPart } from '../plan/plan.ts';
import type { Backend, DeviceMemoryUse, Executable, LoadProgress, MtpRunner, PrepareRequest, Step } from './backend.ts';

export interface PartsRequest extends Omit<PrepareRequest, 'program'> {
  /** By part: what placing has made for its backend already. */
  readonly programs?: readonly unknown[];
}

/** Prepares every part of a plan. A plan of one part is its backend's alone. */
export async function prepareParts(
  request: PartsRequest,
  backendFor: (device: Plan['device']) => Promise<Backend> | Backend,
): Promise<Executable> {
  const { programs, ...rest } = request;
  const { parts } = request.plan;
  const [only, ...more] = parts;
  if (only === undefined) throw new InternalError('a plan without parts');
  if (more.length === 0) return (await backendFor(only.device)).prepare({ ...rest, program: programs?.[0] });
  const graphs = graphsOfParts(request.graph, parts);
  const prepared: (Part | undefined)[] = parts.map(() => undefined);
  const progress = progressOver(request);
  try {
    for (const index of orderOf(parts)) {
      const graph = graphs[index] as Graph;
      const executable = await (await backendFor((parts[index] as PlannedPart).device)).prepare({
        ...rest,
        plan: planOfPart(request.plan, index),
        program: programs?.[index],
        graph,
        weights: weightsOfGraph(graph, request.weights),
        experts: prepared.find((part) => part?.executable.experts !== undefined)?.executable.experts,
        onProgress: progress(index),
      });
      prepared[index] = { graph, executable, runs: runsLayers(parts[index] as PlannedPart) };
    }
  } catch (error) {
    await Promise.all(prepared.map((part) => part?.executable.dispose()));
    throw error;
  }
  return new PartsExecutable(prepared as Part[]);
}

/**
 * In order, since what the first device has no memory for is then known before the second has begun; but what computes experts
 * for others comes before them.
 */
function orderOf(parts: readonly PlannedPart[]): readonly number[] {
  const all = [...parts.keys()];
  const first = all.filter((index) => (parts[index] as PlannedPart).experts !== undefined);
  return [...first, ...all.filter((index) => !first.includes(index))];
}

/** What the plan says of one part, as its backend reads it. */
function planOfPart(plan: Plan, index: number): Plan {
  const part = plan.parts[index] as Plan['parts'][number];
  const { device, features, bytes, memoryBytes } = part;
  const here = <Placed extends { readonly device: Plan['device'] }>(all: readonly Placed[]) =>
    all.filter((each) => each.device === device);
  return {
    ...plan,
    device,
    parts: [part],
    features,
    bytes,
    memoryBytes,
    cache: { ...plan.cache, bytes: bytes.cache },
    operations: here(plan.operations),
    weights: here(plan.weights),
    buffers: here(plan.buffers),
  };
}

/** The progress of all parts as one: of what each of them streams, the matrices that have a place there. */
function progressOver({
  plan,
  weights,
  onProgress: report,
}: PartsRequest): (part: number) => PrepareRequest['onProgress'] {
  const totals = plan.parts.map(({ device }) =>
    plan.weights
      .filter((weight) => weight.device === device && weight.shape.length > 1)
      .reduce((sum, { name }) => sum + (weights.get(name)?.bytes ?? 0), 0),
  );
  const done = totals.map(() => 0);
  const sum = (of: readonly number[]) => of.reduce((total, bytes) => total + bytes, 0);
  return (part) => {
    if (report === undefined) return undefined;
    return ({ bytesDone, bytesTotal }: LoadProgress) => {
      done[part] = bytesDone;
      // Some stream their vectors, too.
      totals[part] = bytesTotal;
      report({ bytesDone: sum(done), bytesTotal: sum(totals) });
    };
  };
}

interface Part {
  readonly graph: Graph;
  readonly executable: Executable;
  /** Whether layers run there: else it only computes experts for another part. */
  readonly runs: boolean;
}

class PartsExecutable implements Executable {
  readonly #parts: readonly Part[];
  /** Where one part runs all layers. */
  readonly profile?: Executable['profile'];
  /** That of the last part. */
  readonly mtp?: MtpRunner;
  #watcher: ExpertWatcher | undefined;

  constructor(parts: readonly Part[]) {
    this.#parts = parts;
    const [only, ...more] = parts.filter(({ runs }) => runs);
    const mtp = parts.find(({ executable }) => executable.mtp !== undefined)?.executable.mtp;
    if (mtp !== undefined) this.mtp = mtp;
    if (more.length === 0) this.profile = only?.executable.profile?.bind(only.executable);
  }

  get bytes(): number {
    return this.#parts.reduce((sum, { executable }) => sum + executable.bytes, 0);
  }

  get memory(): DeviceMemoryUse | undefined {
    return this.#parts.find(({ executable }) => executable.memory !== undefined)?.executable.memory;
  }

  watch(watcher: ExpertWatcher | undefined): void {
    this.#watcher = watcher;
    // A run of all parts is one, which begins and ends here.
    const own = watcher && withinRun(watcher);
    for (const { executable, runs } of this.#parts) if (runs) executable.watch?.(own);
  }

  async run(step: Step): Promise<Float32Array> {
    let rows: Float32Array | undefined;
    this.#watcher?.began(step.mode, step.tokens.length);
    for (const { executable, runs } of this.#parts) if (runs) rows = await executable.run({ ...step, incoming: rows });
    this.#watcher?.ended();
    return rows as Float32Array;
  }

  async value(name: string): Promise<Float32Array> {
    // Of a value that is handed on, the one who made it is asked.
    const part = this.#parts.find(({ graph }) => name in graph.widths);
    const values = await part?.executable.value?.(name);
    if (values === undefined) throw new InternalError(`no value is called ${name}`);
    return values;
  }

  abandon(): void {
    for (const { executable } of this.#parts) executable.abandon?.();
  }

  async dispose(): Promise<void> {
    await Promise.all(this.#parts.map(({ executable }) => executable.dispose()));
  }
}

/** What a part of a run says: neither its beginning nor its end. */
function withinRun(watcher: ExpertWatcher): ExpertWatcher {
  return {
    began: () => {},
    routed: (layer, ids, found) => watcher.routed(layer, ids, found),
    waited: (layer, wait) => watcher.waited(layer, wait),
    brought: (layer, brought) => watcher.brought(layer, brought),
    foreseen: (layer, accuracy) => watcher.foreseen(layer, accuracy),
    pinned: (layer, experts) => watcher.pinned(layer, experts),
    ended: () => {},
  };
}
