/**
 * Pipelines and bind groups, made once at load, and the recording of runs. A recorded dispatch reads only immutable bind
 * groups, buffers written by dispatches before it, and the step buffer, which is written once before the submission that
 * reads it: nothing that the host does between two dispatches can change what either of them sees.
 */

import { InternalError } from '../../errors.ts';
import type { Mode } from '../kernel.ts';
import type { Binding, Dispatch, RunShape } from './builder.ts';
import type { Gpu } from './device.ts';
import { timePasses } from './timestamps.ts';

const COMPUTE = 0x4;

interface Recorded {
  readonly label: string;
  readonly pipeline: GPUComputePipeline;
  readonly group: GPUBindGroup;
  readonly workgroups: Dispatch['workgroups'];
}

export class Recorder {
  readonly #gpu: Gpu;
  readonly #recorded: Record<Mode, readonly Recorded[]>;
  /** Dispatches of the last recording. */
  dispatches = 0;

  private constructor(gpu: Gpu, recorded: Record<Mode, readonly Recorded[]>) {
    this.#gpu = gpu;
    this.#recorded = recorded;
  }

  /**
   * Compiles every pipeline and binds every dispatch.
   * @param bufferOf the buffer that a binding names
   */
  static async make(
    gpu: Gpu,
    dispatches: Readonly<Record<Mode, readonly Dispatch[]>>,
    bufferOf: (binding: Binding) => GPUBuffer,
  ): Promise<Recorder> {
    const { device } = gpu;
    const layouts = new Map<string, GPUBindGroupLayout>();
    const layoutOf = (bindings: readonly Binding[]): GPUBindGroupLayout => {
      const types = bindings.map((binding) =>
        'access' in binding && binding.access === 'write' ? 'storage' : 'read-only-storage',
      );
      const key = types.join();
      let layout = layouts.get(key);
      if (layout === undefined) {
        layout = device.createBindGroupLayout({
          entries: types.map((type, binding) => ({
            binding,
            visibility: COMPUTE,
            buffer: { type: type as GPUBufferBindingType },
          })),
        });
        layouts.set(key, layout);
      }
      return layout;
    };
    const pipelines = new Map<string, Promise<GPUComputePipeline>>();
    const pipelineOf = ({ code, label, bindings }: Dispatch): Promise<GPUComputePipeline> => {
      let pipeline = pipelines.get(code);
      if (pipeline === undefined) {
        const module = device.createShaderModule({ code, label });
        pipeline = device
          .createComputePipelineAsync({
            label,
            layout: device.createPipelineLayout({ bindGroupLayouts: [layoutOf(bindings)] }),
            compute: { module, entryPoint: 'main' },
          })
          .catch(async (cause: unknown) => {
            const { messages } = await module.getCompilationInfo();
            const said = messages.map(({ lineNum, message }) => `line ${lineNum}: ${message}`);
            throw new InternalError(
              `the kernel of ${label} does not compile: ${[...said, (cause as Error).message].join('; ')}`,
              { cause, data: { code } },
            );
          });
        pipelines.set(code, pipeline);
      }
      return pipeline;
    };
    const record = (list: readonly Dispatch[]): Promise<Recorded[]> =>
      Promise.all(
        list.map(async (dispatch) => ({
          label: dispatch.label,
          pipeline: await pipelineOf(dispatch),
          group: device.createBindGroup({
            label: dispatch.label,
            layout: layoutOf(dispatch.bindings),
            entries: dispatch.bindings.map((binding, index) => ({
              binding: index,
              resource: { buffer: bufferOf(binding) },
            })),
          }),
          workgroups: dispatch.workgroups,
        })),
      );
    const [prompt, step] = await gpu.guarded(() => Promise.all([record(dispatches.prompt), record(dispatches.step)]));
    return new Recorder(gpu, { prompt, step });
  }

  /** Puts a run's dispatches into one pass of `encoder`. */
  record(encoder: GPUCommandEncoder, mode: Mode, run: RunShape): void {
    const pass = encoder.beginComputePass();
    this.dispatches = this.#fill(pass, this.#recorded[mode], run);
    pass.end();
  }

  /** @returns how many dispatches there were */
  #fill(pass: GPUComputePassEncoder, recorded: readonly Recorded[], run: RunShape): number {
    let count = 0;
    let last: GPUComputePipeline | undefined;
    for (const { pipeline, group, workgroups } of recorded) {
      const [x, y, z] = workgroups(run);
      if (x === 0 || y === 0 || z === 0) continue;
      if (pipeline !== last) pass.setPipeline(pipeline);
      last = pipeline;
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(x, y, z);
      count++;
    }
    return count;
  }

  /** Puts a part of a run's dispatches into one pass of `encoder`: those from `first` up to `end`. */
  recordRange(
    encoder: GPUCommandEncoder,
    mode: Mode,
    range: {
      readonly run: RunShape;
      readonly first: number;
      readonly end: number;
      /** Where the device writes when the pass begins and ends. */
      readonly timestampWrites?: GPUComputePassTimestampWrites;
    },
  ): void {
    const { run, first, end, timestampWrites } = range;
    const pass = encoder.beginComputePass({ timestampWrites });
    this.dispatches += this.#fill(pass, this.#recorded[mode].slice(first, end), run);
    pass.end();
  }

  /**
   * Runs a run's dispatches and says how long each took, in nanoseconds by the device's clock. Those of a step run one kernel
   * of all layers after the other, in a pass a kernel, so that what a pass costs is in none of them (each is told as their
   * mean); a prompt's, which go by lists that others have made, in order, in a pass each.
   * @returns undefined where the device has no timestamps
   */
  async time(mode: Mode, run: RunShape): Promise<{ readonly label: string; readonly ns: number }[] | undefined> {
    const list = this.#recorded[mode].filter(({ workgroups }) => workgroups(run).every((count) => count > 0));
    const groups = new Map<string, Recorded[]>();
    for (const [index, recorded] of list.entries()) {
      const kernel = mode === 'step' ? recorded.label.replace(/\d+/g, '') : `${index}`;
      groups.set(kernel, [...(groups.get(kernel) ?? []), recorded]);
    }
    const kernels = [...groups.values()];
    const times = await timePasses(
      this.#gpu.device,
      kernels.map((recorded) => (pass: GPUComputePassEncoder) => void this.#fill(pass, recorded, run)),
    );
    return times?.flatMap((ns, index) => {
      const recorded = kernels[index] as Recorded[];
      return recorded.map(({ label }) => ({ label, ns: ns / recorded.length }));
    });
  }
}
