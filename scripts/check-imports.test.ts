import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { check, importsOf, type SourceFile, sourceFiles } from './check-imports.ts';
import { deviceWords, type Room, rooms } from './import-rules.ts';

const table: readonly Room[] = [
  { path: 'base.ts', imports: [] },
  { path: 'low', imports: ['base.ts'], packages: ['left-pad'] },
  { path: 'high', imports: ['base.ts', 'low'], types: ['top'], packages: ['node:'] },
  { path: 'top', imports: ['high', 'low'] },
];

function messages(files: Record<string, string>): string[] {
  const list: SourceFile[] = Object.entries(files).map(([path, text]) => ({ path, text }));
  return check(list, table).map(({ file, line, message }) => `${file}:${line}: ${message}`);
}

test('every way to name a module is read, with its line and whether only types are taken', () => {
  const text = [
    "import './effect.ts';",
    "import a, { b } from './value.ts';",
    "import type { C } from './type.ts';",
    "import { type D, type E } from './types.ts';",
    "import { type F, g } from './mixed.ts';",
    'import {',
    '  h,',
    '} from "./lines.ts";',
    "export * from './all.ts';",
    "export { i } from './named.ts';",
    "export type { J } from './exported-type.ts';",
    "import type from './called-type.ts';",
    "import*as k from'./tight.ts'",
    "const l = await import('./dynamic.ts');",
    "let m: import('./inline.ts').M;",
  ].join('\n');
  const { imports, unread } = importsOf(text);
  assert.deepEqual(unread, []);
  assert.deepEqual(
    imports.map(({ line, specifier, typeOnly }) => `${line} ${specifier}${typeOnly ? ' type' : ''}`),
    [
      '1 ./effect.ts',
      '2 ./value.ts',
      '3 ./type.ts type',
      '4 ./types.ts type',
      '5 ./mixed.ts',
      '6 ./lines.ts',
      '9 ./all.ts',
      '10 ./named.ts',
      '11 ./exported-type.ts type',
      '12 ./called-type.ts',
      '13 ./tight.ts',
      '14 ./dynamic.ts',
      '15 ./inline.ts',
    ],
  );
});

test('what only looks like an import is passed over, and what cannot be read is reported', () => {
  const harmless = [
    'const a = import.meta.url;',
    '// import x from "./commented.ts";',
    ' * {@link import("./documented.ts")}',
    'const importer = 1;',
    'export { a };',
    'export type { B };',
    'export const c = 1;',
    'export function from() {}',
  ].join('\n');
  assert.deepEqual(importsOf(harmless), { imports: [], unread: [] });
  assert.deepEqual(importsOf('\nimport {\n  a, // it\'s\n} from "./odd.ts";').unread, [2]);
  assert.match(
    messages({ 'low/a.ts': 'import /* " */ x from "./b.ts";', 'low/b.ts': '' }).join(),
    /low\/a\.ts:1: .*could not be read/,
  );
});

test('an arrow that the table has passes; one that it lacks is named with its file and line', () => {
  const files = {
    'base.ts': '',
    'low/a.ts': "import '../base.ts';",
    'high/a.ts': "import '../low/a.ts';\nimport './b.ts';",
    'high/b.ts': '',
  };
  assert.deepEqual(messages(files), []);
  assert.deepEqual(messages({ ...files, 'low/b.ts': "\nimport '../high/a.ts';" }), [
    'low/b.ts:2: low may not import high; it may import base.ts',
  ]);
});

test('an arrow for types takes `import type` and nothing else', () => {
  const top = { 'top/a.ts': '' };
  assert.deepEqual(messages({ ...top, 'high/a.ts': "import type { A } from '../top/a.ts';" }), []);
  assert.deepEqual(messages({ ...top, 'high/a.ts': "import { type A, b } from '../top/a.ts';" }), [
    'high/a.ts:1: high may take only types from top: write `import type`',
  ]);
});

test("packages are the room's own", () => {
  assert.deepEqual(messages({ 'low/a.ts': "import 'left-pad';", 'high/a.ts': "import 'node:fs';" }), []);
  assert.deepEqual(messages({ 'low/a.ts': "import 'node:fs';" }), [
    'low/a.ts:1: low may not import node:fs; it may import left-pad',
  ]);
  assert.deepEqual(messages({ 'top/a.ts': "import 'left-pad';" }), ['top/a.ts:1: top may not import left-pad']);
});

test('a circle is found, through types too, and named once', () => {
  const found = messages({
    'low/a.ts': "import './b.ts';",
    'low/b.ts': "import type { C } from './c.ts';",
    'low/c.ts': "\nexport * from './a.ts';",
  });
  assert.deepEqual(found, ['low/c.ts:2: import cycle: low/a.ts → low/b.ts → low/c.ts → low/a.ts']);
});

test('a missing file and a folder without a room are violations', () => {
  assert.match(messages({ 'low/a.ts': "import './b.js';" }).join(), /low\/a\.ts:1: \.\/b\.js is not a file of src/);
  assert.match(messages({ 'new/a.ts': '' }).join(), /no room of scripts\/import-rules\.ts covers this file/);
});

test('nothing under model names a device, in code; in a comment it may', () => {
  const model: readonly Room[] = [{ path: 'model', imports: [] }];
  const at = (text: string) =>
    check([{ path: 'model/a.ts', text }], model).map(({ line, message }) => `${line}: ${message}`);
  assert.deepEqual(at('/** Knows no\n * gpu. */\nconst a = 1; // nor a cpu'), []);
  assert.deepEqual(at("const a = 1;\nconst device = 'gpu';"), [
    '2: nothing under src/model names a device, and this names gpu',
  ]);
  assert.ok(!deviceWords.test('simdjson'));
});

test('the table itself runs one way', () => {
  const seen = new Map<string, 'open' | 'done'>();
  const visit = (path: string, trail: readonly string[]): void => {
    assert.notEqual(seen.get(path), 'open', `rooms import each other: ${[...trail, path].join(' → ')}`);
    if (seen.get(path) === 'done') return;
    seen.set(path, 'open');
    const room = rooms.find((candidate) => candidate.path === path);
    assert.ok(room, `${path} is named in the table but has no line`);
    // The seam's files lie in the platform's room: they are one room here.
    for (const next of room.imports)
      if (!path.startsWith('platform') || !next.startsWith('platform')) visit(next, [...trail, path]);
    seen.set(path, 'done');
  };
  for (const { path } of rooms) visit(path, []);
});

test('the source that is here is read whole', () => {
  const files = sourceFiles(fileURLToPath(new URL('../src', import.meta.url)));
  assert.ok(files.length > 10);
  const graph = files.find(({ path }) => path === 'model/graph.ts');
  assert.ok(graph && importsOf(graph.text).imports.length > 0);
});
