/** How the command line ends badly: one line that says why, an exit code, and with `--verbose` everything known. */

import { ConclaveError, Refusal, UsageError } from '../errors.ts';
import { printable, toJson } from './format.ts';

/** 0: done. 1: failed (damaged, refused, unreadable …). 2: a bad flag or argument. 130: interrupted. */
export type ExitCode = 0 | 1 | 2 | 130;

/** Ctrl-C. Nothing is printed for it. */
export class Interrupted extends ConclaveError {
  constructor() {
    super('interrupted', 'interrupted');
  }
}

export function exitCodeOf(error: unknown): ExitCode {
  if (error instanceof Interrupted) return 130;
  return error instanceof UsageError ? 2 : 1;
}

/**
 * What to print for an error: `conclave: message`, a refusal's reasons on lines of their own. With `verbose` also code,
 * data, causes and stacks.
 */
export function describeError(error: unknown, verbose: boolean): string {
  const message = error instanceof Error ? error.message || error.name : String(error);
  // An error that Conclave did not raise on purpose has no promise to be one readable line.
  const [first = '', ...rest] = message.split('\n');
  const shown =
    error instanceof Refusal || verbose
      ? [first, ...rest]
      : [
          [first, ...rest]
            .map((l) => l.trim())
            .filter(Boolean)
            .join(' '),
        ];
  const lines = [`conclave: ${shown.join('\n')}`];
  if (verbose) lines.push(...details(error));
  else if (!(error instanceof ConclaveError))
    lines.push('conclave: this was not expected; --verbose prints where it comes from');
  return printable(lines.join('\n'));
}

function details(error: unknown): string[] {
  const lines: string[] = [];
  const seen = new Set<unknown>();
  for (let at = error, depth = 0; at !== undefined && at !== null && !seen.has(at) && depth < 8; depth++) {
    seen.add(at);
    if (depth > 0) lines.push(`caused by: ${at instanceof Error ? at.message : String(at)}`);
    if (at instanceof ConclaveError) {
      lines.push(`code: ${at.code}`);
      if (Object.keys(at.data).length > 0) lines.push(`data: ${toJson(at.data)}`);
    }
    if (!(at instanceof Error)) break;
    const stack = at.stack?.split('\n').filter((line) => /^\s+at /.test(line)) ?? [];
    if (stack.length > 0) lines.push('stack:', ...stack);
    at = at.cause;
  }
  return lines;
}
