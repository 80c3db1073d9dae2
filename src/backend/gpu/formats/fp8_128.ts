/** FP8 in blocks of 128 on the device. */

import { fp8Format } from './fp8.ts';

export const fp8_128 = fp8Format('FP8_128', 128);
