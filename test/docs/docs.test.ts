/** What the documents say of the tables, files and tests of the project is so. */

import assert from 'node:assert/strict';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { commands } from '../../src/cli/commands.ts';
import { flags } from '../../src/cli/flags.ts';
import { families } from '../../src/model/families/index.ts';
import { formats } from '../../src/quant/index.ts';
import { BUNDLED } from '../support/models.ts';
import { referenceModels } from '../support/references.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
const read = (path: string) => readFileSync(join(root, path), 'utf8');

/** The second cell of a table's row. */
function cell(text: string, first: string): string {
  const row = text.split('\n').find((line) => line.startsWith(`| ${first} |`));
  assert.ok(row, `no row ${first}`);
  return row.split('|')[2] ?? '';
}

const list = (text: string, pattern: RegExp) => [...text.matchAll(pattern)].map(([, name]) => name).sort();

test('the README lists the formats and the families of the tables', () => {
  const readme = read('README.md');
  assert.deepEqual(list(cell(readme, 'weight formats'), /([A-Z0-9_]+)/g), formats.map(({ id }) => id).sort());
  assert.deepEqual(
    list(cell(readme, 'families'), /`([^`]+)`/g),
    families.map(({ architecture }) => architecture).sort(),
  );
});

test('the README names the commands that there are, and only flags that there are', () => {
  const readme = read('README.md');
  assert.deepEqual(list(readme, /^\| `conclave ([a-z]+)` \|/gm), commands.map(({ name }) => name).sort());
  const table = readme.slice(readme.indexOf('| flag | meaning |'), readme.indexOf('conclave COMMAND --help'));
  const long: readonly string[] = Object.keys(flags);
  const short = Object.values(flags).flatMap((flag) => ('short' in flag ? [flag.short as string] : []));
  const named = list(table, /`--([a-z-]+)/g);
  assert.ok(named.length > 15);
  for (const name of named) assert.ok(long.includes(name ?? ''), `--${name}`);
  for (const name of list(table, /`-([a-z])`/g)) assert.ok(short.includes(name ?? ''), `-${name}`);
});

test('every file that a document links to or calls a test is there', () => {
  for (const document of [
    'README.md',
    'CONTRIBUTING.md',
    'models/README.md',
    'docs/architecture.md',
    'bench/README.md',
  ]) {
    const text = read(document);
    const links = list(text, /\]\((?!https?:|#)([^)#]+)/g).map((link) => join(dirname(document), link ?? ''));
    const tests = list(text, /`((?:src|test|scripts|bench)\/[\w./-]+\.ts)`/g).map((path) => path ?? '');
    for (const path of [...links, ...tests]) assert.ok(existsSync(join(root, path)), `${document} names ${path}`);
  }
});

test('the model card gives the size and the answers that are recorded', () => {
  const card = read('models/README.md');
  assert.ok(card.includes(`${statSync(join(root, 'models', BUNDLED)).size.toLocaleString('en-US')} bytes`));
  const answers = referenceModels.find(({ file }) => file === BUNDLED)?.answers ?? [];
  const rows = [
    ...card.slice(card.indexOf('| asked |')).matchAll(/^\| (?:\*\*.*\*\* )?([A-Z][^|]*[?.]) \| ([A-Z][^|]*) \|$/gm),
  ];
  assert.ok(rows.length >= 8);
  for (const [, question, said] of rows) {
    const recorded = answers.find(({ messages }) => messages[0]?.content === question);
    assert.equal(said, recorded?.answer, question);
  }
});
