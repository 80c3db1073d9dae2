/** NVFP4 in blocks of 32 on the device: there it lies, and is read, as NVFP4 of blocks of 64. */

import type { GpuFormat } from '../formats.ts';
import { nvfp4 } from './nvfp4.ts';

export const nvfp4_32: GpuFormat = { ...nvfp4, id: 'NVFP4_32', planes: [2, 16] };
