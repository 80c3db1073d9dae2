/** Text for a terminal: columns, and strings from a file or a model made harmless to print. */

export { showBytes, showCount, showPlural, showRanges, showRate, showTime, wrap } from '../plan/show.ts';

/**
 * `text` with control characters spelled out (`\x1b`), but for line ends and tabs: what a file or a model says must not
 * move the cursor, recolour the screen or retitle the window.
 */
export function printable(text: string): string {
  return text.replace(
    /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g,
    (character) => `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`,
  );
}

/** A name as part of a line: {@link printable}, and what would end the line or move its columns spelled out as well. */
export function printableName(text: string): string {
  return printable(text.replaceAll('\n', '\\n').replaceAll('\t', '\\t'));
}

/** `text` on one line, in quotes, cut to about `most` characters. */
export function quoted(text: string, most = 72): string {
  const characters = [...text];
  const cut = characters.length > most;
  const shown = printable(JSON.stringify(cut ? characters.slice(0, most).join('') : text));
  return cut ? `${shown}… (${characters.length} characters)` : shown;
}

/** Rows as columns two spaces apart; columns named in `right` are aligned to the right. */
export function columns(rows: readonly (readonly string[])[], right: readonly number[] = []): string[] {
  const widths: number[] = [];
  for (const row of rows) {
    for (const [column, cell] of row.entries()) widths[column] = Math.max(widths[column] ?? 0, cell.length);
  }
  return rows.map((row) =>
    row
      .map((cell, column) => (right.includes(column) ? cell.padStart(widths[column]!) : cell.padEnd(widths[column]!)))
      .join('  ')
      .trimEnd(),
  );
}

/** JSON with bigints as decimal strings and typed arrays as arrays. */
export function toJson(value: unknown): string {
  return JSON.stringify(
    value,
    (_key, item: unknown) => {
      if (typeof item === 'bigint') return item.toString();
      if (ArrayBuffer.isView(item) && !(item instanceof DataView))
        return Array.from(item as unknown as ArrayLike<unknown>);
      return item;
    },
    2,
  );
}
