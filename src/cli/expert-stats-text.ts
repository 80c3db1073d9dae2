/** `--expert-stats`: what a run's experts did, in words and a table of layers. */

import type { ExpertStatistics } from '../engine/types.ts';
import { type ExpertStatsSnapshot, type LayerSnapshot, totalOf } from '../experts/stats.ts';
import { columns, showBytes, showCount, showPlural, showRanges } from './format.ts';

type Counts = Omit<LayerSnapshot, 'layer'>;

/** A column, and whether it says anything where `counts` are of all layers. */
interface Column {
  readonly head: string;
  readonly cell: (counts: Counts) => string;
  readonly shown: (total: Counts) => boolean;
}

const always = () => true;
const withSlots = ({ hits, passed, misses }: Counts) => hits + passed + misses > 0;
const passing = ({ passes }: Counts) => passes > 0;
const waited = ({ stops }: Counts) => stops > 0;

const table: readonly Column[] = [
  { head: 'hits', cell: ({ hits, passed, misses }) => share(hits, hits + passed + misses), shown: withSlots },
  { head: 'without a miss', cell: ({ wholeSteps, steps }) => share(wholeSteps, steps), shown: withSlots },
  { head: 'passed', cell: ({ passed, picks }) => share(passed, picks), shown: passing },
  { head: 'uploads', cell: ({ uploads }) => showCount(uploads), shown: withSlots },
  { head: 'uploaded', cell: ({ uploadedBytes }) => showBytes(uploadedBytes), shown: withSlots },
  { head: 'pinned', cell: ({ pinned }) => showCount(pinned), shown: ({ pinned }) => pinned > 0 },
  { head: 'experts a step', cell: ({ uniqueExperts, steps }) => mean(uniqueExperts, steps, 1), shown: always },
  { head: 'load', cell: ({ load }) => load.toFixed(1), shown: always },
  { head: 'entropy', cell: ({ entropyBits }) => `${entropyBits.toFixed(2)} bits`, shown: always },
  { head: 'of most', cell: ({ entropyShare }) => share(entropyShare, 1), shown: always },
  { head: 'stops', cell: ({ stops, steps }) => share(stops, steps), shown: waited },
  { head: 'round trip', cell: ({ wait, stops }) => `${mean(wait.roundTripMs, stops, 3)} ms`, shown: waited },
  { head: 'passing', cell: ({ wait, stops }) => `${mean(wait.passMs, stops, 3)} ms`, shown: passing },
  { head: 'CPU', cell: ({ wait, stops }) => `${mean(wait.cpuMs, stops, 3)} ms`, shown: waited },
  {
    head: 'foreseen',
    cell: ({ foreseen }) => share(foreseen.right, foreseen.used),
    shown: ({ foreseen }) => foreseen.named > 0,
  },
];

/** The lines that `--expert-stats` prints: prompts and decoding apart, as far as there were any. */
export function describeExpertStats({ prompt, step, notCounted }: ExpertStatistics): string {
  const tables = [
    ...(prompt.steps > 0 ? [describeSnapshot('experts of prompts', prompt)] : []),
    ...(step.steps > 0 ? [describeSnapshot('experts while decoding', step)] : []),
  ];
  const text = tables.length === 0 ? 'experts: no layer with experts has run\n' : tables.join('\n');
  return [text, ...leftOut(notCounted).map((line) => `${line}\n`)].join('');
}

/** What is not counted, in a line. */
export function leftOut(layers: readonly number[]): string[] {
  if (layers.length === 0) return [];
  const which = `${layers.length === 1 ? 'layer' : 'layers'} ${showRanges(layers)}`;
  return [`not counted: ${which}, whose experts are all on the GPU, which tells nobody`];
}

/** A table of layers under a title. Times are means of a layer and run. */
export function describeSnapshot(title: string, snapshot: ExpertStatsSnapshot): string {
  const total = totalOf(snapshot);
  const shown = table.filter((column) => column.shown(total));
  const line = (name: string, counts: Counts) => [name, ...shown.map(({ cell }) => cell(counts))];
  return [
    `${title}: ${showPlural(snapshot.steps, 'run')} of ${showPlural(snapshot.rows, 'row')} in all, ` +
      `${showPlural(snapshot.layers.length, 'layer')} of ${showPlural(snapshot.experts, 'expert')}`,
    ...columns(
      [
        ['layer', ...shown.map(({ head }) => head)],
        ...snapshot.layers.map((layer) => line(`${layer.layer}`, layer)),
        line('all', total),
      ],
      Array.from({ length: shown.length }, (_, index) => index + 1),
    ),
    ...expertSums(snapshot),
    '',
  ].join('\n');
}

/** What a run cost, in a few lines; none where no layer has slots. */
export function expertSums(snapshot: ExpertStatsSnapshot): string[] {
  const total = totalOf(snapshot);
  return [...(withSlots(total) ? [counted(snapshot, total)] : []), ...(waited(total) ? [waits(snapshot, total)] : [])];
}

function counted({ steps }: ExpertStatsSnapshot, counts: Counts): string {
  const { hits, passed, misses, uploads, uploadedBytes, passes, passedBytes } = counts;
  const bytes = (sum: number) => showBytes(Math.round(sum / Math.max(1, steps)));
  return [
    `${share(hits, hits + passed + misses)} hits (${showPlural(hits, 'hit')}${passed > 0 ? `, ${showCount(passed)} passed` : ''}, ${showPlural(misses, 'miss', 'misses')})`,
    `a run: ${mean(misses, steps, 1)} misses, ${mean(uploads, steps, 1)} uploads of ${bytes(uploadedBytes)} in all` +
      (passes > 0 ? `, ${mean(passes, steps, 1)} experts of ${bytes(passedBytes)} passed through` : ''),
  ].join('; ');
}

function waits({ steps }: ExpertStatsSnapshot, { stops, wait }: Counts): string {
  const { roundTripMs, passMs, cpuMs } = wait;
  const part = (sum: number) => `${mean(sum, steps, 2)} ms (${mean(sum, stops, 3)} a stop)`;
  const each = stops % Math.max(1, steps) === 0 ? 0 : 1;
  return (
    `a run stops ${mean(stops, steps, each)} ${stops === steps ? 'time' : 'times'}: ${part(roundTripMs)} of round trips` +
    `${passMs > 0 ? `, ${part(passMs)} of passing` : ''}, ${part(cpuMs)} of the CPU's part`
  );
}

function mean(sum: number, count: number, digits: number): string {
  return (sum / Math.max(1, count)).toFixed(digits);
}

function share(part: number, whole: number): string {
  return whole === 0 ? '–' : `${((100 * part) / whole).toFixed(1)}%`;
}
