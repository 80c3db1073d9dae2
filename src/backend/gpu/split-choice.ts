/** What a layer's rows chose, by expert, and which of the absent experts the device or the CPU computes. */

/** The (row, rank) pairs of one expert: row · used + rank, ascending. */
export interface Group {
  readonly expert: number;
  readonly pairs: Int32Array;
}

export interface Chosen {
  /** [rows · used] */
  readonly ids: Uint32Array;
  /** In the order of experts. */
  readonly groups: readonly Group[];
}

/** @param how.given instead of what stands in the bytes */
export function chosenOf(
  bytes: ArrayBuffer,
  how: {
    readonly rows: number;
    readonly routeWidth: number;
    readonly used: number;
    readonly experts: number;
    readonly given: Uint32Array | undefined;
  },
): Chosen {
  const { rows, routeWidth, used, experts, given } = how;
  const ids = given ?? idsOf(new Uint32Array(bytes, 0, rows * routeWidth), { rows, routeWidth, used, experts });
  return { ids, groups: groupsOf(ids, experts) };
}

/** [rows · used] Out of a choice as the device writes it, [rows][routeWidth]. */
export function idsOf(
  routed: Uint32Array,
  how: { readonly rows: number; readonly routeWidth: number; readonly used: number; readonly experts: number },
): Uint32Array {
  const { rows, routeWidth, used, experts } = how;
  const ids = new Uint32Array(rows * used);
  for (let row = 0; row < rows; row++) {
    for (let rank = 0; rank < used; rank++) {
      // A row that cannot be routed has ids that mean nothing, and its result says so.
      ids[row * used + rank] = Math.min(routed[row * routeWidth + rank] as number, experts - 1);
    }
  }
  return ids;
}

function groupsOf(ids: Uint32Array, experts: number): Group[] {
  const ends = new Int32Array(experts);
  for (let pair = 0; pair < ids.length; pair++) (ends[ids[pair] as number] as number)++;
  const counts = ends.slice();
  for (let expert = 0, before = 0; expert < experts; expert++) {
    const count = ends[expert] as number;
    ends[expert] = before;
    before += count;
  }
  const order = new Int32Array(ids.length);
  for (let pair = 0; pair < ids.length; pair++) {
    const expert = ids[pair] as number;
    order[(ends[expert] as number)++] = pair;
  }
  const groups: Group[] = [];
  for (let expert = 0; expert < experts; expert++) {
    const count = counts[expert] as number;
    const end = ends[expert] as number;
    if (count > 0) groups.push({ expert, pairs: order.subarray(end - count, end) });
  }
  return groups;
}

export function pairsOf(groups: readonly Group[]): number {
  return groups.reduce((sum, { pairs }) => sum + pairs.length, 0);
}

/** Milliseconds that bringing an expert takes at first, and a pair on the CPU: those of a large host. */
const FIRST_PASS_MS = 0.3;
const FIRST_PAIR_MS = 0.03;
/** How much of what was measured last goes into what is expected. */
const LEARN = 0.25;
/** What a pair is expected to take less when the CPU was done first. */
const LESS = 0.95;
/** Waits shorter than this are none. */
const WAIT_MS = 0.2;

/**
 * Shares a prompt's absent experts out between the device and the CPU, so that both are done at about the same time: those of
 * most rows are brought to the device, as many as are copied while the CPU computes the rest. What either takes it learns from
 * the layers before.
 */
export class Balance {
  readonly #passes: 'all' | 'balanced';
  readonly #hostPairs: number;
  #passMs = FIRST_PASS_MS;
  #pairMs = FIRST_PAIR_MS;

  /** @param limits.hostPairs most pairs of the CPU's */
  constructor(limits: { readonly passes: 'all' | 'balanced'; readonly hostPairs: number }) {
    this.#passes = limits.passes;
    this.#hostPairs = limits.hostPairs;
  }

  share(absent: readonly Group[]): { readonly passing: readonly Group[]; readonly rest: readonly Group[] } {
    if (this.#passes === 'all') return { passing: absent, rest: [] };
    const order = [...absent].sort((a, b) => b.pairs.length - a.pairs.length || a.expert - b.expert);
    let left = pairsOf(absent);
    let passing = 0;
    while (passing < order.length && (left > this.#hostPairs || left * this.#pairMs > passing * this.#passMs)) {
      left -= (order[passing] as Group).pairs.length;
      passing++;
    }
    return { passing: order.slice(0, passing), rest: order.slice(passing) };
  }

  /** How long a layer took. @param took.waitedMs for the CPU, behind the last expert brought */
  learn(took: {
    readonly experts: number;
    readonly passMs: number;
    readonly pairs: number;
    readonly waitedMs: number;
  }): void {
    const { experts, passMs, pairs, waitedMs } = took;
    if (experts > 0) this.#passMs += LEARN * (passMs / experts - this.#passMs);
    // When it was done is known only if it was waited for.
    if (waitedMs < WAIT_MS) this.#pairMs *= LESS;
    else if (pairs > 0) this.#pairMs += LEARN * ((passMs + waitedMs) / pairs - this.#pairMs);
  }
}

/** Rows side by side. */
interface RowRun {
  readonly row: number;
  readonly count: number;
  /** Where they stand among the wanted ones. */
  readonly at: number;
}

/** The rows that groups' pairs are of, each once and in order. */
export function rowsOf(
  groups: readonly Group[],
  { used, rows }: { readonly used: number; readonly rows: number },
): { readonly runs: readonly RowRun[]; readonly count: number; readonly rowAt: (row: number) => number } {
  const places = new Int32Array(rows).fill(-1);
  for (const { pairs } of groups) for (const pair of pairs) places[Math.floor(pair / used)] = 0;
  const runs: { row: number; count: number; at: number }[] = [];
  let count = 0;
  for (let row = 0; row < rows; row++) {
    if (places[row] === -1) continue;
    places[row] = count;
    const last = runs.at(-1);
    if (last !== undefined && last.row + last.count === row) last.count++;
    else runs.push({ row, count: 1, at: count });
    count++;
  }
  return { runs, count, rowAt: (row) => places[row] as number };
}
