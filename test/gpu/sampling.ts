/** The kernels of sampling with buffers of their own, as the backend would hold them. */

import { Builder } from '../../src/backend/gpu/builder.ts';
import type { Gpu } from '../../src/backend/gpu/device.ts';
import { emitSample } from '../../src/backend/gpu/kernels/sample.ts';
import { Recorder } from '../../src/backend/gpu/recorder.ts';
import {
  drawShape,
  type PlacedDraw,
  type SamplingLayout,
  writeDraws,
  writeSlot,
} from '../../src/backend/gpu/sampling-buffer.ts';
import type { SamplerSettings } from '../../src/backend/sampling.ts';
import { tinyGraph } from '../conformance/support/tiny-graph.ts';

export const ROWS = 64;

export interface Row {
  /** [vocabulary] */
  readonly logits: Float32Array;
  /** Absent: the host would draw. */
  readonly draw?: PlacedDraw;
}

export interface Drawn {
  /** [rows] */
  readonly tokens: Uint32Array;
  /** [rows] Words of `status`. */
  readonly states: Uint32Array;
}

export class SamplingRun {
  readonly layout: SamplingLayout;
  readonly #gpu: Gpu;
  readonly #recorder: Recorder;
  readonly #buffers: ReadonlyMap<string, GPUBuffer>;

  private constructor(
    gpu: Gpu,
    made: {
      readonly layout: SamplingLayout;
      readonly recorder: Recorder;
      readonly buffers: ReadonlyMap<string, GPUBuffer>;
    },
  ) {
    this.#gpu = gpu;
    this.layout = made.layout;
    this.#recorder = made.recorder;
    this.#buffers = made.buffers;
  }

  static async make(gpu: Gpu, vocabulary: number, context: number): Promise<SamplingRun> {
    const { spec, graph, weights } = tinyGraph({
      rows: 1,
      inputs: { logits: new Float32Array(vocabulary) },
      operations: [],
      widths: {},
      output: 'logits',
    });
    const builder = new Builder({
      spec: { ...spec, vocabulary },
      graph,
      weights,
      promptRows: 1,
      wanted: ROWS,
      context,
      cacheType: 'f16',
      features: new Set(),
    });
    emitSample(builder, 'step', 'logits');
    const { sampling: layout } = builder;
    const bytes = new Map<string, number>([
      ...builder.bytes,
      ['logits', ROWS * vocabulary * 4],
      ['settings', layout.settingsWords * 4],
      ['slots', layout.slots * layout.slotWords * 4],
      ['drawn', layout.drawnWords * 4],
    ]);
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const buffers = new Map(
      [...bytes].map(([label, size]) => [label, gpu.device.createBuffer({ label, size, usage })]),
    );
    const recorder = await Recorder.make(
      gpu,
      builder.dispatches,
      (binding) => buffers.get('part' in binding ? binding.part : (binding as { name: string }).name) as GPUBuffer,
    );
    return new SamplingRun(gpu, { layout, recorder, buffers });
  }

  dispose(): void {
    for (const buffer of this.#buffers.values()) buffer.destroy();
  }

  /** What the host writes when a request takes a slot. */
  takeSlot(slot: number, settings: SamplerSettings, tokens: ArrayLike<number>): void {
    const words = writeSlot(settings, tokens, this.layout);
    this.#gpu.device.queue.writeBuffer(this.#buffer('slots'), slot * this.layout.slotWords * 4, words);
  }

  /** Encodes and submits a draw of a token a row; what it gives may be asked for later, when others are submitted too. */
  submit(rows: readonly Row[]): { read(): Promise<Drawn> } {
    const { device } = this.#gpu;
    rows.forEach(({ logits }, row) => {
      device.queue.writeBuffer(
        this.#buffer('logits'),
        row * this.layout.vocabulary * 4,
        logits as Float32Array<ArrayBuffer>,
      );
    });
    const draws = rows.map(({ draw }) => draw);
    const words = new Uint32Array(this.layout.settingsWords);
    const used = writeDraws(draws, this.layout, words);
    device.queue.writeBuffer(this.#buffer('settings'), 0, words, 0, used);
    const encoder = device.createCommandEncoder();
    this.#recorder.record(encoder, 'step', {
      rows: rows.length,
      wanted: rows.length,
      visible: 1,
      ...drawShape(draws),
    });
    const staging = device.createBuffer({
      size: this.layout.drawnWords * 4,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
    encoder.copyBufferToBuffer(this.#buffer('drawn'), 0, staging, 0, staging.size);
    device.queue.submit([encoder.finish()]);
    return {
      read: async () => {
        await staging.mapAsync(GPUMapMode.READ);
        const all = new Uint32Array(staging.getMappedRange().slice(0));
        staging.destroy();
        const places = draws.map((draw, row) => draw?.place ?? row);
        const at = (start: number) => Uint32Array.from(places, (place) => all[start + place] as number);
        return { tokens: at(0), states: at(this.layout.places) };
      },
    };
  }

  draw(rows: readonly Row[]): Promise<Drawn> {
    return this.submit(rows).read();
  }

  #buffer(name: string): GPUBuffer {
    return this.#buffers.get(name) as GPUBuffer;
  }
}
