/** The loop that reads memory as fast as one thread can, in WebAssembly: 128-bit loads, no arithmetic that could limit it. */

export interface ReaderData {
  /** How much this reader owns. */
  readonly bytes: number;
  readonly passes: number;
  /** Three Int32: how often readers were ready, the pass that is open, how many readers there are. */
  readonly gate: SharedArrayBuffer;
}

export interface ReaderResult {
  readonly elapsedMs: readonly number[];
  readonly bytes: number;
  readonly checksum: number;
}

/** Bytes that one turn of the loop reads. */
export const FULL_LINE = 128;

/*
 * (module
 *   (import "a" "m" (memory 1 65536))
 *   (func (export "r") (param $at i32) (param $end i32) (result i32) (local $a v128) … (local $d v128)
 *     (loop $next
 *       (local.set $a (v128.xor (local.get $a) (v128.load (local.get $at))))             ;; and 7 more, 16 bytes on each,
 *       …                                                                                 ;; $a $b $c $d in turn
 *       (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 128))) (local.get $end))))
 *     (i32x4.extract_lane 0 (v128.xor (v128.xor (local.get $a) (local.get $b)) (v128.xor (local.get $c) (local.get $d))))))
 */
const MODULE =
  'AGFzbQEAAAABBwFgAn9/AX8CCwEBYQFtAgEBgIAEAwIBAAcFAQFyAAAKiAEBhQEBBHsDQCACIAD9AAQA/VEhAiADIAD9AAQQ/VEhAyAEIAD9AAQg' +
  '/VEhBCAFIAD9AAQw/VEhBSACIAD9AARA/VEhAiADIAD9AARQ/VEhAyAEIAD9AARg/VEhBCAFIAD9AARw/VEhBSAAQYABaiIAIAFJDQALIAIgA/1RIAQg' +
  'Bf1R/VH9GwAL';

/**
 * A function that reads `memory` from byte `start` to byte `end` (whole turns of {@link FULL_LINE} bytes, at least one)
 * and returns the exclusive or of every fourth 32-bit word, so that no read can be left out.
 */
export async function readLoop(memory: WebAssembly.Memory): Promise<(start: number, end: number) => number> {
  const { instance } = await WebAssembly.instantiate(Buffer.from(MODULE, 'base64'), { a: { m: memory } });
  return instance.exports.r as (start: number, end: number) => number;
}
