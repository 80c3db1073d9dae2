/** Every flag of the command line, once, and which command takes which. Help and the argument tests walk these tables. */

import { prefetchNames } from '../experts/prefetch.ts';
import { shapes } from '../synthetic/shapes.ts';
import type { FlagTable } from './args.ts';
import { wrap } from './format.ts';

export const flags = {
  model: {
    short: 'm',
    kind: 'text',
    value: 'FILE',
    about: 'a GGUF file, the folder of a safetensors model, or its http(s) address (default: the bundled one)',
  },
  synthetic: {
    kind: 'text',
    value: 'SHAPE',
    about: 'random weights in the shape of a real model, without a file',
  },
  prompt: { short: 'p', kind: 'text', value: 'TEXT', about: 'what to say to the model; without it: a chat' },
  file: { short: 'f', kind: 'text', value: 'FILE', about: 'read the prompt from a file; - is standard input' },
  chat: { short: 'i', kind: 'switch', about: 'chat, also when standard input is not a terminal' },
  system: { aliases: ['system-prompt'], kind: 'text', value: 'TEXT', about: 'system message before the prompt' },
  raw: { kind: 'switch', about: 'the prompt is the text as it is, without the chat template' },
  predict: {
    short: 'n',
    aliases: ['n-predict', 'max-tokens'],
    kind: 'whole',
    value: 'N',
    min: -1,
    about: 'most tokens to generate; -1: until the end (default)',
  },
  stop: { kind: 'list', value: 'TEXT', about: 'end before this text appears; may be given several times' },
  'no-think': { kind: 'switch', about: 'ask the chat template for an answer without thinking first' },
  'chat-template-kwargs': { kind: 'json', value: 'JSON', about: 'an object passed to the chat template' },

  temp: {
    aliases: ['temperature'],
    kind: 'number',
    value: 'X',
    min: 0,
    about: "temperature; 0: the likeliest token (the file's, else 0.8)",
  },
  'top-k': { kind: 'whole', value: 'N', min: 0, about: 'draw among the N likeliest; 0: off (40)' },
  'top-p': {
    kind: 'number',
    value: 'X',
    min: 0,
    max: 1,
    about: 'draw among the likeliest up to a sum of X; 1: off (0.95)',
  },
  'min-p': { kind: 'number', value: 'X', min: 0, max: 1, about: 'drop what is below X × the likeliest; 0: off (0.05)' },
  'repeat-penalty': { kind: 'number', value: 'X', min: 0, about: 'make recent tokens less likely; 1: off (1)' },
  'repeat-last-n': { kind: 'whole', value: 'N', min: 0, about: 'how many tokens count as recent (64)' },
  'presence-penalty': { kind: 'number', value: 'X', about: 'subtracted for a token generated before; 0: off (0)' },
  'frequency-penalty': { kind: 'number', value: 'X', about: 'subtracted each time it was generated; 0: off (0)' },
  'logit-bias': { kind: 'list', value: 'ID±X', about: 'add X to the logit of token ID: 15043+1, 15043-1' },
  seed: { short: 's', kind: 'whole', value: 'N', min: -1, about: 'seed of the random draw; -1: a new one (default)' },

  'ctx-size': { short: 'c', kind: 'whole', value: 'N', min: 1, about: 'context length in tokens (default: see plan)' },
  threads: { short: 't', kind: 'whole', value: 'N', min: 1, max: 1024, about: 'worker threads (default: the cores)' },
  'batch-size': { short: 'b', kind: 'whole', value: 'N', min: 1, about: 'tokens of a prompt computed at once (512)' },
  device: {
    kind: 'form',
    value: 'DEVICE',
    form: /^(auto|cpu|gpu|gpu:\d{1,3}|reference)$/,
    expected: 'one of auto, cpu, gpu, gpu:0, gpu:1 …, reference',
    examples: ['auto', 'cpu', 'gpu', 'gpu:0', 'gpu:12', 'reference'],
    about: 'where it runs: cpu (default), gpu, gpu:N, auto, reference',
  },
  'gpu-layers': {
    short: 'g',
    aliases: ['n-gpu-layers'],
    kind: 'form',
    value: 'N',
    form: /^(auto|-1|\d{1,6})$/,
    expected: 'a whole number from 0 on, -1 or auto',
    examples: ['auto', '-1', '0', '17'],
    about: 'layers on the GPU, the rest on the CPU; auto: what fits (default)',
  },
  'gpu-memory': {
    kind: 'bytes',
    value: 'SIZE',
    min: 1,
    about: "the GPU's memory that may be used (default: all of it)",
  },
  'expert-cache': {
    kind: 'text',
    value: 'POLICY:SIZE',
    about:
      'experts the GPU holds, the CPU has the others: slru, lfu, static or lru, and slots, a share or bytes (slru:25%)',
  },
  'cpu-moe': { kind: 'switch', about: 'all experts on the CPU, the rest of the layers on the GPU' },
  'n-cpu-moe': {
    kind: 'whole',
    value: 'N',
    min: 1,
    about: 'the experts of the first N layers on the CPU',
  },
  'expert-uses': {
    kind: 'text',
    value: 'TRACE',
    about: 'the experts that this routing trace uses most are on the GPU first, with static for good',
  },
  'expert-prefetch': {
    kind: 'choice',
    choices: prefetchNames,
    about:
      'bring experts to the GPU first that are foreseen: as in the token before, or by the router of the next layer (off)',
  },
  'expert-pin': {
    kind: 'text',
    value: 'N|N%',
    about: 'slots that the experts used most in the first 256 tokens keep for good (none)',
  },
  'expert-stats': {
    kind: 'switch',
    about: 'say at the end what the experts did: hits, uploads, load, entropy, waits',
  },
  spec: {
    kind: 'text',
    value: 'HOW',
    about:
      "draft tokens and check several in a step: mtp:N (the model's own head), lookup[:N], draft:FILE[:N]; off (default)",
  },
  'spec-stats': {
    kind: 'switch',
    about: 'say at the end what drafting came to: accepted drafts, tokens a step, experts a step',
  },
  'gpu-checks': { kind: 'switch', about: "keep the GPU driver's checks of bounds and commands (slower)" },
  kv: { kind: 'choice', choices: ['f16', 'f32'], about: 'number format of the KV cache (default: see plan)' },
  memory: {
    kind: 'bytes',
    value: 'SIZE',
    min: 1,
    about: "the machine's memory that may be used (default: what is free)",
  },
  'ignore-key': { kind: 'list', value: 'NAME', about: 'run although this metadata key or tensor is not understood' },
  'arena-bytes': { kind: 'bytes', value: 'SIZE', min: 65_536, hidden: true, about: 'upper bound of one arena' },

  'prompt-tokens': {
    short: 'p',
    kind: 'whole',
    value: 'N',
    min: 0,
    about: 'tokens of the prefill test; 0: leave it out (512)',
  },
  'decode-tokens': {
    short: 'n',
    kind: 'whole',
    value: 'N',
    min: 0,
    about: 'tokens of the decode test; 0: leave it out (128)',
  },
  depth: {
    short: 'd',
    kind: 'whole',
    value: 'N',
    min: 1,
    about: 'tokens in the cache that the decode test comes after (1)',
  },
  repetitions: { short: 'r', kind: 'whole', value: 'N', min: 1, max: 1000, about: 'measured runs of each test (5)' },

  routing: {
    kind: 'text',
    value: 'TRACE',
    about: 'with split experts: rows use the experts of this routing trace, token for token',
  },
  output: {
    short: 'o',
    kind: 'text',
    value: 'DIR',
    about: 'the folder that the trace goes to; there is none in it yet',
  },

  uploads: {
    kind: 'whole',
    value: 'N',
    min: 0,
    about: 'most experts uploaded a token (default: every miss at once)',
  },
  prefetch: {
    kind: 'switch',
    about: 'try each cache once more with those experts first that a layer used for the token before',
  },
  'warm-up': {
    kind: 'whole',
    value: 'N',
    min: 0,
    about: 'tokens before anything is counted (256, or a quarter of a short trace)',
  },
  pin: {
    kind: 'number',
    value: 'PERCENT',
    min: 0,
    max: 100,
    about: 'of the slots, kept for good by the hottest after the warm-up (none)',
  },
  'expert-bytes': {
    kind: 'bytes',
    value: 'SIZE',
    min: 1,
    about: "an expert's weights (default: what the trace says)",
  },

  json: { kind: 'switch', about: 'print one JSON object' },
  verbose: { kind: 'switch', about: 'on an error print its code, data, cause and stack' },
  help: { short: 'h', kind: 'switch', about: 'print this help' },
} as const satisfies FlagTable;

