/** Embedding lookup: row t of the output is the weight's row `tokens[t]`, decoded. One thread a block of 32 columns. */

import type { EmbedOperation } from '../../../model/graph.ts';
import { acceptsWeight, gpuFormats } from '../formats/index.ts';
import { type GpuFormat, oneWeightCode } from '../formats.ts';
import type { GpuRow } from '../row.ts';
import type { StepLayout } from '../step-buffer.ts';
import { f32Literal } from './snippets.ts';

const THREADS = 64;

function embedCode(given: {
  readonly format: GpuFormat;
  readonly columns: number;
  /** Rows of the weight. */
  readonly vocabulary: number;
  readonly step: StepLayout;
  /** Whether a token may stand for the one drawn last in a slot. */
  readonly draws: boolean;
  /** What values are multiplied with. */
  readonly scale?: number;
}): string {
  const { format, columns, vocabulary, step, draws, scale } = given;
  const factor = scale === undefined ? '' : ` * ${f32Literal(scale)}`;
  const whole = columns % 4 === 0;
  const store = whole
    ? `let at = (t * ${columns}u + id.x * 32u) / 4u;
  for (var i = 0u; i < min(8u, ${columns / 4}u - id.x * 8u); i++) { output[at + i] = values[i]${factor}; }`
    : `let at = t * ${columns}u + id.x * 32u;
  for (var i = 0u; i < min(32u, ${columns}u - id.x * 32u); i++) { output[at + i] = values[i / 4u][i % 4u]${factor}; }`;
  // As `drawnIn` writes it.
  const resolve = draws ? '\n  if (token >= 0x80000000u) { token = drawn[~token]; }' : '';
  return /* wgsl */ `${oneWeightCode({ format, columns, binding: 0 })}
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<${whole ? 'vec4f' : 'f32'}>;
${draws ? '@group(0) @binding(3) var<storage, read> drawn: array<u32>;' : ''}
@compute @workgroup_size(${THREADS}) fn main(@builtin(global_invocation_id) id: vec3u) {
  let t = id.y;
  if (t >= step[${step.rows}] || id.x >= ${Math.ceil(columns / 32)}u) { return; }
  var token = step[${step.tokens}u + t];${resolve}
  var values = decode32(min(token, ${vocabulary - 1}u) * ROW_WORDS, id.x);
  ${store}
}`;
}

export const embedRows: readonly GpuRow[] = gpuFormats.map((format) => ({
  name: `embed-${format.id.toLowerCase()}`,
  device: 'gpu',
  operation: 'embed',
  modes: ['prompt', 'step'],
  tolerance: { relativeRms: 1e-7, reason: 'a weight is decoded with no rounding but the reference’s own' },
  layout: 'planes',
  serves: ['a scale on embeddings'],
  accepts(request) {
    const { weight } = request.operation as EmbedOperation;
    const { format: found, shape } = request.weights[weight] as { format: string; shape: readonly number[] };
    return found === format.id
      ? acceptsWeight(weight, found, shape[1] as number)
      : `${weight}: takes ${format.id}, found ${found}`;
  },
  emit(operation, builder, mode) {
    const { weight, output, scale } = operation as EmbedOperation;
    const [vocabulary, columns] = builder.weight(weight).shape as [number, number];
    builder.declareValue(output, columns);
    builder.dispatch(mode, {
      label: 'embed',
      code: embedCode({ format, columns, vocabulary, step: builder.step, draws: builder.draws, scale }),
      bindings: [
        { kind: 'weight', name: weight },
        { kind: 'step' },
        { kind: 'value', name: output, access: 'write' },
        ...(builder.draws ? ([{ kind: 'sampling', part: 'drawn', access: 'read' }] as const) : []),
      ],
      workgroups: ({ rows }) => [Math.ceil(columns / 32 / THREADS), rows, 1],
    });
  },
}));
