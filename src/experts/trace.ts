/**
 * Routing traces: which experts a model used, token for token. A trace is a folder: `trace.bin` holds expert ids in the order
 * token, layer, rank, of one byte each or, for more than 256 experts, of two, little-endian; `trace.json` says the shape.
 * Nothing is believed that the bytes do not bear out.
 */

import { CorruptFileError, InternalError } from '../errors.ts';
import { isJsonObject, type JsonObject, parseJson } from '../format/json.ts';
import type { ByteSource, ModelSource } from '../format/source.ts';
import { strictUtf8 } from '../format/utf8.ts';

export const SHAPE_FILE = 'trace.json';
export const IDS_FILE = 'trace.bin';
export const ORDER = 'token, layer, rank';

const MOST_JSON_BYTES = 2 ** 20;
/** Ids have two bytes at the most. */
export const MOST_EXPERTS = 2 ** 16;
/** Of all layers: eight times what the largest models have, and few enough to count each by itself. */
const MOST_PAIRS = 2 ** 20;
/** Ids that {@link RoutingTrace.blocks} holds at once. */
const BLOCK_IDS = 2 ** 20;

export interface TraceShape {
  /** Layers with experts; the first one with experts is layer 0. */
  readonly layers: number;
  /** Of each layer. */
  readonly experts: number;
  /** Experts that a token uses in a layer. */
  readonly used: number;
  readonly tokens: number;
  /** What the trace is of. */
  readonly model?: string;
  /** Of one expert's weights. */
  readonly expertBytes?: number;
}

/**
 * Where a row of `used` experts has one that there is not, or one that stands in it already; undefined where none has.
 * @param ids [rows, used]
 */
export function faultyId(
  ids: Uint16Array,
  { experts, used }: Pick<TraceShape, 'experts' | 'used'>,
): number | undefined {
  /** [experts] The last row, counted from 1 on, in which an expert stood. */
  const seen = new Float64Array(experts);
  for (let at = 0; at < ids.length; at++) {
    const row = Math.floor(at / used) + 1;
    const expert = ids[at];
    if (!(expert < experts) || seen[expert] === row) return at;
    seen[expert] = row;
  }
  return undefined;
}

/** Bytes of an id. */
export function idBytes(experts: number): 1 | 2 {
  return experts > 256 ? 2 : 1;
}

/** Some tokens of a trace, one after the other. */
export class TraceBlock {
  /** The block's first token. */
  readonly first: number;
  readonly tokens: number;
  /** [tokens, layers, used] */
  readonly #ids: Uint16Array;
  readonly #layers: number;
  readonly #used: number;

  constructor(ids: Uint16Array, first: number, { layers, used }: TraceShape) {
    this.first = first;
    this.tokens = ids.length / (layers * used);
    this.#ids = ids;
    this.#layers = layers;
    this.#used = used;
  }

  /** [tokens, layers, used] */
  get all(): Uint16Array {
    return this.#ids;
  }

  /** [used] The experts of a layer at a token of the block, counted within the trace; the best first. */
  ids(token: number, layer: number): Uint16Array {
    const at = ((token - this.first) * this.#layers + layer) * this.#used;
    return this.#ids.subarray(at, at + this.#used);
  }
}

export class RoutingTrace {
  readonly shape: TraceShape;
  readonly #ids: ByteSource;

  private constructor(shape: TraceShape, ids: ByteSource) {
    this.shape = shape;
    this.#ids = ids;
  }

  /**
   * @param source `trace.json` with the folder around it; it is closed, whatever happens
   * @throws CorruptFileError `corrupt_file` for a shape that is missing, absurd, or not that of the bytes; SourceError `source`
   * where they cannot be read
   */
  static async open({ file, folder }: ModelSource): Promise<RoutingTrace> {
    let shape: TraceShape;
    try {
      shape = await readShape(file);
    } finally {
      await file.close();
    }
    if (folder === undefined) {
      throw new CorruptFileError(`${file.name}: beside it must be ${IDS_FILE}, and it is in no folder; give a path`);
    }
    const ids = await folder.open(IDS_FILE);
    const expected = shape.tokens * shape.layers * shape.used * idBytes(shape.experts);
    if (ids.size === expected) return new RoutingTrace(shape, ids);
    await ids.close();
    throw new CorruptFileError(
      `${ids.name}: has ${ids.size} bytes, and ${file.name} makes it ${expected} (${shape.tokens} tokens of ${shape.layers} layers, ` +
        `${shape.used} experts of ${idBytes(shape.experts)} bytes each); one of them is damaged, or of another trace`,
      { data: { file: ids.name, bytes: ids.size, expected } },
    );
  }

