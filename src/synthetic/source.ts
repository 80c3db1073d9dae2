/** A synthetic model as a file that is nowhere: its head in memory, its weights made when they are read. */

import { UsageError } from '../errors.ts';
import { ggufHead } from '../format/gguf-writer.ts';
import type { ModelSource } from '../format/source.ts';
import { fillerOf } from './fill.ts';
import { metadataOf, tensorsOf } from './layout.ts';
import { shapes } from './shapes.ts';

/**
 * The model of a shape, with random weights: for measuring speed and memory where no file is.
 * @param name a key of `shapes`
 * @throws UsageError `usage` for a shape that there is not
 */
export function syntheticModel(name: string): ModelSource {
  const shape = Object.hasOwn(shapes, name) ? shapes[name] : undefined;
  if (shape === undefined) {
    throw new UsageError(`there is no synthetic shape ${name}; there are ${Object.keys(shapes).join(', ')}`);
  }
  const tensors = tensorsOf(shape);
  const head = ggufHead({ metadata: metadataOf(name, shape), tensors });
  const parts = tensors.map((tensor, index) => ({
    ...(head.places[index] as (typeof head.places)[number]),
    ...fillerOf(tensor),
  }));
  return {
    fileName: `${name}.gguf`,
    file: {
      name: `synthetic ${name}`,
      size: head.fileBytes,
      repeats: parts.flatMap(({ offset, bytes, period }) => (period === undefined ? [] : [{ offset, bytes, period }])),
      async readInto(offset, target) {
        const end = offset + target.length;
        if (offset < head.bytes.length) target.set(head.bytes.subarray(offset, Math.min(end, head.bytes.length)));
        // Parts stand in order: the first that ends behind the offset is found by halving.
        let low = 0;
        let high = parts.length;
        while (low < high) {
          const middle = (low + high) >> 1;
          const part = parts[middle] as (typeof parts)[number];
          if (part.offset + part.bytes <= offset) low = middle + 1;
          else high = middle;
        }
        for (let part = parts[low]; part !== undefined && part.offset < end; part = parts[++low]) {
          const from = Math.max(offset, part.offset);
          const to = Math.min(end, part.offset + part.bytes);
          part.fill(from - part.offset, target.subarray(from - offset, to - offset));
        }
      },
      async close() {},
    },
  };
}
