/**
 * Cache policies over a recorded routing trace, without the model: how often each would have found its expert, and with how
 * many uploads. The caches are the engine's own.
 */

import { UsageError } from '../errors.ts';
import { ExpertCache, type HeldExpert, type Pinning, type Upload } from './cache.ts';
import type { PolicyName } from './policies.ts';
import { PreviousStep } from './predict.ts';
import { Prefetch } from './prefetch.ts';
import { ExpertStats, totalOf } from './stats.ts';
import type { RoutingTrace, TraceShape } from './trace.ts';

export interface ReplayCase {
  readonly policy: PolicyName;
  readonly slots: number;
}

export interface ReplayOptions {
  readonly cases: readonly ReplayCase[];
  /** Tokens before anything is counted; `static` takes what these use most, the others begin with an even fill. */
  readonly warmUpTokens: number;
  /**
   * Most uploads of a token: they begin after its last layer and are done before the next token. Absent: no bound, every
   * miss is uploaded before the next layer, as textbook caches have it.
   */
  readonly uploads?: number;
  /** Share of the slots that the hottest after the warm-up keep for good. */
  readonly pinShare?: number;
  /** Of one expert's weights. */
  readonly expertBytes?: number;
  /** Whether each cache that changes is run a second time, with experts that were foreseen brought first; needs `uploads`. */
  readonly prefetch?: boolean;
  /** Told now and then how far it is. */
  readonly onProgress?: (progress: { readonly tokensDone: number; readonly tokensTotal: number }) => void;
}

/** What one cache would have done, after the warm-up. */
export interface ReplayRow extends ReplayCase {
  /** Of all experts. */
  readonly share: number;
  readonly hitRate: number;
  /** Of the runs of a layer for a token, those that found every expert in a slot. */
  readonly wholeShare: number;
  readonly uploadsPerToken: number;
  /** The hit rate when experts that a layer used for the token before come first, where that was asked for. */
  readonly prefetchingHitRate?: number;
  /** Of uploads; where an expert's are known. */
  readonly bytesPerToken?: number;
}

/** What the trace is like, whatever the cache. */
export interface RoutingFacts {
  readonly busierHalfShare: number;
  /** The recall of {@link PreviousStep}; the other predictor needs hidden states, which a trace has not. */
  readonly sharedWithPreviousToken: number;
  readonly entropyBits: number;
  readonly entropyShare: number;
}

export interface Replay {
  readonly shape: TraceShape;
  readonly warmUpTokens: number;
  readonly uploads?: number;
  readonly pinShare?: number;
  readonly routing: RoutingFacts;
  readonly rows: readonly ReplayRow[];
}

/**
 * Runs all cases in one pass over the trace.
 * @throws UsageError `usage` for a warm-up that leaves nothing to count, or nothing to choose from; what reading the trace throws
 */
export async function replay(trace: RoutingTrace, options: ReplayOptions): Promise<Replay> {
  const { shape } = trace;
  const { warmUpTokens, uploads } = options;
  if (!(warmUpTokens < shape.tokens)) {
    throw new UsageError(
      `a warm-up of ${warmUpTokens} tokens leaves none of the trace's ${shape.tokens} to count; give a shorter one`,
      { data: { option: 'warmUpTokens', tokens: shape.tokens } },
    );
  }
  if (options.prefetch === true && uploads === undefined) {
    throw new UsageError(
      'prefetch (--prefetch) says which experts come first of all that might, and without uploads (--uploads) all come; give their number',
      { data: { option: 'prefetch' } },
    );
  }
  const layers = Array.from({ length: shape.layers }, (_, layer) => layer);
  const stats = new ExpertStats(layers, shape.experts);
  const previous = new PreviousStep();
  const prefetches = ({ policy }: ReplayCase) => options.prefetch === true && policy !== 'static';
  const warmUpUses = new Float64Array(shape.layers * shape.experts);
  let runs: readonly CaseRun[] = [];
  // What never changes needs to know the warm-up first.
  const begin = (changes: boolean) =>
    options.cases
      .filter(({ policy }) => (policy !== 'static') === changes)
      .flatMap((each) => [
        new CaseRun(each, shape, options, { uses: changes ? undefined : warmUpUses, prefetch: false }),
        ...(prefetches(each) ? [new CaseRun(each, shape, options, { uses: undefined, prefetch: true })] : []),
      ]);
  runs = begin(true);
  for await (const block of trace.blocks()) {
    for (let token = block.first; token < block.first + block.tokens; token++) {
      const counted = token >= warmUpTokens;
      if (token === warmUpTokens) runs = [...runs, ...begin(false)];
      for (const layer of layers) {
        const ids = block.ids(token, layer);
        stats.routed(layer, ids);
        stats.foreseen(layer, previous.observe(layer, ids));
        if (!counted) for (const expert of ids) warmUpUses[layer * shape.experts + expert]++;
        for (const run of runs) run.layer(layer, ids, counted);
      }
      stats.endStep(1);
      for (const run of runs) run.endToken(counted);
      options.onProgress?.({ tokensDone: token + 1, tokensTotal: shape.tokens });
    }
  }
  const { busierHalfShare, entropyBits, entropyShare, foreseen } = totalOf(stats.snapshot());
  const sharedWithPreviousToken = foreseen.used === 0 ? 0 : foreseen.right / foreseen.used;
  const rows = options.cases.map((each): ReplayRow => {
    const [plain, prefetching] = runs.filter((run) => run.of === each) as [CaseRun, ...CaseRun[]];
    return { ...plain.row(options), ...(prefetching && { prefetchingHitRate: prefetching.hitRate }) };
  });
  return {
    shape,
    warmUpTokens,
    uploads,
    pinShare: options.pinShare,
    routing: { busierHalfShare, sharedWithPreviousToken, entropyBits, entropyShare },
    rows,
  };
}

