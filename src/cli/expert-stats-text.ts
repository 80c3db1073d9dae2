/** `--expert-stats`: what a run's experts did, in words and a table of layers. */

import { type ExpertStatsSnapshot, type LayerSnapshot, totalOf } from '../experts/stats.ts';
import { columns, showBytes, showCount, showPlural } from './format.ts';

type Counts = Omit<LayerSnapshot, 'layer'>;

/** A column, and whether it says anything where `counts` are of all layers. */
interface Column {
  readonly head: string;
  readonly cell: (counts: Counts) => string;
  readonly shown: (total: Counts) => boolean;
}

const always = () => true;
const withSlots = ({ hits, misses }: Counts) => hits + misses > 0;
const waited = ({ wait }: Counts) => wait.roundTripMs + wait.cpuMs + wait.gpuMs > 0;

const table: readonly Column[] = [
  { head: 'hits', cell: ({ hits, misses }) => share(hits, hits + misses), shown: withSlots },
  { head: 'without a miss', cell: ({ wholeSteps, steps }) => share(wholeSteps, steps), shown: withSlots },
  { head: 'uploads', cell: ({ uploads }) => showCount(uploads), shown: withSlots },
  { head: 'uploaded', cell: ({ uploadedBytes }) => showBytes(uploadedBytes), shown: withSlots },
  { head: 'experts a step', cell: ({ uniqueExperts, steps }) => mean(uniqueExperts, steps, 1), shown: always },
  { head: 'load', cell: ({ load }) => load.toFixed(1), shown: always },
  { head: 'entropy', cell: ({ entropyBits }) => `${entropyBits.toFixed(2)} bits`, shown: always },
  { head: 'of most', cell: ({ entropyShare }) => share(entropyShare, 1), shown: always },
  { head: 'round trip', cell: ({ wait, steps }) => `${mean(wait.roundTripMs, steps, 3)} ms`, shown: waited },
  { head: 'CPU', cell: ({ wait, steps }) => `${mean(wait.cpuMs, steps, 3)} ms`, shown: waited },
  { head: 'GPU', cell: ({ wait, steps }) => `${mean(wait.gpuMs, steps, 3)} ms`, shown: waited },
  {
    head: 'foreseen',
    cell: ({ predicted, predictedUsed }) => share(predictedUsed, predicted),
    shown: ({ predicted }) => predicted > 0,
  },
];

/** The lines that `--expert-stats` prints. Times are means of a layer and step. */
export function describeExpertStats(snapshot: ExpertStatsSnapshot): string {
  const total = totalOf(snapshot);
  if (total.steps === 0) return 'experts: no layer with experts has run\n';
  const shown = table.filter((column) => column.shown(total));
  const line = (name: string, counts: Counts) => [name, ...shown.map(({ cell }) => cell(counts))];
  return [
    `experts: ${showPlural(snapshot.steps, 'step')} of ${showPlural(snapshot.rows, 'row')}, ` +
      `${showPlural(snapshot.layers.length, 'layer')} of ${showPlural(snapshot.experts, 'expert')}`,
    ...columns(
      [
        ['layer', ...shown.map(({ head }) => head)],
        ...snapshot.layers.map((layer) => line(`${layer.layer}`, layer)),
        line('all', total),
      ],
      Array.from({ length: shown.length }, (_, index) => index + 1),
    ),
    ...(withSlots(total) ? [perStep(snapshot, total)] : []),
    ...(waited(total) ? [waits(snapshot, total)] : []),
    '',
  ].join('\n');
}

function perStep({ steps }: ExpertStatsSnapshot, { hits, misses, uploads, uploadedBytes }: Counts): string {
  return (
    `${showPlural(hits, 'hit')} and ${showPlural(misses, 'miss', 'misses')}; a step: ${mean(misses, steps, 1)} misses, ` +
    `${mean(uploads, steps, 1)} uploads, ${showBytes(Math.round(uploadedBytes / Math.max(1, steps)))} uploaded`
  );
}

function waits({ steps }: ExpertStatsSnapshot, { wait }: Counts): string {
  return (
    `a step waits ${mean(wait.roundTripMs, steps, 2)} ms for round trips, ${mean(wait.cpuMs, steps, 2)} ms for the CPU's part ` +
    `and ${mean(wait.gpuMs, steps, 2)} ms for the GPU's`
  );
}

function mean(sum: number, count: number, digits: number): string {
  return (sum / Math.max(1, count)).toFixed(digits);
}

function share(part: number, whole: number): string {
  return whole === 0 ? '–' : `${((100 * part) / whole).toFixed(1)}%`;
}
