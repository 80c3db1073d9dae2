/**
 * The tensors of an official safetensors fixture in BF16, put into the shapes of Conclave's weights: for tests of families that
 * have no GGUF fixture.
 */

import { familyFile } from './families.ts';
import { readSafetensors, tensorOf } from './safetensors.ts';

export interface OfficialTensor {
  readonly format: 'BF16' | 'F32';
  readonly shape: readonly number[];
  readonly data: Uint8Array<ArrayBuffer>;
}

export class OfficialTensors {
  readonly #tensors: ReturnType<typeof readSafetensors>;

  constructor(family: string) {
    this.#tensors = readSafetensors(familyFile(family, 'model.safetensors'));
  }

  matrix(name: string): OfficialTensor {
    return bf16(this.#bits(name), this.#shape(name));
  }

  /** As F32, as norms and biases are kept. */
  vector(name: string): OfficialTensor {
    const values = Uint32Array.from(this.#bits(name), (half) => half << 16);
    return { format: 'F32', shape: this.#shape(name), data: new Uint8Array(values.buffer) };
  }

  /** Matrices of one shape one after the other: experts. */
  stack(names: readonly string[]): OfficialTensor {
    const data = Uint16Array.from(names.flatMap((name) => [...this.#bits(name)]));
    return bf16(data, [names.length, ...this.#shape(names[0] as string)]);
  }

  /**
   * What latent attention makes keys and values of a latent with, [heads · (plainDim + value's width), latent], ready to be
   * absorbed: by head the rows of keys, transposed, and the rows of values.
   */
  absorbed(
    name: string,
    { heads, plainDim }: { readonly heads: number; readonly plainDim: number },
  ): { readonly key: OfficialTensor; readonly value: OfficialTensor } {
    const all = this.#bits(name);
    const [height, latent] = this.#shape(name) as [number, number];
    const rows = height / heads;
    const each = (shape: readonly [number, number], at: (i: number, j: number) => readonly [number, number]) => {
      const data = new Uint16Array(heads * shape[0] * shape[1]);
      for (let index = 0; index < data.length; index++) {
        const head = Math.floor(index / (shape[0] * shape[1]));
        const [row, column] = at(Math.floor(index / shape[1]) % shape[0], index % shape[1]);
        data[index] = all[(head * rows + row) * latent + column] as number;
      }
      return bf16(data, [heads, ...shape]);
    };
    return {
      key: each([latent, plainDim], (i, j) => [j, i]),
      value: each([rows - plainDim, latent], (i, j) => [plainDim + i, j]),
    };
  }

  #bits(name: string): Uint16Array<ArrayBuffer> {
    return new Uint16Array(tensorOf(this.#tensors, name, 'BF16').bytes.buffer);
  }

  #shape(name: string): readonly number[] {
    return tensorOf(this.#tensors, name, 'BF16').shape;
  }
}

function bf16(data: Uint16Array<ArrayBuffer>, shape: readonly number[]): OfficialTensor {
  return { format: 'BF16', shape, data: new Uint8Array(data.buffer) };
}
