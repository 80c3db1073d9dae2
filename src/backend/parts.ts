/**
 * Runs a plan whose layers are on several devices: each part is prepared by its own device's backend, and a run goes
 * through them in order, each on the rows that the one before gave. Nothing is computed here.
 */

import { InternalError } from '../errors.ts';
import { cutGraph, weightsOfGraph } from '../model/cut.ts';
import type { Graph } from '../model/graph.ts';
import type { Weights } from '../model/weights.ts';
import type { Plan } from '../plan/plan.ts';
import type { Backend, Executable, LoadProgress, PrepareRequest, Step } from './backend.ts';

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
  const graphs = cutGraph(
    request.graph,
    parts.slice(0, -1).map(({ end }) => end),
  );
  const prepared: Part[] = [];
  const progress = progressOver(
    graphs.map((graph) => weightsOfGraph(graph, request.weights)),
    request.onProgress,
  );
  try {
    // In order: what the first device has no memory for is known before the second has begun.
    for (const [index, { device }] of parts.entries()) {
      const graph = graphs[index] as Graph;
      const executable = await (await backendFor(device)).prepare({
        ...rest,
        plan: planOfPart(request.plan, index),
        program: programs?.[index],
        graph,
        weights: weightsOfGraph(graph, request.weights),
        onProgress: progress(index),
      });
      prepared.push({ graph, executable });
    }
  } catch (error) {
    await Promise.all(prepared.map(({ executable }) => executable.dispose()));
    throw error;
  }
  return new PartsExecutable(prepared);
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

/** The progress of all parts as one; a part is known by the weights that its backend streams, which are the matrices. */
function progressOver(
  weights: readonly Weights[],
  report: PrepareRequest['onProgress'],
): (part: number) => PrepareRequest['onProgress'] {
  const sizes = weights.map((each) =>
    [...each.values()].reduce((sum, { shape, bytes }) => sum + (shape.length < 2 ? 0 : bytes), 0),
  );
  const sum = (of: readonly number[]) => of.reduce((total, bytes) => total + bytes, 0);
  return (part) => {
    if (report === undefined) return undefined;
    const before = sum(sizes.slice(0, part));
    const after = sum(sizes.slice(part + 1));
    return ({ bytesDone, bytesTotal }: LoadProgress) =>
      report({ bytesDone: before + bytesDone, bytesTotal: before + bytesTotal + after });
  };
}

interface Part {
  readonly graph: Graph;
  readonly executable: Executable;
}

class PartsExecutable implements Executable {
  readonly #parts: readonly Part[];

  constructor(parts: readonly Part[]) {
    this.#parts = parts;
  }

  get bytes(): number {
    return this.#parts.reduce((sum, { executable }) => sum + executable.bytes, 0);
  }

  async run(step: Step): Promise<Float32Array> {
    let rows: Float32Array | undefined;
    for (const { executable } of this.#parts) rows = await executable.run({ ...step, incoming: rows });
    return rows as Float32Array;
  }

  async value(name: string): Promise<Float32Array> {
    // Of a value that is handed on, the one who made it is asked.
    const part = this.#parts.find(({ graph }) => name in graph.widths);
    const values = await part?.executable.value?.(name);
    if (values === undefined) throw new InternalError(`no value is called ${name}`);
    return values;
  }

  async dispose(): Promise<void> {
    await Promise.all(this.#parts.map(({ executable }) => executable.dispose()));
  }
}
