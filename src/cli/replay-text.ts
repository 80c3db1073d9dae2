/** What `conclave replay` finds, in words and columns. */

import type { Replay, ReplayRow } from '../experts/replay.ts';
import { columns, printableName, showBytes, showCount, showPlural } from './format.ts';

export function describeReplay(name: string, result: Replay): string {
  const { shape, routing, rows } = result;
  const withBytes = rows.some(({ bytesPerToken }) => bytesPerToken !== undefined);
  const withPrefetch = rows.some(({ prefetchingHitRate }) => prefetchingHitRate !== undefined);
  const head = [
    'policy',
    'slots',
    'of all',
    'hits',
    ...(withPrefetch ? ['prefetching'] : []),
    'layers without a miss',
    'uploads a token',
    ...(withBytes ? ['bytes a token'] : []),
  ];
  return [
    `${name}: ${showPlural(shape.tokens, 'token')}, ${showPlural(shape.layers, 'layer')}, ${showCount(shape.used)} of ` +
      `${showPlural(shape.experts, 'expert')} a layer${shape.model === undefined ? '' : `, of ${printableName(shape.model)}`}`,
    `the busier half of a layer's experts gets ${percent(routing.busierHalfShare)} of the picks, the token before used ` +
      `${percent(routing.sharedWithPreviousToken)} of a token's experts`,
    `routing entropy ${routing.entropyBits.toFixed(2)} bits a layer, ${percent(routing.entropyShare)} of the most there can be`,
    '',
    ...columns([head, ...rows.map((row) => cells(row, { withBytes, withPrefetch }))], [1, 2, 3, 4, 5, 6, 7]),
    '',
    countedHow(result),
    ...(withPrefetch ? [prefetching(result)] : []),
    '',
  ].join('\n');
}

function cells(
  row: ReplayRow,
  { withBytes, withPrefetch }: { readonly withBytes: boolean; readonly withPrefetch: boolean },
): string[] {
  const { prefetchingHitRate } = row;
  return [
    row.policy,
    showCount(row.slots),
    percent(row.share),
    percent(row.hitRate),
    ...(withPrefetch ? [prefetchingHitRate === undefined ? '–' : percent(prefetchingHitRate)] : []),
    percent(row.wholeShare),
    row.uploadsPerToken.toFixed(1),
    ...(withBytes ? [showBytes(Math.round(row.bytesPerToken ?? 0))] : []),
  ];
}

function countedHow({ warmUpTokens, uploads, pinShare }: Replay): string {
  const bound =
    uploads === undefined
      ? 'every miss uploaded before the next layer'
      : `at most ${showPlural(uploads, 'upload')} a token, in its slot for the next one`;
  const pins = pinShare === undefined ? '' : `; the hottest keep ${percent(pinShare)} of the slots for good`;
  return `after ${showPlural(warmUpTokens, 'token')} of warm-up; ${bound}${pins}`;
}

/** What the predictors that there are would do. */
function prefetching({ routing, shape }: Replay): string {
  const recall = percent(routing.sharedWithPreviousToken);
  return (
    `prefetching: the ${showPlural(shape.used, 'expert')} that a layer used for the token before come first, ${recall} of which it uses again; ` +
    'what a router names ahead (gate) needs hidden states, which a trace has not'
  );
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)}%`;
}
