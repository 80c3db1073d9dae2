/** The table of families: one file and one line each. */

import type { Family } from '../family.ts';
import { deepseek2 } from './deepseek2.ts';
import { dots1 } from './dots1.ts';
import { ernie4_5Moe } from './ernie4_5-moe.ts';
import { gemma3 } from './gemma3.ts';
import { gemma4 } from './gemma4.ts';
import { glm4moe } from './glm4moe.ts';
import { gptOss } from './gpt-oss.ts';
import { granitemoe } from './granitemoe.ts';
import { laguna } from './laguna.ts';
import { llama } from './llama.ts';
import { llama4 } from './llama4.ts';
import { minimaxM2 } from './minimax-m2.ts';
import { olmoe } from './olmoe.ts';
import { qwen2 } from './qwen2.ts';
import { qwen2moe } from './qwen2moe.ts';
import { qwen3 } from './qwen3.ts';
import { qwen3moe } from './qwen3moe.ts';

export const families: readonly Family[] = [
  llama,
  qwen2,
  qwen3,
  qwen2moe,
  qwen3moe,
  olmoe,
  glm4moe,
  gptOss,
  gemma3,
  gemma4,
  llama4,
  laguna,
  dots1,
  ernie4_5Moe,
  minimaxM2,
  granitemoe,
  deepseek2,
];
