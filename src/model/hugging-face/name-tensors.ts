/**
 * A checkpoint's tensors under GGUF's names, each with the bytes of a weight format: as they are, as ranges of a fused one,
 * or, where codes and scales are apart, as a view that puts them together when they are read.
 */

import { CorruptFileError, Refusal } from '../../errors.ts';
import type { ModelFile, TensorInfo } from '../../format/model-file.ts';
import type { ByteSource } from '../../format/source.ts';
import { type View, ViewSource } from '../../format/views.ts';
import { formatOf } from '../../quant/index.ts';
import type { Ignored } from '../family-reader.ts';
import { ACTIVATIONS, activationEndings, type Quantisation, type Scheme } from './quantisation.ts';
import { factorsView, fp8View, mxfp4View, nvfp4View, type Stored, type TensorScale } from './repack.ts';
import { FUSED, patternOf, type TensorNames } from './tensor-names.ts';

export interface NamedTensors {
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  /** The file's, and the views behind them. */
  readonly sources: readonly ByteSource[];
  readonly ignored: readonly Ignored[];
}

/**
 * Every tensor under GGUF's name, or under its own where nobody knows it.
 * @throws CorruptFileError `corrupt_file` naming a tensor whose parts do not fit together; Refusal `refused` for quantised
 * tensors that are not supported
 */
export function nameTensors(file: ModelFile, names: TensorNames, quantisation: Quantisation | undefined): NamedTensors {
  const naming = new TensorNaming(file, names);
  const taken = takeQuantised(file, quantisation, naming);
  for (const tensor of file.tensors.values()) {
    if (taken.has(tensor.name)) continue;
    const { pattern, numbers } = patternOf(tensor.name);
    if (pattern === FUSED) naming.putHalves(tensor, numbers[0] as string);
    else naming.put(names.gguf(tensor.name) ?? tensor.name, tensor);
  }
  return naming.finish();
}

/** Puts the weight of each quantised module, and returns the tensors that are thereby dealt with. */
function takeQuantised(
  file: ModelFile,
  quantisation: Quantisation | undefined,
  naming: TensorNaming,
): ReadonlySet<string> {
  const taken = new Set<string>();
  for (const { name } of file.tensors.values()) {
    const end = name.lastIndexOf('.');
    if (activationEndings.has(name.slice(end + 1))) {
      taken.add(name);
      naming.ignored.push({ name, reason: ACTIVATIONS });
      continue;
    }
    const ending = name.slice(end + 1);
    if (ending !== 'weight_scale' && ending !== 'weight_scale_inv') continue;
    const module = name.slice(0, end);
    const scheme = quantisation?.schemeOf(module);
    if (scheme === undefined) {
      const said = quantisation === undefined ? 'there is no quantization_config' : 'quantization_config leaves it out';
      throw new CorruptFileError(
        `${file.name}: ${module} has the scales of a quantised weight (${name}), but ${said}`,
        { data: { tensor: name } },
      );
    }
    for (const used of putQuantised(file, module, { scheme, naming })) taken.add(used);
  }
  return taken;
}