  /**
   * Tokens `first` … `first + count − 1`.
   * @throws CorruptFileError `corrupt_file` for an expert that there is not, or one that stands twice in a token's layer
   */
  async read(first: number, count: number): Promise<TraceBlock> {
    const { layers, used, experts, tokens } = this.shape;
    if (!(first >= 0 && count >= 0 && first + count <= tokens)) {
      throw new InternalError(`tokens ${first} to ${first + count} were wanted of a trace of ${tokens}`);
    }
    const bytes = idBytes(experts);
    const raw = new Uint8Array(count * layers * used * bytes);
    await this.#ids.readInto(first * layers * used * bytes, raw);
    const ids = new Uint16Array(count * layers * used);
    for (let at = 0; at < ids.length; at++) ids[at] = bytes === 1 ? raw[at] : raw[2 * at] | (raw[2 * at + 1] << 8);
    this.#check(ids, first);
    return new TraceBlock(ids, first, this.shape);
  }

  /** All tokens in order, some at a time. */
  async *blocks(): AsyncGenerator<TraceBlock> {
    const { tokens, layers, used } = this.shape;
    const most = Math.max(1, Math.floor(BLOCK_IDS / (layers * used)));
    for (let first = 0; first < tokens; first += most) yield await this.read(first, Math.min(most, tokens - first));
  }

  async close(): Promise<void> {
    await this.#ids.close();
  }

  #check(ids: Uint16Array, first: number): void {
    const { layers, used, experts } = this.shape;
    const at = faultyId(ids, { experts, used });
    if (at === undefined) return;
    const row = Math.floor(at / used);
    const expert = ids[at];
    const where = `token ${first + Math.floor(row / layers)}, layer ${row % layers}, rank ${at % used}`;
    const what =
      expert < experts ? `expert ${expert} a second time` : `expert ${expert}, and there are 0 to ${experts - 1}`;
    throw new CorruptFileError(
      `${this.#ids.name}: at ${where} stands ${what}; the file is damaged, or its ${SHAPE_FILE} is of another trace`,
      { data: { file: this.#ids.name, expert, experts } },
    );
  }
}

async function readShape(file: ByteSource): Promise<TraceShape> {
  if (file.size > MOST_JSON_BYTES) {
    throw new CorruptFileError(
      `${file.name}: has ${file.size} bytes, and a trace's shape takes at most ${MOST_JSON_BYTES}; give the folder of a trace`,
      { data: { file: file.name, bytes: file.size } },
    );
  }
  const bytes = new Uint8Array(file.size);
  await file.readInto(0, bytes);
  const text = strictUtf8(bytes);
  const parsed = text === undefined ? { error: 'it is not UTF-8' } : parseJson(text);
  const fault =
    parsed.error ??
    (parsed.duplicate === undefined ? undefined : `${JSON.stringify(parsed.duplicate)} stands twice in it`);
  if (fault !== undefined || !isJsonObject(parsed.value)) {
    throw new CorruptFileError(`${file.name}: not a trace's shape: ${fault ?? 'it is no JSON object'}`, {
      data: { file: file.name },
    });
  }
  return shapeOf(file.name, parsed.value);
}

function shapeOf(file: string, json: JsonObject): TraceShape {
  const refuse = (key: string, expected: string): CorruptFileError => {
    const found = json[key] === undefined ? 'nothing' : JSON.stringify(json[key]).slice(0, 80);
    return new CorruptFileError(`${file}: ${key}: found ${found}, expected ${expected}; record the trace again`, {
      data: { file, key },
    });
  };
  const whole = (key: string, most: number): number => {
    const value = json[key];
    if (typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= most) return value;
    throw refuse(key, `a whole number from 1 to ${most}`);
  };
  const experts = whole('experts', MOST_EXPERTS);
  const layers = whole('layers', Math.floor(MOST_PAIRS / experts));
  const used = whole('used', experts);
  const tokens = whole('tokens', Math.floor(Number.MAX_SAFE_INTEGER / (2 * layers * used)));
  const bytes = idBytes(experts);
  // Old traces of one byte say nothing; one that says something must say this.
  if ((json.bytes ?? 1) !== bytes) throw refuse('bytes', `${bytes}, as ${experts} experts take`);
  const dtype = bytes === 1 ? 'uint8' : 'uint16';
  if ((json.dtype ?? dtype) !== dtype) throw refuse('dtype', `"${dtype}", as ${experts} experts take`);
  if ((json.order ?? ORDER) !== ORDER) throw refuse('order', `"${ORDER}"`);
  const { model } = json;
  if (model !== undefined && typeof model !== 'string') throw refuse('model', 'a text');
  const expertBytes = json.expertBytes === undefined ? undefined : whole('expertBytes', Number.MAX_SAFE_INTEGER);
  return { layers, experts, used, tokens, model, expertBytes };
}
