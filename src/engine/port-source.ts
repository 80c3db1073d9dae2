/**
 * The model's files as the engine's worker sees them: reads go to the main side, which owns the files. A target in shared
 * memory is filled there, without a copy; any other comes back in pieces.
 */

import { ConclaveError, recordError, reviveError, SourceError } from '../errors.ts';
import type { ByteSource } from '../format/source.ts';
import type { ReadReply, ReadRequest, SourceFacts } from './protocol.ts';

/** Bytes of a piece that comes back by message, and how many are on their way at once. */
const PIECE_BYTES = 8 * 2 ** 20;
const PIECES_AT_ONCE = 4;

interface Pending {
  readonly resolve: (bytes: Uint8Array | undefined) => void;
  readonly reject: (error: unknown) => void;
}

/** The worker's end: sources that ask over `post`. */
export class PortSources {
  readonly #post: (request: ReadRequest) => void;
  readonly #pending = new Map<number, Pending>();
  #next = 0;

  constructor(post: (request: ReadRequest) => void) {
    this.#post = post;
  }

  source(index: number, facts: SourceFacts): ByteSource {
    return {
      ...facts,
      readInto: async (offset, target) => {
        const length = target.byteLength;
        if (isShared(target)) {
          await this.#ask({
            source: index,
            offset,
            length,
            target: { buffer: target.buffer, byteOffset: target.byteOffset },
          });
          return;
        }
        let start = 0;
        const take = async () => {
          while (start < length) {
            const at = start;
            start = Math.min(length, at + PIECE_BYTES);
            const bytes = await this.#ask({ source: index, offset: offset + at, length: start - at });
            if (bytes !== undefined) target.set(bytes, at);
          }
        };
        await Promise.all(Array.from({ length: PIECES_AT_ONCE }, take));
      },
      async close() {},
    };
  }

  /** Hands in what the main side answered. */
  settle(reply: ReadReply): void {
    const pending = this.#pending.get(reply.read);
    this.#pending.delete(reply.read);
    if (reply.error === undefined) pending?.resolve(reply.bytes);
    else pending?.reject(reviveError(reply.error));
  }

  #ask(request: Omit<ReadRequest, 'type' | 'read'>): Promise<Uint8Array | undefined> {
    const read = this.#next++;
    return new Promise((resolve, reject) => {
      this.#pending.set(read, { resolve, reject });
      this.#post({ type: 'read', read, ...request });
    });
  }
}

function isShared(target: Uint8Array): target is Uint8Array<SharedArrayBuffer> {
  return typeof SharedArrayBuffer !== 'undefined' && target.buffer instanceof SharedArrayBuffer;
}

/** The main side's end: does one read and says how it went. Never rejects. */
export async function answerRead(sources: readonly ByteSource[], request: ReadRequest): Promise<ReadReply> {
  const { read, source, offset, length, target } = request;
  try {
    const bytes =
      target === undefined ? new Uint8Array(length) : new Uint8Array(target.buffer, target.byteOffset, length);
    await sources[source]!.readInto(offset, bytes);
    return target === undefined ? { type: 'read-done', read, bytes } : { type: 'read-done', read };
  } catch (cause) {
    const { name } = sources[source]!;
    // A source made elsewhere may raise anything; its reader is told where, and what kind of fault it is.
    const error =
      cause instanceof ConclaveError
        ? cause
        : new SourceError(
            `${name}: reading bytes ${offset} to ${offset + length} failed: ${recordError(cause).message}`,
            {
              cause,
            },
          );
    return { type: 'read-done', read, error: recordError(error) };
  }
}
