/** JSON from files: parsed whole, with names that stand twice in one object found instead of the last one winning. */

export type JsonValue = null | boolean | number | string | readonly JsonValue[] | JsonObject;
export interface JsonObject {
  readonly [key: string]: JsonValue;
}

export function isJsonObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A value as it stands in the file, cut where it is long: for messages. */
export function showJson(value: JsonValue | undefined): string {
  const text = value === undefined ? 'missing' : JSON.stringify(value);
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}

/**
 * Whether a file that starts with `head` is JSON text that opens an object. A safetensors file may start with a brace
 * too (a header of 123 bytes), but then bytes of its length are 0, which no text has.
 */
export function looksLikeJsonObject(head: Uint8Array): boolean {
  const isSpace = (byte: number) => byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;
  return !head.subarray(0, 8).includes(0) && head.find((byte) => !isSpace(byte)) === 0x7b;
}

export type ParsedJson =
  | { readonly value: JsonValue; readonly duplicate?: string; readonly error?: undefined }
  | { readonly value?: undefined; readonly error: string };

/** Parses `text`; `duplicate` is the first name that stands twice in one object. */
export function parseJson(text: string): ParsedJson {
  let value: JsonValue;
  try {
    value = JSON.parse(text) as JsonValue;
  } catch (error) {
    return { error: error instanceof Error ? error.message : String(error) };
  }
  return { value, duplicate: findDuplicate(text) };
}

/** `text` is valid JSON, so only strings, brackets and colons need telling apart. */
function findDuplicate(text: string): string | undefined {
  const open: (Set<string> | undefined)[] = [];
  const token = /"(?:[^"\\]|\\.)*"|[{}[\]]/gs;
  for (let match = token.exec(text); match !== null; match = token.exec(text)) {
    const [found] = match;
    if (found === '{' || found === '[') {
      open.push(found === '{' ? new Set() : undefined);
    } else if (found === '}' || found === ']') {
      open.pop();
    } else {
      const names = open.at(-1);
      if (names !== undefined && isName(text, token.lastIndex)) {
        const name = JSON.parse(found) as string;
        if (names.has(name)) {
          return name;
        }
        names.add(name);
      }
    }
  }
  return undefined;
}

/** Whether the string that ends before `at` is followed by a colon: then it is a name. */
function isName(text: string, at: number): boolean {
  let next = at;
  while (text[next] === ' ' || text[next] === '\n' || text[next] === '\r' || text[next] === '\t') {
    next++;
  }
  return text[next] === ':';
}
