/**
 * Turns the tensor descriptions of one GGUF file into {@link TensorInfo}s: types looked up, sizes computed, every
 * tensor's bytes inside the file and its own.
 */

import { CorruptFileError, Refusal } from '../errors.ts';
import { formats } from '../quant/index.ts';
import type { GgufHeader, TensorDescription } from './gguf-header.ts';
import { supportedTensorTypes, tensorTypes } from './gguf-types.ts';
import type { TensorInfo } from './model-file.ts';
import type { ByteSource } from './source.ts';

export interface TensorOptions {
  /** The number that {@link TensorInfo.source} gets. */
  readonly index: number;
  /** Whether types that Conclave cannot compute with are let through, by ggml's name (to look at, not to run). */
  readonly keepUnsupported: boolean;
}

/**
 * @throws CorruptFileError `corrupt_file` for a shape, size or offset that cannot be; Refusal `refused` for a tensor
 * type that is not supported.
 */
export function placeTensors(source: ByteSource, header: GgufHeader, options: TensorOptions): TensorInfo[] {
  const tensors = header.descriptions.map((description) => placeTensor(source, header, description, options));
  checkOverlaps(source, tensors);
  return tensors;
}

function placeTensor(
  source: ByteSource,
  header: GgufHeader,
  description: TensorDescription,
  options: TensorOptions,
): TensorInfo {
  const { name, dimensions, offset } = description;
  const type = typeOf(source, description, options);
  let values = 1;
  for (const dimension of dimensions) {
    if (dimension === 0) {
      throw corrupt(source, description, `a dimension of 0 in ${shapeText(dimensions)}; expected at least 1`);
    }
    values *= Number(dimension);
    if (!Number.isSafeInteger(values)) {
      throw corrupt(source, description, `the shape ${shapeText(dimensions)} holds more than 2^53 values`);
    }
  }
  const columns = Number(dimensions[0] ?? 1);
  if (columns % type.blockLength !== 0) {
    throw corrupt(
      source,
      description,
      `rows of ${columns} values, but ${type.name} packs ${type.blockLength} values a block: expected a multiple of that`,
    );
  }
  const bytes = (values / type.blockLength) * type.blockBytes;
  if (Number(offset) % header.alignment !== 0) {
    throw corrupt(
      source,
      description,
      `data offset ${offset}; expected a multiple of the alignment, ${header.alignment}`,
    );
  }
  const left = source.size - header.dataOffset;
  if (offset > left || bytes > left - Number(offset)) {
    const start = BigInt(offset) + BigInt(header.dataOffset);
    throw corrupt(
      source,
      description,
      `its data would be bytes ${start} to ${start + BigInt(bytes)}, but the file has only ${source.size} bytes; ` +
        'it is damaged, or its download was cut short',
    );
  }
  return {
    name,
    format: type.name,
    shape: dimensions.map(Number).reverse(),
    source: options.index,
    offset: header.dataOffset + Number(offset),
    bytes,
  };
}

function typeOf(source: ByteSource, description: TensorDescription, options: TensorOptions) {
  const format = formats.find((row) => row.ggufType === description.type);
  if (format !== undefined) {
    return { name: format.id, blockLength: format.blockLength, blockBytes: format.blockBytes };
  }
  const known = tensorTypes.get(description.type);
  if (options.keepUnsupported && known?.blockLength !== undefined && known.blockBytes !== undefined) {
    return { name: known.name, blockLength: known.blockLength, blockBytes: known.blockBytes };
  }
  const what =
    known === undefined
      ? `of type ${description.type}, which is not in GGUF's list`
      : known.blockLength === undefined
        ? `${known.name} (type ${description.type}), which was removed from GGUF`
        : `${known.name} (type ${description.type}), which Conclave does not compute with`;
  throw new Refusal(
    `${source.name}: tensor ${description.name} is ${what}; supported are ${supportedTensorTypes().join(', ')}; ` +
      'take the model in one of these',
    { data: { file: source.name, tensor: description.name, type: description.type, typeName: known?.name } },
  );
}

/** Holes are harmless (padding, tensors that were taken out); shared bytes are not. */
function checkOverlaps(source: ByteSource, tensors: readonly TensorInfo[]): void {
  const sorted = tensors.toSorted((left, right) => left.offset - right.offset);
  for (let index = 1; index < sorted.length; index++) {
    const before = sorted[index - 1];
    const after = sorted[index];
    if (before.offset + before.bytes > after.offset) {
      throw new CorruptFileError(
        `${source.name}: tensor ${after.name} starts at byte ${after.offset}, inside tensor ${before.name} ` +
          `(bytes ${before.offset} to ${before.offset + before.bytes}); expected each to have bytes of its own`,
        { data: { file: source.name, tensors: [before.name, after.name] } },
      );
    }
  }
}

function corrupt(source: ByteSource, { name, at }: TensorDescription, message: string): CorruptFileError {
  return new CorruptFileError(`${source.name}: tensor ${name}, described at byte ${at}: ${message}`, {
    data: { file: source.name, tensor: name, offset: at },
  });
}

function shapeText(dimensions: readonly (number | bigint)[]): string {
  return `[${dimensions.join(', ')}]`;
}
