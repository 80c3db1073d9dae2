/** What Dawn says of WGSL without a device: kernels whose features the machine at hand does not offer are checked too. */

import { create } from 'webgpu';

const features = ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'];

// Never given up: Dawn ends the process when it is collected before its devices.
const gpu = create(['backend=null', 'enable-dawn-features=allow_unsafe_apis']);
let opened: Promise<GPUDevice> | undefined;

async function open(): Promise<GPUDevice> {
  const adapter = await gpu.requestAdapter();
  if (adapter === null) throw new Error("Dawn's null backend is missing");
  return adapter.requestDevice({ requiredFeatures: features as GPUFeatureName[] });
}

/** The errors of a module; names, types and uniformity are checked, limits are not. */
export async function wgslErrors(code: string): Promise<readonly string[]> {
  opened ??= open();
  const device = await opened;
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  await device.popErrorScope();
  return messages.filter(({ type }) => type === 'error').map(({ lineNum, message }) => `line ${lineNum}: ${message}`);
}
