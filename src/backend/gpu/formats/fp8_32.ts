/** FP8 in blocks of 32 on the device. */

import { fp8Format } from './fp8.ts';

export const fp8_32 = fp8Format('FP8_32', 32);
