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
import { type Fused, partView, plainView, RecentMatrices, type StackSize, transposedView } from './fused.ts';
import { ACTIVATIONS, activationEndings, type Quantisation, type Scheme } from './quantisation.ts';
import { factorsView, fp8View, mxfp4View, nvfp4View, type Stored, type TensorScale } from './repack.ts';
import type { TensorNames } from './tensor-names.ts';

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
    const fused = names.fused(tensor.name);
    if (fused !== undefined) naming.putFused(tensor, fused);
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
    if (ending.endsWith('_blocks')) {
      for (const used of putStack(file, name, { quantisation, naming })) taken.add(used);
      continue;
    }
    if (ending !== 'weight_scale' && ending !== 'weight_scale_inv') continue;
    const module = name.slice(0, end);
    const scheme = quantisation?.schemeOf(module);
    if (scheme === undefined || scheme.kind === 'mxfp4 stack') {
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
  { scheme, naming }: { readonly scheme: Exclude<Scheme, { kind: 'mxfp4 stack' }>; readonly naming: TensorNaming },
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

/** Codes of a stack of experts, with the scales beside them. */
function putStack(
  file: ModelFile,
  name: string,
  { quantisation, naming }: { readonly quantisation: Quantisation | undefined; readonly naming: TensorNaming },
): readonly string[] {
  const base = name.slice(0, -'_blocks'.length);
  const codes = file.tensors.get(name) as TensorInfo;
  const scales = file.tensors.get(`${base}_scales`);
  const fused = naming.names.fused(base);
  if (fused === undefined || scales === undefined || quantisation?.schemeOf(base)?.kind !== 'mxfp4 stack') {
    const what = scales === undefined ? `its scales (${base}_scales) are missing` : 'nothing says so of it';
    throw new CorruptFileError(`${file.name}: ${name} has the codes of quantised experts, but ${what}`, {
      data: { tensor: name },
    });
  }
  const [experts = 0, rows = 0, across = 0] = codes.shape;
  const size = { experts, rows, columns: 32 * across };
  check(file, codes, { formats: ['U8'], shapes: [[experts, rows, across, 16]] });
  check(file, scales, { formats: ['U8'], shapes: [[experts, rows, across]] });
  const stored = (tensor: TensorInfo): Stored => ({ tensor, source: file.sources[tensor.source] as ByteSource });
  const view = mxfp4View(stored(codes), stored(scales), { rows: experts * rows, columns: size.columns });
  naming.putParts({ ...codes, name: base }, fused, { size, view, format: 'MXFP4' });
  return [name, scales.name];
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
  readonly #recent = new RecentMatrices();

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

  /** The parts of a tensor that is not quantised: ranges of its bytes where they are, else views. */
  putFused(tensor: TensorInfo, fused: Fused): void {
    const { shape } = tensor;
    // Biases are stacks of columns.
    const [experts = 0, first = 0, second = 1] = shape;
    const [rows, columns] = fused.transposed === true && shape.length === 3 ? [second, first] : [first, second];
    if (shape.length < 2 || shape.length > 3) throw this.#noStack(tensor, fused);
    const size = { experts, rows, columns };
    if (shape.length === 3 && fused.rows === 'halves' && fused.transposed !== true) {
      this.#putRanges(tensor, fused, size);
      return;
    }
    const stored = { tensor, source: this.#file.sources[tensor.source] as ByteSource };
    const view =
      fused.transposed === true && shape.length === 3 ? transposedView(stored, size, this.#recent) : plainView(stored);
    this.putParts(tensor, fused, { size, view, format: tensor.format });
  }

  /** Views of the parts of a stack whose matrices are as they are computed with. */
  putParts(
    tensor: TensorInfo,
    fused: Fused,
    { size, view, format }: { readonly size: StackSize; readonly view: View; readonly format: string },
  ): void {
    const { parts, rows: order } = fused;
    const { experts, rows, columns } = size;
    if (experts * rows * columns === 0 || rows % parts.length !== 0) throw this.#noStack(tensor, fused);
    const shape = [experts, rows / parts.length, ...(tensor.shape.length === 2 ? [] : [columns])];
    for (const [part, name] of parts.entries()) {
      const own = partView(view, size, { part, count: parts.length, order });
      this.put(name, { ...this.#place(own), name: tensor.name, format, shape, bytes: own.bytes, gathered: true });
    }
  }

  /** Each part of each expert as a tensor of its own, as files hold them that do not stack experts. */
  #putRanges(tensor: TensorInfo, fused: Fused, { experts, rows, columns }: StackSize): void {
    const { parts } = fused;
    if (experts * rows * columns === 0 || rows % parts.length !== 0) throw this.#noStack(tensor, fused);
    const bytes = tensor.bytes / (parts.length * experts);
    const shape = [rows / parts.length, columns];
    for (let at = 0; at < parts.length * experts; at++) {
      const name = (parts[at % parts.length] as string).replace('_exps.', `.${Math.floor(at / parts.length)}.`);
      this.put(name, { ...tensor, shape, offset: tensor.offset + at * bytes, bytes });
    }
  }

  #noStack({ name, shape }: TensorInfo, { parts }: Fused): CorruptFileError {
    return new CorruptFileError(
      `${this.#file.name}: the tensor ${name} is [${shape.join(', ')}]; expected [experts, rows of ${parts.length} parts, columns]`,
      { data: { tensor: name, found: shape } },
    );
  }

  putView(
    name: string,
    { name: own }: TensorInfo,
    { format, size, view }: { readonly format: string; readonly size: Size; readonly view: View },
  ): void {
    const { blockBytes, blockLength } = formatOf(format);
    const bytes = (size.rows * size.columns * blockBytes) / blockLength;
    this.put(name, {
      ...this.#place(view),
      name: own,
      format,
      shape: [size.rows, size.columns],
      bytes,
      gathered: true,
    });
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
