/**
 * Cuts a graph at borders of layers into parts that run one after the other. A part's rows come from the part before it
 * (its `incoming` operation) and go to the one after it (its `outgoing` value); everything else in it is as it was.
 */

import { InternalError } from '../errors.ts';
import type { ExpertsOperation, Graph, Operation, ValueName, WeightName } from './graph.ts';
import { inputsOf } from './inputs.ts';
import type { Weights } from './weights.ts';

/**
 * @param borders ascending: part i ends before layer `borders[i]`, and one more part has the rest. What comes before the
 * layers is in the first part, what comes after them in the last.
 */
export function cutGraph(graph: Graph, borders: readonly number[]): readonly Graph[] {
  const parts: Operation[][] = [[], ...borders.map(() => [])];
  for (const operation of graph.operations) {
    const at = borders.findIndex((border) => operation.layer < border);
    (parts[at < 0 ? borders.length : at] as Operation[]).push(operation);
  }
  return parts.map((operations, index) => {
    const incoming = crossing(parts.slice(0, index), parts.slice(index));
    const outgoing = crossing(parts.slice(0, index + 1), parts.slice(index + 1));
    const layer = operations[0]?.layer ?? 0;
    const all: Operation[] =
      incoming === undefined ? operations : [{ kind: 'incoming', layer, output: incoming }, ...operations];
    const made = new Set(all.map(({ output }) => output));
    // What single experts read is made on another device.
    const given = new Set(all.flatMap((operation) => (operation.kind === 'experts' ? [operation.input] : [])));
    return {
      operations: all,
      widths: Object.fromEntries(Object.entries(graph.widths).filter(([name]) => made.has(name) || given.has(name))),
      logits: outgoing ?? graph.logits,
      ...(outgoing === undefined ? {} : { outgoing }),
      hidden: graph.hidden.filter((name) => made.has(name)),
      ...(graph.mtp !== undefined && made.has(graph.mtp.logits) ? { mtp: graph.mtp } : {}),
    };
  });
}

/** The one value that is made before a cut and read after it. @throws InternalError `internal` for a cut through more */
function crossing(before: readonly Operation[][], after: readonly Operation[][]): ValueName | undefined {
  if (before.length === 0 || after.length === 0) return undefined;
  const made = new Set(before.flat().map(({ output }) => output));
  const read = new Set(
    after
      .flat()
      .flatMap(inputsOf)
      .filter((name) => made.has(name)),
  );
  const [name] = read;
  if (name === undefined || read.size > 1) {
    throw new InternalError(`a cut between layers crosses ${read.size} values (${[...read].join(', ')}), expected one`);
  }
  return name;
}

/** The weights that a part of a graph reads, in their order. One that two parts read, as a tied head does, is in both. */
export function weightsOfGraph(graph: Graph, weights: Weights): Weights {
  const names = new Set<WeightName>();
  const prefixes: string[] = [];
  for (const operation of graph.operations) {
    if (operation.kind === 'moe') prefixes.push(`${operation.prefix}.`);
    if (operation.kind === 'experts') {
      for (const name of expertWeights(operation)) names.add(name);
    }
    if ('weight' in operation && operation.weight !== undefined) names.add(operation.weight);
    if (operation.kind === 'attention' && operation.sinks !== undefined) names.add(operation.sinks);
    if (operation.kind === 'linear' && operation.bias !== undefined) names.add(operation.bias);
    if (operation.kind === 'rope' && operation.rope.scaling.kind === 'factors') names.add('ropeFactors');
  }
  return new Map(
    [...weights].filter(([name]) => names.has(name) || prefixes.some((prefix) => name.startsWith(prefix))),
  );
}

/** The weights that an `experts` operation reads: no router, and nothing that is shared. */
export function expertWeights({ prefix, norm, moe }: ExpertsOperation): readonly WeightName[] {
  const matrices = [`${prefix}.gate`, `${prefix}.up`, `${prefix}.down`];
  const own = [
    ...matrices,
    ...(moe.biases ? matrices.map((name) => `${name}.bias`) : []),
    ...(moe.scaled ? [`${prefix}.gateScale`] : []),
  ];
  return norm === undefined ? own : [norm.weight, ...own];
}

/** The layers whose attention is in a part, which therefore keeps their cache. */
export function cachedLayersOf(graph: Graph): ReadonlySet<number> {
  return new Set(graph.operations.filter(({ kind }) => kind === 'attention').map(({ layer }) => layer));
}
