/** The GPU device: asked for with everything the adapter has, and what goes wrong with it as named errors. */

import { DeviceLostError, OutOfMemoryError, Refusal } from '../../errors.ts';
import type { GpuChoice, Platform } from '../../platform/platform.ts';
import { DeviceMemory } from './device-memory.ts';

/** What a plan may know of an adapter; plain data. */
export interface AdapterFacts {
  /** For a person: the card and its driver, as they call themselves. */
  readonly name: string;
  readonly features: readonly string[];
  readonly maxBufferBytes: number;
  readonly maxBindingBytes: number;
  /** Buffers that a kernel binds, at the most. */
  readonly maxBindings: number;
  readonly workgroupBytes: number;
  /** Computed by the processor: of use for tests only. */
  readonly software: boolean;
}

/** Software renderers that do not say of themselves that they are. */
const softwareNames = /swiftshader|llvmpipe|lavapipe|microsoft basic render/i;

/** Features that kernels use where an adapter has them; none is required. */
const wanted = ['shader-f16', 'subgroups', 'timestamp-query', 'chromium-experimental-subgroup-matrix'] as const;

/** The same of the shading language. */
const wantedOfLanguage = ['packed_4x8_integer_dot_product'] as const;

/**
 * Subgroup matrices as kernels use them: 16×16×16 of f16 with f32 sums, subgroups of 32 that know their number, 48 KiB of
 * workgroup memory and 512 threads.
 */
const MATRIX = 'subgroup-matrix-f16';

interface MatrixConfig {
  readonly M: number;
  readonly N: number;
  readonly K: number;
  readonly componentType: string;
  readonly resultComponentType: string;
}

function offersMatrix({ features, info, limits }: GPUAdapter, language: ReadonlySet<string>): boolean {
  const { subgroupMatrixConfigs: configs = [] } = info as { readonly subgroupMatrixConfigs?: readonly MatrixConfig[] };
  return (
    ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'].every((name) => features.has(name)) &&
    language.has('subgroup_id') &&
    info.subgroupMinSize === 32 &&
    info.subgroupMaxSize === 32 &&
    limits.maxComputeWorkgroupStorageSize >= 48 * 1024 &&
    limits.maxComputeInvocationsPerWorkgroup >= 512 &&
    configs.some(
      ({ M, N, K, componentType, resultComponentType }) =>
        M === 16 && N === 16 && K === 16 && componentType === 'f16' && resultComponentType === 'f32',
    )
  );
}

/** Limits that are raised to what the adapter has. */
const raised = [
  'maxBufferSize',
  'maxStorageBufferBindingSize',
  'maxComputeWorkgroupStorageSize',
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupSizeX',
  'maxComputeWorkgroupsPerDimension',
  'maxStorageBuffersPerShaderStage',
] as const;

/**
 * @throws Refusal `refused` when there is no WebGPU, no adapter or none of the chosen number, with what to do
 */
export async function requestAdapter(platform: Pick<Platform, 'gpu'>, choice?: GpuChoice): Promise<GPUAdapter> {
  const gpu = await platform.gpu(choice);
  if (gpu === undefined) {
    throw new Refusal(
      'this runtime has no WebGPU: in Node install the package webgpu (npm install webgpu), or use --device cpu',
    );
  }
  const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' });
  if (adapter === null) {
    throw new Refusal('no GPU was found: check its Vulkan, Metal or D3D12 driver, or use --device cpu');
  }
  return adapter;
}

/** @param language what WGSL itself offers: `navigator.gpu.wgslLanguageFeatures` */
export function adapterFacts(adapter: GPUAdapter, language: ReadonlySet<string> = new Set()): AdapterFacts {
  const { architecture, description, isFallbackAdapter } = adapter.info;
  return {
    name: nameOf(adapter.info),
    features: [
      ...wanted.filter((feature) => adapter.features.has(feature)),
      ...wantedOfLanguage.filter((feature) => language.has(feature)),
      ...(offersMatrix(adapter, language) ? [MATRIX] : []),
    ],
    maxBufferBytes: adapter.limits.maxBufferSize,
    maxBindingBytes: adapter.limits.maxStorageBufferBindingSize,
    maxBindings: adapter.limits.maxStorageBuffersPerShaderStage,
    workgroupBytes: adapter.limits.maxComputeWorkgroupStorageSize,
    software: isFallbackAdapter || softwareNames.test(`${architecture} ${description}`),
  };
}

