/**
 * Sums over the lanes of subgroups, where these are known to have 32: values travel among lanes without workgroup memory and
 * its barriers. Every output is the sum of a tree of one shape, whatever other outputs are made beside it.
 */

import type { Builder } from '../builder.ts';
import type { Lanes, Sums } from './lane-product.ts';
import { MATRIX_FEATURE } from './matrix.ts';

const SUBGROUP = 32;
const MASKS = [16, 8, 4, 2, 1] as const;

/** `enable` of a module that exchanges, where it does. */
export const ENABLE_EXCHANGE = 'enable subgroups;\n';

/** Whether the device has subgroups of 32, and of no other size: whoever has their matrices has. */
export function knowsSubgroups({ features }: Pick<Builder, 'features'>): boolean {
  return features.has(MATRIX_FEATURE);
}

/** Whether products share among the lanes of subgroups: lanes and fours must fill them. */
export function exchanges(builder: Pick<Builder, 'features'>, { lanes, span, teams, threads }: Lanes): boolean {
  return (
    knowsSubgroups(builder) && lanes % SUBGROUP === 0 && teams * lanes === threads && (8 * lanes * span) % threads === 0
  );
}

/** Statements that make of the variable `name` what `combine` makes of it over a subgroup, for all lanes; or over `masks`. */
export function exchanged(
  name: string,
  combine: (a: string, b: string) => string,
  masks: readonly number[] = MASKS,
): string {
  return masks.map((mask) => `  ${name} = ${combine(name, `subgroupShuffleXor(${name}, ${mask}u)`)};`).join('\n');
}

/** Sums over neighbouring lanes, shared out among them. */
interface Shares {
  /** Statements that make the sums. */
  readonly text: string;
  /** Names of those that a lane has in the end. */
  readonly sums: readonly string[];
  /** WGSL of which of the values the k-th of them is the sum of. */
  index(k: number): string;
  /** WGSL of whether this lane is the one that keeps them. */
  readonly keeps: string;
}

/**
 * Sums of each of `values` over every `width` neighbouring lanes. Lanes that have several values give half of them away with
 * each exchange, so that the more there are the less each costs; a sum is of one tree, however many there are.
 *
 * @param values names, as many as a power of two
 * @param width a power of two
 * @param lane WGSL of the number of the lane; whose last bits count
 */
export function sharedOut(values: readonly string[], name: string, width: number, lane = 'lane'): Shares {
  const text: string[] = [];
  let list = values;
  for (let mask = width >> 1; mask >= 1; mask >>= 1) {
    const half = list.length >> 1;
    list = Array.from({ length: Math.max(1, half) }, (_, i) => {
      const sum = `${name}_${mask}_${i}`;
      if (half === 0) {
        text.push(`    let ${sum} = ${list[0]} + subgroupShuffleXor(${list[0]}, ${mask}u);`);
        return sum;
      }
      const upper = `(${lane} & ${mask}u) != 0u`;
      text.push(`    let ${sum}own = select(${list[i]}, ${list[i + half]}, ${upper});
    let ${sum}other = select(${list[i + half]}, ${list[i]}, ${upper});
    let ${sum} = ${sum}own + subgroupShuffleXor(${sum}other, ${mask}u);`);
      return sum;
    });
  }
  const count = values.length;
  const share = Math.max(1, width / count);
  const at = share === width ? '0u' : `(${lane} % ${width}u)`;
  return {
    text: text.join('\n'),
    sums: list,
    index: (k) => (count > width ? `(${k}u + ${count / width}u * ${at})` : share === 1 ? at : `${at} / ${share}u`),
    keeps: share === 1 ? 'true' : `${lane} % ${share}u == 0u`,
  };
}

/**
 * As `laneSums` (`lane-product.ts`), with one writer an output: where a team is a subgroup, its lanes; else, after a barrier,
 * the first threads.
 */
export function exchangeSums(perTeam: number, { lanes, teams }: Lanes, parts: number): Sums {
  const padding = Array.from({ length: 2 ** Math.ceil(Math.log2(perTeam)) - perTeam }, () => '0.0');
  const segments = lanes / SUBGROUP;
  const whole = segments === 1;
  const outputs = teams * perTeam;
  const shares = (values: readonly string[], name: string) => sharedOut([...values, ...padding], name, SUBGROUP);
  const { keeps, index } = shares(
    Array.from({ length: perTeam }, () => ''),
    '',
  );
  const holds = padding.length === 0 ? keeps : `${keeps} && ${index(0)} < ${perTeam}u`;
  const output = `team * ${perTeam}u + ${index(0)}`;
  const place = (number: string, part: number) => `((${number}) * ${parts}u + ${part}u) * ${segments}u`;
  const names = Array.from({ length: parts }, (_, part) => `sum${part}`);
  return {
    words: whole ? 0 : outputs * parts * segments,
    code: '',
    writer: whole ? { is: holds, output } : { is: `tid < ${outputs}u`, output: 'tid' },
    total(values, each) {
      const shared = names.map((name, part) => shares(values[part] as readonly string[], name));
      const reduced = shared.map(({ text }) => text).join('\n');
      const own = shared.map(({ sums }) => sums[0] as string);
      if (whole) return `  {\n${reduced}\n    if (${holds}) {\n${each(output, own)}\n    }\n  }`;
      const puts = own.map((sum, part) => {
        return `      scratch[${place(output, part)} + lane / ${SUBGROUP}u] = bitcast<u32>(${sum});`;
      });
      const got = (part: number) =>
        Array.from({ length: segments }, (_, k) => `bitcast<f32>(scratch[${place('tid', part)} + ${k}u])`).join(' + ');
      return `  {\n${reduced}\n    if (${holds}) {\n${puts.join('\n')}\n    }\n  }
  workgroupBarrier();
  if (tid < ${outputs}u) {
${names.map((name, part) => `    let ${name} = ${got(part)};`).join('\n')}
${each('tid', names)}
  }`;
    },
    again: whole ? '' : '  workgroupBarrier();',
  };
}
