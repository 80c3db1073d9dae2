/** The row type of the table of weight formats: one row states everything the rest of Conclave may know of a format. */

export interface QuantFormat {
  /** As the GGUF type table spells it: `Q4_K`. */
  readonly id: string;
  /** Its number in GGUF's tensor type table; absent where GGUF has none. */
  readonly ggufType?: number;
  /** Values a block. */
  readonly blockLength: number;
  /** Bytes a block. */
  readonly blockBytes: number;
  /**
   * The reference: writes `blocks` × `blockLength` f32 values to `out` from `outOffset` on, bit for bit as the format's
   * own definition computes them in f32 arithmetic.
   */
  decode(bytes: Uint8Array, byteOffset: number, out: Float32Array, outOffset: number, blocks: number): void;
  /**
   * Writes `blocks` blocks that hold `values` from `offset` on, rounded plainly, to `out` from byte `outOffset` on. For
   * tests and benchmarks: finite values only, and no search for the best scales. Absent where nothing needs it.
   */
  encode?(values: Float32Array, offset: number, out: Uint8Array, outOffset: number, blocks: number): void;
}