/** The card and its driver, as far as they are told: some drivers describe only themselves, and browsers tell a family. */
function nameOf({ vendor, architecture, device, description }: GPUAdapterInfo): string {
  // Made of a name by putting dashes for all that is no letter and no digit.
  const card = device.replace(/-+$/, '');
  const told = [card, description].filter((part) => part !== '');
  return told.length > 0 ? told.join(', ') : [vendor, architecture].filter((part) => part !== '').join(' ');
}

/** @throws as {@link requestAdapter} */
export async function findAdapter(platform: Pick<Platform, 'gpu'>, choice?: GpuChoice): Promise<AdapterFacts> {
  const adapter = await requestAdapter(platform, choice);
  return adapterFacts(adapter, (await platform.gpu(choice))?.wgslLanguageFeatures);
}

/** A device and what has become of it. */
export class Gpu {
  readonly device: GPUDevice;
  readonly memory: DeviceMemory;
  /** Computed by the processor. */
  readonly software: boolean;
  #failure: Error | undefined;
  #closed = false;

  private constructor(device: GPUDevice, software: boolean) {
    this.device = device;
    this.memory = new DeviceMemory(device);
    this.software = software;
    void device.lost.then(({ message, reason }) => {
      if (this.#closed) return;
      this.#failure ??= new DeviceLostError(
        `the GPU was lost (${reason}${message === '' ? '' : `: ${message}`}); load the model again, or use --device cpu`,
        { data: { reason } },
      );
    });
    device.addEventListener('uncapturederror', (event) => {
      const { error } = event as GPUUncapturedErrorEvent;
      this.#failure ??= namedError(error);
    });
  }

  /** @throws Refusal `refused`; DeviceLostError `device_lost` when the driver gives no device */
  static async open(platform: Pick<Platform, 'gpu'>, choice?: GpuChoice): Promise<Gpu> {
    const adapter = await requestAdapter(platform, choice);
    const requiredLimits = Object.fromEntries(raised.map((name) => [name, adapter.limits[name]]));
    const requiredFeatures = wanted.filter((feature) => adapter.features.has(feature)) as unknown as GPUFeatureName[];
    try {
      const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
      return new Gpu(device, adapterFacts(adapter).software);
    } catch (cause) {
      throw new DeviceLostError(`the GPU gave no device: ${(cause as Error).message}`, { cause });
    }
  }

  /** @throws what went wrong since the device was opened, if anything did */
  check(): void {
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Runs `make` and throws what the device says of it by name. */
  async guarded<T>(make: () => T | Promise<T>): Promise<T> {
    this.device.pushErrorScope('validation');
    this.device.pushErrorScope('out-of-memory');
    const made = await make();
    const errors = [await this.device.popErrorScope(), await this.device.popErrorScope()];
    for (const error of errors) if (error !== null) throw namedError(error);
    this.check();
    return made;
  }

  close(): void {
    this.#closed = true;
    this.device.destroy();
  }
}

function namedError(error: GPUError): Error {
  const memory = error.constructor.name === 'GPUOutOfMemoryError';
  // What follows says where in the driver it was.
  const said = error.message.split('\n')[0] as string;
  return memory
    ? new OutOfMemoryError(
        `the GPU has no memory left: ${said}; give it fewer layers (-g N), a shorter context or a smaller model, or use --device cpu`,
        { cause: error.message },
      )
    : new DeviceLostError(`the GPU refused a command: ${said}`, { cause: error.message });
}
