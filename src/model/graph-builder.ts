/** What the parts of the decoder write their operations with: the list, the width of every value, and what several parts need. */

import type { Operation, ValueName, WeightName } from './graph.ts';
import type { NormSpec } from './spec.ts';

export class GraphBuilder {
  readonly operations: Operation[] = [];
  readonly widths: Record<ValueName, number> = {};
  /** Whether what is added predicts further ahead. */
  mtp = false;

  add(operation: Operation, width: number): ValueName {
    this.operations.push(this.mtp ? { ...operation, mtp: true } : operation);
    this.widths[operation.output] = width;
    return operation.output;
  }

  width(name: ValueName): number {
    return this.widths[name] as number;
  }

  /** A norm of whole rows, or of groups in them; `rest` elements at the end of a row are in no group. */
  norm(
    input: ValueName,
    given: NormSpec & {
      readonly layer: number;
      readonly weight?: WeightName;
      readonly group?: number;
      readonly rest?: number;
      readonly output: ValueName;
    },
  ): ValueName {
    const { layer, weight, epsilon, rest, output } = given;
    const width = this.width(input);
    const group = given.group ?? width;
    return this.add(
      { kind: 'norm', layer, input, ...present({ weight }), epsilon, group, ...present({ rest }), output },
      width,
    );
  }

  /** A block's output, normed where the block has a norm behind it. */
  postNorm(
    output: ValueName,
    { norm, layer, at }: { readonly norm: NormSpec | undefined; readonly layer: number; readonly at: string },
  ): ValueName {
    if (norm === undefined) return output;
    return this.norm(output, { ...norm, layer, weight: `${at}.postNorm`, output: `${at}.postNormed` });
  }

  /** A value times a factor; the value itself where there is none. */
  scaled(
    input: ValueName,
    {
      factor = 1,
      layer,
      rest,
    }: { readonly factor: number | undefined; readonly layer: number; readonly rest?: number },
  ): ValueName {
    if (factor === 1) return input;
    return this.add(
      { kind: 'scale', layer, input, factor, ...present({ rest }), output: `${input}.scaled` },
      this.width(input),
    );
  }

  /** What a block gives, times the model's residual scale, on top of the stream. */
  residual(
    stream: ValueName,
    given: {
      readonly output: ValueName;
      readonly scale: number | undefined;
      readonly layer: number;
      readonly at: string;
    },
  ): ValueName {
    const { layer, at, scale } = given;
    const right = this.scaled(given.output, { factor: scale, layer });
    return this.add({ kind: 'add', layer, left: stream, right, output: `${at}.residual` }, this.width(stream));
  }
}

/** The fields that are there: an absent field stays absent, so that a graph is the same after a journey as JSON. */
export function present<T extends object>(fields: T): { [Field in keyof T]?: Exclude<T[Field], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as {
    [Field in keyof T]?: Exclude<T[Field], undefined>;
  };
}
