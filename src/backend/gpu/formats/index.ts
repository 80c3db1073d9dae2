import type { GpuFormat } from '../formats.ts';

export const gpuFormats: readonly GpuFormat[] = [];

export function gpuFormat(id: string): GpuFormat | undefined {
  return gpuFormats.find((format) => format.id === id);
}
