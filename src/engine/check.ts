/** Checks of what a person passes: each names the option, what was found and what is expected. */

import { UsageError } from '../errors.ts';

/** A check of one option's value: undefined when it is right, else what is expected, as a phrase. */
export type Check = (value: unknown) => string | undefined;

export function wholeFrom(least: number, most = Number.MAX_SAFE_INTEGER): Check {
  const expected =
    most === Number.MAX_SAFE_INTEGER ? `a whole number from ${least} on` : `a whole number from ${least} to ${most}`;
  return (value) =>
    Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most ? undefined : expected;
}

export function numberFrom(least: number, most = Infinity): Check {
  const expected = most === Infinity ? `a number from ${least} on` : `a number from ${least} to ${most}`;
  return (value) => (isNumber(value) && value >= least && value <= most ? undefined : expected);
}

export const finite: Check = (value) => (isNumber(value) ? undefined : 'a finite number');
export const flag: Check = (value) => (typeof value === 'boolean' ? undefined : 'true or false');
export const callback: Check = (value) => (typeof value === 'function' ? undefined : 'a function');
export const plainObject: Check = (value) =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? undefined : 'an object';
export const abortSignal: Check = (value) => (value instanceof AbortSignal ? undefined : 'an AbortSignal');
export const texts: Check = (value) =>
  Array.isArray(value) && value.every((entry) => typeof entry === 'string') ? undefined : 'an array of strings';

export function oneOf(...choices: readonly string[]): Check {
  return (value) =>
    choices.includes(value as string) ? undefined : choices.map((choice) => `'${choice}'`).join(' or ');
}

/**
 * Checks every given option by its name; undefined counts as not given.
 * @throws UsageError `usage` for a value that fails its check and for a name that has none.
 */
export function checkOptions(options: unknown, checks: Readonly<Record<string, Check>>, what: string): void {
  if (plainObject(options) !== undefined)
    throw new UsageError(`the options of ${what} must be an object, found ${show(options)}`);
  for (const [name, value] of Object.entries(options as object)) {
    const check = Object.hasOwn(checks, name) ? checks[name] : undefined;
    if (check === undefined) {
      throw new UsageError(`${what} has no option ${JSON.stringify(name)}; it has ${Object.keys(checks).join(', ')}`, {
        data: { option: name },
      });
    }
    const expected = value === undefined ? undefined : check(value);
    if (expected !== undefined) {
      throw new UsageError(`${name}: found ${show(value)}, expected ${expected}`, { data: { option: name } });
    }
  }
}

/** A value in an error message: short, whatever it is. */
export function show(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}…` : value);
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object' && value !== null) return 'an object';
  return typeof value === 'function' ? 'a function' : String(value);
}

function isNumber(value: unknown): value is number {
  return Number.isFinite(value);
}
