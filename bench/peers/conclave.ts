/** The Conclave child: through the published library, as a user of it would. */

import type { Model } from '../../src/index.ts';
import { type Engine, type Job, runChild } from './measure.ts';

// The built package, so that stripping types is in nobody's load time.
const { load } = (await import(
  new URL('../../dist/index.js', import.meta.url).href
)) as typeof import('../../src/index.ts');

function conclave(job: Job): Engine {
  let model: Model | undefined;
  return {
    async load() {
      const { threads, context, batch } = job;
      model = await load(job.model, { device: 'cpu', threads, context, batch });
    },
    async generate(prompt, count) {
      if (model === undefined) throw new Error('generate before load');
      const session = model.session();
      const started = performance.now();
      try {
        for await (const part of session.generate(
          { tokens: prompt },
          { temperature: 0, maxTokens: count, ignoreEos: true },
        )) {
          if (part.type !== 'finish') continue;
          const lastMs = performance.now() - started;
          // Text may come later than its tokens (half characters), so the engine's own clock parts prefill from decode;
          // with one token there is nothing to part, and the wall clock counts.
          return { tokens: part.tokens, firstMs: count === 1 ? lastMs : part.usage.prefillMs, lastMs };
        }
        throw new Error('generation ended without a finish');
      } finally {
        await session.dispose();
      }
    },
    async dispose() {
      await model?.dispose();
    },
  };
}

await runChild(conclave);
