/**
 * What a run whose experts are split records between its stops. A layer all of whose experts are in slots has none: its part is
 * recorded with what lies around it.
 */

import type { Mode } from '../kernel.ts';
import type { Binding, Pause, RunShape } from './builder.ts';
import type { Gpu } from './device.ts';
import type { GpuProgram } from './layout.ts';
import type { Recorder } from './recorder.ts';
import type { Residency } from './residency.ts';
import type { GivenChoices, HostResults } from './split-buffers.ts';

/** A run on its way. */
export interface Running {
  readonly mode: Mode;
  readonly shape: RunShape;
  /** The first dispatch that is left out. */
  readonly end: number;
  /** Layers that the host has a part in, and those that it has none in; each in order. */
  readonly stops: readonly Pause[];
  readonly whole: readonly Pause[];
}

interface Made {
  readonly gpu: Gpu;
  readonly recorder: Recorder;
  readonly bufferOf: (binding: Binding) => GPUBuffer;
  readonly residency: Residency;
  readonly results: HostResults;
  readonly given: GivenChoices | undefined;
  /** Where the host reads what a stop is for. */
  readonly readback: GPUBuffer;
  readonly hidden: number;
  readonly shared: boolean;
}

export class SplitCommands {
  /** For measurements: asked for each pass over a layer's experts in slots. */
  timestamps: ((layer: number) => GPUComputePassTimestampWrites | undefined) | undefined;
  readonly #made: Made;

  constructor(made: Made) {
    this.#made = made;
  }

  /**
   * From `first` up to the next stop, or to the end, and what is read there: the choice, and of few rows these themselves. Behind
   * them those for the experts in slots: one submission costs the host less than two.
   */
  upTo(
    running: Running,
    { first, pause }: { readonly first: number; readonly pause: Pause | undefined },
  ): GPUCommandEncoder {
    const { gpu, given, readback, hidden } = this.#made;
    const { mode, shape: run, end } = running;
    const encoder = gpu.device.createCommandEncoder();
    this.#record(encoder, running, { first, end: pause?.asks ?? end });
    if (pause === undefined) return encoder;
    given?.copyTo(encoder, pause, { rows: run.rows });
    const routeBytes = run.rows * pause.routeWidth * 4;
    encoder.copyBufferToBuffer(this.#buffer(pause.route), 0, readback, 0, routeBytes);
    if (mode === 'step') encoder.copyBufferToBuffer(this.input(pause), 0, readback, routeBytes, run.rows * hidden * 4);
    if (mode === 'prompt' || this.computesHere(pause.layer)) this.#recordSlots(encoder, running, pause);
    return encoder;
  }

  /** A layer's experts in slots by themselves. */
  slots(running: Running, pause: Pause): GPUCommandEncoder {
    const encoder = this.#made.gpu.device.createCommandEncoder();
    this.#recordSlots(encoder, running, pause);
    return encoder;
  }

  /** The rows that experts elsewhere read. */
  input({ input }: Pause): GPUBuffer {
    return this.#made.bufferOf({ kind: 'value', name: input, access: 'read' });
  }

  /** Whether the device has any part in a layer's experts. */
  computesHere(layer: number): boolean {
    return this.#made.shared || this.#made.residency.holds(layer);
  }

  #buffer(name: string): GPUBuffer {
    return this.#made.bufferOf({ kind: 'buffer', name, access: 'read' });
  }

  /** Dispatches without a stop among them, in as few passes as can be. */
  #record(
    encoder: GPUCommandEncoder,
    { mode, shape: run, whole }: Running,
    { first, end }: { readonly first: number; readonly end: number },
  ): void {
    const { recorder, given, results } = this.#made;
    let at = first;
    const goTo = (next: number) => {
      if (next > at) recorder.recordRange(encoder, mode, { run, first: at, end: next });
      at = next;
    };
    // What the CPU has made of the layer that the last stop was in is none of another layer's.
    let placed = first > 0;
    for (const [index, pause] of whole.entries()) {
      const { layer, asks, joins } = pause;
      if (asks < first || asks >= end) continue;
      const timestampWrites = this.timestamps?.(layer);
      if (!placed && given === undefined && timestampWrites === undefined) continue;
      goTo(asks);
      given?.copyTo(encoder, pause, { rows: run.rows, place: index + 1 });
      if (placed) results.recordClear(encoder, run.rows);
      placed = false;
      if (timestampWrites === undefined) continue;
      recorder.recordRange(encoder, mode, { run, first: asks, end: joins, timestampWrites });
      at = joins;
    }
    goTo(end);
  }

  #recordSlots(encoder: GPUCommandEncoder, { mode, shape: run }: Running, { layer, asks, joins }: Pause): void {
    const timestampWrites = this.timestamps?.(layer);
    this.#made.recorder.recordRange(encoder, mode, { run, first: asks, end: joins, timestampWrites });
  }
}

/** Words of a row's choice, at the most. */
export function widthOf(pauses: GpuProgram['pauses']): number {
  return Math.max(0, ...[...pauses.prompt, ...pauses.step].map(({ routeWidth }) => routeWidth));
}

/** Bytes that are read at a stop, at the most. */
export function stopBytes(
  pauses: GpuProgram['pauses'],
  { rows, hidden }: { readonly rows: number; readonly hidden: number },
): number {
  return rows * (widthOf(pauses) + hidden) * 4;
}
