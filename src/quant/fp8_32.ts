/** FP8 in blocks of 32 values (`fp8.ts`): for rows that are not whole blocks of 128, as ragged ones of a checkpoint. */

import { fp8Blocks } from './fp8.ts';

export const fp8_32 = fp8Blocks('FP8_32', 32);
