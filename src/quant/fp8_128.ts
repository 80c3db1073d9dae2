/** FP8 in blocks of 128 values (`fp8.ts`): a scale takes one byte in 33. */

import { fp8Blocks } from './fp8.ts';

export const fp8_128 = fp8Blocks('FP8_128', 128);