/** The shapes of `--synthetic`, for help. */
export const shapeLines = wrap(`Shapes: ${Object.keys(shapes).join(', ')}.`, 96).join('\n');

const output = ['json', 'verbose', 'help'] as const;
const placement = [
  'ctx-size',
  'threads',
  'batch-size',
  'device',
  'gpu-layers',
  'gpu-memory',
  'expert-cache',
  'cpu-moe',
  'n-cpu-moe',
  'expert-uses',
  'expert-prefetch',
  'expert-pin',
  'gpu-checks',
  'kv',
  'memory',
  'ignore-key',
  'arena-bytes',
] as const;

const generation = [
  'system',
  'raw',
  'predict',
  'stop',
  'no-think',
  'chat-template-kwargs',
  'temp',
  'top-k',
  'top-p',
  'min-p',
  'repeat-penalty',
  'repeat-last-n',
  'presence-penalty',
  'frequency-penalty',
  'logit-bias',
  'seed',
] as const;

export const runFlags = pick([
  'model',
  'prompt',
  'file',
  'chat',
  ...generation,
  'expert-stats',
  'spec',
  'spec-stats',
  ...placement,
  ...output,
]);

export const traceFlags = {
  ...pick(['model']),
  prompt: { ...flags.prompt, about: 'what to say to the model' },
  file: { ...flags.file, about: 'read prompts from a file, one a line; - is standard input' },
  ...pick(['output', ...generation, ...placement, ...output]),
} as const satisfies FlagTable;

export const planFlags = pick(['model', 'synthetic', ...placement, 'spec', ...output]);

export const inspectFlags = pick(['model', 'ignore-key', ...output]);

export const benchFlags = {
  ...pick(['model', 'synthetic', 'prompt-tokens', 'decode-tokens', 'depth']),
  file: { ...flags.file, about: 'decode after the prompts of this file, one a line, instead of random tokens' },
  ...pick(['repetitions', 'seed', 'routing', 'expert-stats', ...placement, 'spec', ...output]),
} as const satisfies FlagTable;

export const replayFlags = {
  // A model has one cache; a trace is for comparing several.
  'expert-cache': {
    kind: 'list',
    value: 'POLICY:SIZE',
    about: 'a cache to try, as run takes it; may be given several times',
  },
  ...pick(['uploads', 'prefetch', 'warm-up', 'pin', 'expert-bytes', ...output]),
} as const satisfies FlagTable;

function pick<const Name extends keyof typeof flags>(names: readonly Name[]): Pick<typeof flags, Name> {
  return Object.fromEntries(names.map((name) => [name, flags[name]])) as Pick<typeof flags, Name>;
}
