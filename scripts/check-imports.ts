/**
 * Checks the imports of src/: their direction against `import-rules.ts`, and that no file reaches itself again, types
 * included. Tests may import what they like. Run as a program it prints each violation as `file:line: what` and ends
 * with 1 if there is any.
 */

import { readdirSync, readFileSync } from 'node:fs';
import { join, posix, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

import { deviceWords, type Room, rooms } from './import-rules.ts';

export interface ImportStatement {
  readonly line: number;
  readonly specifier: string;
  /** Only types are taken, so nothing remains of it at run time. */
  readonly typeOnly: boolean;
}

export interface Violation {
  readonly file: string;
  readonly line: number;
  readonly message: string;
}

/** A source file: its path below src/ with `/`, and its text. */
export interface SourceFile {
  readonly path: string;
  readonly text: string;
}

const statement = /^[ \t]*(import|export)\b(?!\s*\()([^'"`;]*?)\bfrom\s*(['"])([^'"\n]+)\3/gm;
const bare = /^[ \t]*import\s*(['"])([^'"\n]+)\1/gm;
const dynamic = /\bimport\s*\(\s*(['"`])([^'"`\n]+)\1/g;
/** How a statement that must name a module begins; each must be one of those read above. */
const opening = /^[ \t]*(?:import\b(?!\s*[(.])|export\s+(?:type\s+)?(?:\*|\{))/gm;

/**
 * Every module that `text` names, in order, and the lines of import statements that could not be read. Statements are
 * met at the start of a line, where no comment of ours has them; what is not understood is reported, never passed over.
 */
export function importsOf(text: string): {
  readonly imports: readonly ImportStatement[];
  readonly unread: readonly number[];
} {
  const found = new Map<number, ImportStatement>();
  for (const match of text.matchAll(statement)) {
    const clause = match[2] ?? '';
    // `export { a };` followed by `… from` further on is two statements: `;` keeps them apart, a missing one does not.
    found.set(match.index, {
      line: lineOf(text, match.index),
      specifier: match[4] ?? '',
      typeOnly: isTypeClause(clause),
    });
  }
  for (const match of text.matchAll(bare)) {
    found.set(match.index, { line: lineOf(text, match.index), specifier: match[2] ?? '', typeOnly: false });
  }
  const statements = new Set(found.keys());
  const unread = [...text.matchAll(opening)]
    .filter((match) => !statements.has(match.index) && !isLocalExport(text, match.index))
    .map((match) => lineOf(text, match.index));
  for (const match of text.matchAll(dynamic)) {
    if (/^\s*(?:\*|\/\/)/.test(lineAt(text, match.index))) continue;
    // `typeof import('x')` and `import('x').Type` cannot be told from a call here; both count as a full import.
    found.set(match.index, { line: lineOf(text, match.index), specifier: match[2] ?? '', typeOnly: false });
  }
  return { imports: [...found].sort(([a], [b]) => a - b).map(([, made]) => made), unread };
}

/** `type X`, `type { … }`, or braces in which every name says `type`. */
function isTypeClause(clause: string): boolean {
  const trimmed = clause.trim();
  if (/^type\b(?!\s*(?:,|from\b|$))/.test(trimmed)) return true;
  const names = /^\{([^}]*)\}$/.exec(trimmed)?.[1];
  if (names === undefined) return false;
  const list = names
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '');
  return list.length > 0 && list.every((name) => /^type\s+\S/.test(name));
}

/** `export { a, b };` names no module. */
function isLocalExport(code: string, index: number): boolean {
  return (
    /^[ \t]*export\s+(?:type\s+)?\{[^}]*\}\s*(?:;|\n|$)/.test(code.slice(index)) &&
    !/^[ \t]*export[^}]*\}\s*from\b/.test(code.slice(index))
  );
}

/** Comments become spaces where they stand; lines keep their numbers. A `//` after a `:` is taken for an address. */
export function withoutComments(text: string): string {
  return text
    .replace(/\/\*[\s\S]*?\*\//g, (comment) => comment.replace(/[^\n]/g, ' '))
    .replace(
      /(^|[^:'"`\\])\/\/[^\n]*/gm,
      (comment, before: string) => before + ' '.repeat(comment.length - before.length),
    );
}

function lineAt(text: string, index: number): string {
  return text.slice(text.lastIndexOf('\n', index) + 1).split('\n', 1)[0] ?? '';
}

function lineOf(text: string, index: number): number {
  let line = 1;
  const start = index + (/^\s*/.exec(text.slice(index))?.[0].length ?? 0);
  for (let at = text.indexOf('\n'); at !== -1 && at < start; at = text.indexOf('\n', at + 1)) line++;
  return line;
}

function roomOf(path: string, table: readonly Room[]): Room | undefined {
  return table.find((room) => path === room.path || path.startsWith(`${room.path}/`));
}

/** Every violation in `files`, in the order of the files. */
export function check(files: readonly SourceFile[], table: readonly Room[] = rooms): Violation[] {
  const violations: Violation[] = [];
  const known = new Set(files.map((file) => file.path));
  const arrows = new Map<string, readonly { readonly to: string; readonly line: number }[]>();
  for (const { path, text } of files) {
    const room = roomOf(path, table);
    const report = (line: number, message: string) => violations.push({ file: path, line, message });
    if (room === undefined) {
      report(1, 'no room of scripts/import-rules.ts covers this file: give its folder a line there');
      continue;
    }
    const { imports, unread } = importsOf(text);
    for (const line of unread) report(line, "this import could not be read: write it as `import … from '…';`");
    const out: { to: string; line: number }[] = [];
    for (const { specifier, line, typeOnly } of imports) {
      if (!specifier.startsWith('.')) {
        checkPackage(room, specifier, (message) => report(line, message));
        continue;
      }
      const target = posix.normalize(posix.join(posix.dirname(path), specifier));
      if (!known.has(target)) {
        report(line, `${specifier} is not a file of src/ (write its path with the .ts ending)`);
        continue;
      }
      out.push({ to: target, line });
      const targetRoom = roomOf(target, table);
      if (targetRoom === undefined || targetRoom === room || room.imports.includes(targetRoom.path)) continue;
      const typesAllowed = room.types?.includes(targetRoom.path) ?? false;
      if (typesAllowed && typeOnly) continue;
      report(
        line,
        typesAllowed
          ? `${room.path} may take only types from ${targetRoom.path}: write \`import type\``
          : `${room.path} may not import ${targetRoom.path}; it may import ${[...room.imports, ...(room.types ?? []).map((name) => `${name} (types)`)].join(', ') || 'nothing'}`,
      );
    }
    arrows.set(path, out);
    if (path.startsWith('model/')) checkDeviceNames(text, report);
  }
  return [...violations, ...cycles(arrows)];
}

function checkPackage(room: Room, specifier: string, report: (message: string) => void): void {
  const allowed = room.packages ?? [];
  if (allowed.some((name) => (name.endsWith(':') ? specifier.startsWith(name) : specifier === name))) return;
  report(
    `${room.path} may not import ${specifier}${allowed.length > 0 ? `; it may import ${allowed.join(', ')}` : ''}`,
  );
}

function checkDeviceNames(text: string, report: (line: number, message: string) => void): void {
  withoutComments(text)
    .split('\n')
    .forEach((line, index) => {
      const word = deviceWords.exec(line)?.[0];
      if (word !== undefined) report(index + 1, `nothing under src/model names a device, and this names ${word}`);
    });
}

/** One violation for each file that closes a circle, met depth first. */
function cycles(arrows: ReadonlyMap<string, readonly { readonly to: string; readonly line: number }[]>): Violation[] {
  const violations: Violation[] = [];
  const done = new Set<string>();
  const path: string[] = [];
  const visit = (file: string): void => {
    path.push(file);
    for (const { to, line } of arrows.get(file) ?? []) {
      const at = path.indexOf(to);
      if (at !== -1) {
        violations.push({ file, line, message: `import cycle: ${[...path.slice(at), to].join(' → ')}` });
      } else if (!done.has(to)) {
        visit(to);
      }
    }
    path.pop();
    done.add(file);
  };
  for (const file of arrows.keys()) if (!done.has(file)) visit(file);
  return violations;
}

/** The checked files of a folder: TypeScript, without tests and without the AssemblyScript sources. */
export function sourceFiles(folder: string): SourceFile[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .map((full) => ({ full, path: relative(folder, full).split(sep).join('/') }))
    .filter(({ path }) => path.endsWith('.ts') && !path.endsWith('.test.ts') && !path.includes('/assembly/'))
    .sort((a, b) => (a.path < b.path ? -1 : 1))
    .map(({ full, path }) => ({ path, text: readFileSync(full, 'utf8') }));
}

if (import.meta.main) {
  const files = sourceFiles(fileURLToPath(new URL('../src', import.meta.url)));
  const violations = check(files);
  for (const { file, line, message } of violations) console.error(`src/${file}:${line}: ${message}`);
  if (violations.length > 0) {
    console.error(`${violations.length} import violation(s); the rules are in scripts/import-rules.ts`);
    process.exitCode = 1;
  }
}
