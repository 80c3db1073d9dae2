/** How numbers and lines are written for a person: bytes, counts, rates. One place, so that all output agrees. */

/** Bytes in decimal units with three significant digits: `26.1 MB`. Exact below 1000. */
export function showBytes(bytes: number): string {
  if (!Number.isFinite(bytes)) return `${bytes} B`;
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB'];
  let value = bytes;
  let unit = 0;
  // 999.5 would print as four digits; it belongs to the next unit.
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 ? value : threeDigits(value)} ${units[unit]}`;
}

/** A whole number with commas between thousands: `6,144`. */
export function showCount(count: number | bigint): string {
  return count.toString().replace(/\B(?=(\d{3})+$)/g, ',');
}

/** Something a second, with three significant digits: `showRate(183.2, 'tokens')` is `183 tokens/s`. */
export function showRate(perSecond: number, unit: string): string {
  return Number.isFinite(perSecond) ? `${threeDigits(perSecond)} ${unit}/s` : `– ${unit}/s`;
}

/** A time: `3 ms`, `1.42 s`, `2 min 5 s`. */
export function showTime(elapsedMs: number): string {
  if (elapsedMs < 999.5) return `${threeDigits(elapsedMs)} ms`;
  if (elapsedMs < 59_995) return `${threeDigits(elapsedMs / 1000)} s`;
  const seconds = Math.round(elapsedMs / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** One thing or several: `1 tensor`, `2 tensors`. */
export function showPlural(count: number, noun: string, plural = `${noun}s`): string {
  return `${showCount(count)} ${count === 1 ? noun : plural}`;
}

/** Ascending whole numbers as ranges: [0, 2, 3, 4] is `0, 2–4`. */
export function showRanges(numbers: readonly number[]): string {
  const ranges: string[] = [];
  for (let start = 0; start < numbers.length; ) {
    let end = start;
    while (numbers[end + 1] === numbers[end]! + 1) end++;
    ranges.push(
      end === start ? `${numbers[start]}` : `${numbers[start]}${end === start + 1 ? ', ' : '–'}${numbers[end]}`,
    );
    start = end + 1;
  }
  return ranges.join(', ');
}

/** `text` broken between words into lines of at most `width` characters, a longer word on a line of its own. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > width) {
      lines.push(line);
      line = word;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  return [...lines, line];
}

function threeDigits(value: number): string {
  const size = Math.abs(value);
  if (size >= 100) return showCount(Math.round(value));
  // Trailing zeros say how exact a measured number is, but a whole small number reads better bare.
  return Number.isInteger(value) ? `${value}` : value.toFixed(size >= 9.995 ? 1 : 2);
}
