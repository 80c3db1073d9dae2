/** What `conclave replay` finds, in words and columns. */

import type { Replay, ReplayRow } from '../experts/replay.ts';
import { columns, printableName, showBytes, showCount, showPlural } from './format.ts';

export function describeReplay(name: string, result: Replay): string {
  const { shape, routing, rows } = result;
  const withBytes = rows.some(({ bytesPerToken }) => bytesPerToken !== undefined);
  const head = [
    'policy',
    'slots',
    'of all',
    'hits',
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
    ...columns([head, ...rows.map((row) => cells(row, withBytes))], [1, 2, 3, 4, 5, 6]),
    '',
    countedHow(result),
    '',
  ].join('\n');
}

function cells(row: ReplayRow, withBytes: boolean): string[] {
  return [
    row.policy,
    showCount(row.slots),
    percent(row.share),
    percent(row.hitRate),
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

function percent(share: number): string {
  return `${(100 * share).toFixed(1)}%`;
}
