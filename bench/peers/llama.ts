/**
 * The llama.cpp child: node-llama-cpp's lowest level, a context sequence that is fed token ids. Only the binary that
 * its package brings is used; nothing is downloaded or compiled.
 */

import {
  getLlama,
  type LlamaContext,
  type LlamaContextSequence,
  LlamaLogLevel,
  type LlamaModel,
  type Token,
} from 'node-llama-cpp';

import { type Engine, type Job, readJob, runChild } from './measure.ts';

// Starting the binding tries the binary out in a process of its own; that is no part of loading a model.
const llama = await getLlama({
  gpu: false,
  build: 'never',
  skipDownload: true,
  progressLogs: false,
  logLevel: LlamaLogLevel.error,
  maxThreads: readJob().threads,
});

function llamaCpp(job: Job): Engine {
  let model: LlamaModel | undefined;
  let context: LlamaContext | undefined;
  let sequence: LlamaContextSequence | undefined;
  return {
    async load() {
      model = await llama.loadModel({ modelPath: job.model, gpuLayers: 0 });
      context = await model.createContext({
        contextSize: job.context,
        batchSize: job.batch,
        sequences: 1,
        threads: { ideal: job.threads, min: job.threads },
      });
      sequence = context.getSequence();
    },
    async generate(prompt, count) {
      if (sequence === undefined) throw new Error('generate before load');
      await sequence.clearHistory();
      const tokens: number[] = [];
      let firstMs = 0;
      let lastMs = 0;
      const started = performance.now();
      for await (const token of sequence.evaluate(prompt as Token[], { temperature: 0, yieldEogToken: true })) {
        lastMs = performance.now() - started;
        if (tokens.length === 0) firstMs = lastMs;
        tokens.push(token);
        if (tokens.length === count) break;
      }
      return { tokens, firstMs, lastMs };
    },
    async dispose() {
      await context?.dispose();
      await model?.dispose();
      await llama.dispose();
    },
  };
}

await runChild(llamaCpp);