function putQuantised(
  file: ModelFile,
  module: string,
  { scheme, naming }: { readonly scheme: Scheme; readonly naming: TensorNaming },
): readonly string[] {
  const stored = (ending: string): Stored => {
    const tensor = file.tensors.get(`${module}.${ending}`);
    if (tensor === undefined) {
      throw new CorruptFileError(
        `${file.name}: the tensor ${module}.${ending} is missing; quantization_config says that ${module} is quantised (${scheme.kind})`,
        { data: { tensor: `${module}.${ending}` } },
      );
    }
    return { tensor, source: file.sources[tensor.source] as ByteSource };
  };
  const [codes, scales] = [stored(scheme.codes), stored(scheme.scales)];
  const gguf = naming.names.gguf(`${module}.weight`) ?? `${module}.weight`;
  const size = sizeOf(file, codes.tensor, scheme.kind === 'fp8' ? 1 : 2);
  switch (scheme.kind) {
    case 'fp8': {
      const span = { rows: scheme.rows ?? size.rows, columns: scheme.columns ?? size.columns };
      check(file, codes.tensor, { formats: ['F8_E4M3'], shapes: [[size.rows, size.columns]] });
      const down = Math.ceil(size.rows / span.rows);
      const across = Math.ceil(size.columns / span.columns);
      const shapes = [[down, across], ...(across === 1 ? [[down]] : []), ...(down * across === 1 ? [[]] : [])];
      check(file, scales.tensor, { formats: ['F32', 'BF16', 'F16'], shapes });
      const block = size.columns % 128 === 0 && span.columns % 128 === 0 ? 128 : 32;
      naming.putView(gguf, codes.tensor, {
        format: `FP8_${block}`,
        size,
        view: fp8View(codes, scales, { ...size, span, block }),
      });
      return [codes.tensor.name, scales.tensor.name];
    }
    case 'mxfp4':
      check(file, codes.tensor, { formats: ['U8', 'I8'], shapes: [[size.rows, size.columns / 2]] });
      check(file, scales.tensor, { formats: ['U8', 'F8_E8M0'], shapes: [[size.rows, size.columns / 32]] });
      naming.putView(gguf, codes.tensor, { format: 'MXFP4', size, view: mxfp4View(codes, scales, size) });
      return [codes.tensor.name, scales.tensor.name];
    case 'nvfp4': {
      const whole = stored(scheme.tensorScale);
      check(file, codes.tensor, { formats: ['U8', 'I8'], shapes: [[size.rows, size.columns / 2]] });
      check(file, scales.tensor, { formats: ['F8_E4M3'], shapes: [[size.rows, size.columns / 16]] });
      check(file, whole.tensor, { formats: ['F32'], shapes: [[], [1]] });
      naming.putView(gguf, codes.tensor, { format: 'NVFP4_32', size, view: nvfp4View(codes, scales, size) });
      naming.scaleOf(gguf, module, { stored: whole, divides: scheme.divides });
      return [codes.tensor.name, scales.tensor.name, whole.tensor.name];
    }
  }
}

interface Size {
  readonly rows: number;
  readonly columns: number;
}

/** @param packed values a byte */
function sizeOf(file: ModelFile, { name, shape }: TensorInfo, packed: number): Size {
  const [rows = 0, width = 0] = shape;
  const columns = width * packed;
  if (shape.length !== 2 || rows === 0 || columns === 0 || columns % 32 !== 0) {
    throw new Refusal(
      `${file.name}: the tensor ${name} is [${shape.join(', ')}], ${packed} values a byte; quantised weights are supported ` +
        'as matrices whose columns are a multiple of 32',
      { data: { tensor: name, found: shape } },
    );
  }
  return { rows, columns };
}

function check(
  file: ModelFile,
  { name, format, shape }: TensorInfo,
  expected: { readonly formats: readonly string[]; readonly shapes: readonly (readonly number[])[] },
): void {
  const text = (each: readonly number[]) => `[${each.join(', ')}]`;
  if (expected.formats.includes(format) && expected.shapes.some((each) => text(each) === text(shape))) return;
  throw new CorruptFileError(
    `${file.name}: the tensor ${name} is ${format} ${text(shape)}; expected ${expected.formats.join(' or ')} ` +
      `${expected.shapes.map(text).join(' or ')}, as quantization_config and its codes say`,
    { data: { tensor: name, found: shape } },
  );
}

/** A layer's scales of whole tensors, by expert. */
interface LayerScales {
  readonly gate: Map<number, TensorScale>;
  readonly up: Map<number, TensorScale>;
  readonly down: Map<number, TensorScale>;
  readonly of: TensorInfo;
}

class TensorNaming {
  readonly names: TensorNames;
  readonly ignored: Ignored[] = [];
  readonly #file: ModelFile;
  readonly #named = new Map<string, TensorInfo>();
  readonly #views: ViewSource;
  readonly #scales = new Map<string, LayerScales>();

