/** The comparison as a Markdown table. */

import type { Figures } from './measure.ts';

export interface Comparison {
  readonly model: string;
  /** Of the file. */
  readonly bytes: number;
  readonly conclave: Figures;
  readonly llama: Figures;
  /** How many greedy tokens are the same on both sides, from the first on. */
  readonly sameTokens: number;
  readonly rounds: { readonly conclave: readonly Figures[]; readonly llama: readonly Figures[] };
}

export interface Machine {
  readonly cpu: string;
  readonly cores: number;
  readonly node: string;
  readonly commit: string;
  readonly peer: string;
  readonly date: string;
}

interface Line {
  readonly name: string;
  readonly value: (figures: Figures) => number;
  readonly digits: number;
}

const lines: readonly Line[] = [
  { name: 'load, ms', value: ({ loadMs }) => loadMs, digits: 0 },
  { name: 'load to first token, ms', value: ({ firstTokenMs }) => firstTokenMs, digits: 0 },
  { name: 'prefill 128, tokens/s', value: (figures) => figures.prefill128TokensPerSecond, digits: 1 },
  { name: 'prefill 512, tokens/s', value: (figures) => figures.prefill512TokensPerSecond, digits: 1 },
  { name: 'decode 128, tokens/s', value: (figures) => figures.decodeTokensPerSecond, digits: 1 },
  { name: 'peak memory, MiB', value: ({ peakBytes }) => peakBytes / 2 ** 20, digits: 0 },
];

/** The comparisons, one row a figure, with the machine and the settings above them. */
export function table(
  comparisons: readonly Comparison[],
  machine: Machine,
  settings: {
    readonly threads: number;
    readonly context: number;
    readonly batch: number;
    readonly rounds: number;
    readonly repeats: number;
  },
): string {
  const { threads, context, batch, rounds, repeats } = settings;
  const out = [
    `${machine.cpu}, ${machine.cores} cores; Node ${machine.node}; Conclave ${machine.commit}; ${machine.peer}; ${machine.date}.`,
    `${threads} threads, context ${context}, batch ${batch}; medians of ${rounds} alternating processes a side, each the median of ${repeats}.`,
    '',
    '| model | figure | Conclave | llama.cpp | Conclave / llama.cpp |',
    '|---|---|--:|--:|--:|',
  ];
  for (const { model, bytes, conclave, llama, sameTokens } of comparisons) {
    lines.forEach(({ name, value, digits }, index) => {
      const ours = value(conclave);
      const theirs = value(llama);
      const title = index === 0 ? `${model} (${(bytes / 1e6).toFixed(0)} MB)` : '';
      out.push(
        `| ${title} | ${name} | ${ours.toFixed(digits)} | ${theirs.toFixed(digits)} | ${(ours / theirs).toFixed(2)} |`,
      );
    });
    out.push(`| | same greedy tokens | ${sameTokens} of ${conclave.greedy.length} | | |`);
  }
  return out.join('\n');
}
