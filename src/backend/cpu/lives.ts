/** When each buffer of a program is in use, and where it lies for that long: buffers that are never in use at once share bytes. */

import { align, type Builder, type BuiltStage } from './builder.ts';

/** Indices of stages. */
interface Life {
  first: number;
  last: number;
}

/**
 * The stages, first to last, in which each buffer must keep its bytes. Sections do not meet: each is over before another
 * begins, but that a run's outcome is there until the next run.
 */
export function livesOf(builder: Builder): Map<string, Life> {
  const lives = new Map<string, Life>();
  builder.stages.forEach(({ emissions }, index) => {
    for (const { reads, writes } of emissions) {
      for (const name of [...reads, ...writes]) {
        if (!builder.bytes.has(name)) continue;
        const life = lives.get(name);
        if (life === undefined) lives.set(name, { first: index, last: index });
        else life.last = index;
      }
    }
  });
  const spans = spansOf(builder);
  builder.entries.forEach(({ given }, index) => {
    const { first } = spans[index + 1] as Life;
    for (const name of given) lives.set(name, { first, last: lives.get(name)?.last ?? first });
  });
  // A run of one row has no barrier after its rows: what they touch lives until the next that is sure to come.
  const barriers = builder.stages.map(
    ({ space, emissions }) => space === 'units' && emissions.some(({ optional }) => optional !== true),
  );
  for (const life of lives.values()) {
    const next = barriers.indexOf(true, life.last);
    const end = (spans[(builder.stages[life.last] as BuiltStage).section] as Life).last;
    life.last = next < 0 ? end : Math.min(next, end);
  }
  // What is read after a run, perhaps when another section has run, too.
  const { logits, mtp } = builder.graph;
  for (const name of mtp === undefined ? [logits] : [logits, mtp.given, mtp.logits, mtp.hidden]) {
    const outcome = lives.get(name);
    if (outcome !== undefined) outcome.last = builder.stages.length;
  }
  return lives;
}

/** By section: its stages, first to last. */
function spansOf({ stages, sections }: Builder): Life[] {
  return Array.from({ length: sections }, (_, section) => ({
    first: stages.findIndex((stage) => stage.section === section),
    last: stages.findLastIndex((stage) => stage.section === section),
  }));
}

/** Names of what is made row by row, of which each worker has a copy for runs of one row. */
export function madeByRows(builder: Builder): Set<string> {
  const made = builder.stages.filter(({ space }) => space !== 'units').flatMap(({ emissions }) => emissions);
  return new Set(made.flatMap(({ writes }) => writes));
}

/**
 * Buffers whose lives do not meet may share bytes. The largest are placed first, each at the lowest place that is free for
 * its whole life.
 */
export function placeBuffers(
  lives: ReadonlyMap<string, Life>,
  sizes: ReadonlyMap<string, number>,
): { readonly offsets: ReadonlyMap<string, number>; readonly bytes: number } {
  const size = (name: string) => sizes.get(name) as number;
  const order = [...lives].sort(([a], [b]) => size(b) - size(a));
  const placed: { first: number; last: number; from: number; to: number }[] = [];
  const offsets = new Map<string, number>();
  let height = 0;
  for (const [name, { first, last }] of order) {
    const bytes = align(size(name));
    const meets = placed.filter((other) => other.first <= last && first <= other.last).sort((a, b) => a.from - b.from);
    let from = 0;
    for (const other of meets) {
      if (from + bytes <= other.from) break;
      from = Math.max(from, other.to);
    }
    placed.push({ first, last, from, to: from + bytes });
    offsets.set(name, from);
    height = Math.max(height, from + bytes);
  }
  return { offsets, bytes: height };
}