  constructor(file: ModelFile, names: TensorNames) {
    this.#file = file;
    this.names = names;
    this.#views = new ViewSource(file.name);
  }

  put(name: string, tensor: TensorInfo): void {
    const other = this.#named.get(name);
    if (other !== undefined) {
      throw new CorruptFileError(
        `${this.#file.name}: the tensors ${other.name} and ${tensor.name} mean the same; expected one of them`,
        { data: { tensor: tensor.name } },
      );
    }
    this.#named.set(name, tensor);
  }

  /** Gate and up of each expert in a fused tensor [experts, 2 · inner, hidden]: ranges of its bytes. */
  putHalves(tensor: TensorInfo, layer: string): void {
    const [experts = 0, rows = 0, columns = 0] = tensor.shape;
    if (tensor.shape.length !== 3 || experts === 0 || rows % 2 !== 0) {
      throw new CorruptFileError(
        `${this.#file.name}: the tensor ${tensor.name} is [${tensor.shape.join(', ')}]; expected [experts, 2 · inner, hidden]`,
        { data: { tensor: tensor.name, found: tensor.shape } },
      );
    }
    const bytes = tensor.bytes / (2 * experts);
    for (let half = 0; half < 2 * experts; half++) {
      const name = `blk.${layer}.ffn_${half % 2 === 0 ? 'gate' : 'up'}.${half >> 1}.weight`;
      this.put(name, { ...tensor, shape: [rows / 2, columns], offset: tensor.offset + half * bytes, bytes });
    }
  }

  putView(
    name: string,
    { name: own }: TensorInfo,
    { format, size, view }: { readonly format: string; readonly size: Size; readonly view: View },
  ): void {
    const { blockBytes, blockLength } = formatOf(format);
    const bytes = (size.rows * size.columns * blockBytes) / blockLength;
    this.put(name, { ...this.#place(view), name: own, format, shape: [size.rows, size.columns], bytes, joined: true });
  }

  /**
   * Keeps the scale of an expert's whole tensor.
   * @throws Refusal `refused` where the weight is no expert's
   */
  scaleOf(name: string, module: string, scale: TensorScale): void {
    const [, layer, part, expert] = /^blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight$/.exec(name) ?? [];
    if (layer === undefined || part === undefined) {
      throw new Refusal(
        `${this.#file.name}: ${module} is NVFP4 with a scale of its whole tensor, which is supported for routed experts only; ` +
          'take a model whose other weights are BF16 or FP8',
        { data: { tensor: `${module}.weight` } },
      );
    }
    const scales = this.#scales.get(layer) ?? {
      gate: new Map(),
      up: new Map(),
      down: new Map(),
      of: scale.stored.tensor,
    };
    this.#scales.set(layer, scales);
    scales[part as 'gate' | 'up' | 'down'].set(Number(expert), scale);
  }

  finish(): NamedTensors {
    for (const [layer, { gate, up, down, of }] of this.#scales) {
      const experts = Math.max(gate.size, up.size, down.size);
      const factors = (...parts: readonly ReadonlyMap<number, TensorScale>[]) =>
        factorsView(Array.from({ length: experts }, (_, expert) => parts.map((part) => part.get(expert))));
      const vector = { name: of.name, format: 'F32', shape: [experts], bytes: 4 * experts };
      // What follows the activation is linear: up's scale and down's are one factor of what an expert gives.
      this.put(`blk.${layer}.ffn_exps.gate_scale`, { ...this.#place(factors(gate)), ...vector });
      this.put(`blk.${layer}.ffn_exps.output_scale`, { ...this.#place(factors(up, down)), ...vector });
    }
    const { sources } = this.#file;
    return {
      tensors: this.#named,
      sources: this.#views.size > 0 ? [...sources, this.#views] : sources,
      ignored: this.ignored,
    };
  }

  #place(view: View): Pick<TensorInfo, 'source' | 'offset'> {
    return { source: this.#file.sources.length, offset: this.#views.add(view) };
  }
}
