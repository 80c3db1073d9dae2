/** `conclave replay`: cache policies over a recorded routing trace, side by side, without the model. */

import { UsageError } from '../errors.ts';
import { type PolicyName, policyNames } from '../experts/policies.ts';
import { type ReplayCase, replay as replayTrace } from '../experts/replay.ts';
import { parseExpertCache, slotsOfSize } from '../experts/size.ts';
import type { TraceShape } from '../experts/trace.ts';
import { describeFlags, parseFlags } from './args.ts';
import { type Context, write } from './context.ts';
import type { ExitCode } from './fail.ts';
import { replayFlags } from './flags.ts';
import { printableName, toJson } from './format.ts';
import { replaying, startProgress } from './progress.ts';
import { describeReplay } from './replay-text.ts';
import { openTrace } from './trace-input.ts';

const DEFAULT_POLICIES: readonly PolicyName[] = ['lru', 'slru', 'lfu', 'static'];
const DEFAULT_SHARES = [1 / 8, 1 / 4, 1 / 2];
const DEFAULT_WARM_UP_TOKENS = 256;

export const replayHelp = `Run expert cache policies over a recorded routing trace, without the model, and compare them.

  conclave replay traces/mine
  conclave replay traces/mine --expert-cache slru:25% --expert-cache lfu:25% --uploads 8

A trace is a folder with trace.json and trace.bin. Policies are ${policyNames.join(', ')}. Without --expert-cache four of
them are compared at an eighth, a quarter and a half of all experts, and a policy without a size at these three.

${describeFlags(replayFlags)}
`;

/** @throws UsageError `usage`; SourceError `source` and CorruptFileError `corrupt_file` for what is no trace */
export async function replay(argv: readonly string[], context: Context): Promise<ExitCode> {
  const { values, positionals } = parseFlags(replayFlags, argv);
  if (values.help === true) {
    await write(context.stdout, replayHelp);
    return 0;
  }
  const [path, ...more] = positionals;
  if (path === undefined || more.length > 0) {
    throw new UsageError(
      `give the folder of one trace, as in conclave replay traces/mine; found ${positionals.length}`,
    );
  }
  // What is wrong with the flags is said before anything is read.
  const specs = (values['expert-cache'] ?? DEFAULT_POLICIES).map(parseExpertCache);
  const trace = await openTrace(path);
  const progress = startProgress(context.stderr, { work: replaying });
  try {
    const { shape } = trace;
    const expertBytes = values['expert-bytes'] ?? shape.expertBytes;
    // Of few experts several shares are the same slots.
    const sizes = new Set(DEFAULT_SHARES.map((share) => Math.max(1, Math.floor(share * shape.layers * shape.experts))));
    const result = await replayTrace(trace, {
      cases: specs.flatMap(({ policy, size }) =>
        (size === undefined ? [...sizes] : [slotsOfSize(size, { ...shape, expertBytes })]).map(
          (slots): ReplayCase => ({ policy, slots }),
        ),
      ),
      warmUpTokens: values['warm-up'] ?? defaultWarmUp(shape),
      uploads: values.uploads,
      prefetch: values.prefetch,
      pinShare: values.pin === undefined ? undefined : values.pin / 100,
      expertBytes,
      onProgress: ({ tokensDone, tokensTotal }) => progress.update({ done: tokensDone, total: tokensTotal }),
    });
    progress.finish();
    await write(
      context.stdout,
      values.json === true ? `${toJson(result)}\n` : describeReplay(printableName(path), result),
    );
    return 0;
  } finally {
    progress.finish();
    await trace.close();
  }
}

/** A short trace leaves most of itself to count. */
function defaultWarmUp({ tokens }: TraceShape): number {
  return Math.min(DEFAULT_WARM_UP_TOKENS, Math.floor(tokens / 4));
}
