/**
 * Sums of the experts' down products where lanes share by exchange (`lane-exchange.ts`): neighbours of one expert add up what
 * they have of a turn's output values, and once all turns are done a thread an expert and value adds up the rest, in place of
 * barriers in every turn.
 */

import { sharedOut } from './lane-exchange.ts';

/** What the sums of a row's experts are made of. */
export interface Units {
  /** Experts, each of `blocks` lanes. */
  readonly used: number;
  readonly blocks: number;
  /** Lanes of the expert that all rows take; 0: there is none. */
  readonly sharedBlocks: number;
}

/** Lanes that add up among themselves: a power of two of which every expert has a whole number. */
export function neighbours({ blocks, sharedBlocks }: Units): number {
  let width = 1;
  while (width < 32 && blocks % (2 * width) === 0 && sharedBlocks % (2 * width) === 0) width *= 2;
  return width;
}

export interface DownSums {
  /** Declares workgroup memory. */
  readonly memory: string;
  /** Statements that keep a turn's `values`, one of each of its rows, a lane's share. */
  put(turn: string, values: readonly string[]): string;
  /** Statements after all turns: `made[row · units + unit]` is an expert's value by its weight. They hold barriers. */
  readonly end: string;
}

export function exchangedDown(
  units: Units,
  given: {
    readonly rows: number;
    readonly turns: number;
    readonly threads: number;
    /** WGSL of an expert's weight. */
    readonly weight: (unit: string) => string;
    /** WGSL of what the expert `unit` makes of the output value `row`, whose products sum up to `all`. */
    readonly sum: (row: string) => string;
  },
): DownSums {
  const { used, blocks, sharedBlocks } = units;
  const { rows, turns, threads, weight, sum } = given;
  const width = neighbours(units);
  const groups = (used * blocks + sharedBlocks) / width;
  const [own, shared] = [blocks / width, sharedBlocks / width];
  const count = used + (sharedBlocks === 0 ? 0 : 1);
  return {
    memory: `var<workgroup> groups: array<f32, ${groups * rows * turns}>;`,
    put(turn, values) {
      const { text, sums, index, keeps } = sharedOut(values, 'sum', width);
      const stores = sums.map(
        (sum, k) => `      groups[(${turn}${index(k)}) * ${groups}u + lane / ${width}u] = ${sum};`,
      );
      return `${text}\n    if (${keeps}) {\n${stores.join('\n')}\n    }`;
    },
    end: `  workgroupBarrier();
  for (var i = tid; i < ${count * rows * turns}u; i += ${threads}u) {
    let unit = i % ${count}u;
    let begin = (i / ${count}u) * ${groups}u + unit * ${own}u;
    let end = begin + ${sharedBlocks === 0 ? `${own}u` : `select(${shared}u, ${own}u, unit < ${used}u)`};
    var all = groups[begin];
    for (var k = begin + 1u; k < end; k++) { all += groups[k]; }
    made[i] = ${weight('unit')} * ${sum(`(first + i / ${count}u)`)};
  }
  workgroupBarrier();`,
  };
}