/** One cache on its way through the trace. */
class CaseRun {
  readonly of: ReplayCase;
  readonly #shape: TraceShape;
  readonly #cache: ExpertCache;
  readonly #uploads: number | undefined;
  readonly #prefetch: Prefetch | undefined;
  #hits = 0;
  #picks = 0;
  #whole = 0;
  #layers = 0;
  #uploaded = 0;

  constructor(
    of: ReplayCase,
    shape: TraceShape,
    options: ReplayOptions,
    { uses, prefetch }: { readonly uses: Float64Array | undefined; readonly prefetch: boolean },
  ) {
    const { pinShare, warmUpTokens, uploads } = options;
    const pin: Pinning | undefined =
      pinShare === undefined ? undefined : { afterTokens: Math.max(1, warmUpTokens), share: pinShare };
    this.of = of;
    this.#shape = shape;
    this.#uploads = uploads;
    this.#cache = new ExpertCache({
      policy: of.policy,
      experts: shape.experts,
      groups: [{ layers: Array.from({ length: shape.layers }, (_, layer) => layer), slots: of.slots }],
      uses: uses === undefined ? undefined : (layer, expert) => uses[layer * shape.experts + expert],
      pin,
    });
    if (prefetch) this.#prefetch = new Prefetch(this.#cache, 'previous');
    for (const upload of this.#cache.fill()) this.#cache.commit(upload);
  }

  get hitRate(): number {
    return this.#hits / this.#picks;
  }

  layer(layer: number, ids: Uint16Array, counted: boolean): void {
    const hits = this.#cache.touch(layer, ids);
    this.#prefetch?.used(layer, ids);
    if (counted) {
      this.#hits += hits;
      this.#picks += ids.length;
      this.#layers++;
      if (hits === ids.length) this.#whole++;
    }
    // The layer's own experts are at work.
    if (this.#uploads === undefined) {
      this.#upload(Infinity, counted, (other, expert) => other === layer && ids.includes(expert));
    }
  }

  endToken(counted: boolean): void {
    this.#prefetch?.endStep();
    if (this.#uploads !== undefined) this.#upload(this.#uploads, counted);
    this.#cache.endStep();
  }

  row({ warmUpTokens, expertBytes }: ReplayOptions): ReplayRow {
    const { tokens, layers, experts } = this.#shape;
    const uploadsPerToken = this.#uploaded / (tokens - warmUpTokens);
    return {
      ...this.of,
      share: this.of.slots / (layers * experts),
      hitRate: this.hitRate,
      wholeShare: this.#whole / this.#layers,
      uploadsPerToken,
      bytesPerToken: expertBytes === undefined ? undefined : uploadsPerToken * expertBytes,
    };
  }

  #upload(most: number, counted: boolean, held?: HeldExpert): void {
    for (let done = 0; done < most; done++) {
      const upload = this.#prefetch?.begin() ?? this.#begin(held);
      if (upload === undefined) return;
      this.#cache.commit(upload);
      if (counted) this.#uploaded++;
    }
  }

  #begin(held: HeldExpert | undefined): Upload | undefined {
    const id = this.#cache.candidate(held);
    return id && this.#cache.begin(id, held);
  }
}
