/** What the documents say of the tables, files and tests of the project is so. */

import assert from 'node:assert/strict';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { commands } from '../../src/cli/commands.ts';
import { flags } from '../../src/cli/flags.ts';
import type { PolicyName } from '../../src/experts/policies.ts';
import { replay } from '../../src/experts/replay.ts';
import { RoutingTrace } from '../../src/experts/trace.ts';
import { families } from '../../src/model/families/index.ts';
import { formats } from '../../src/quant/index.ts';
import { BUNDLED } from '../support/models.ts';
import { nodeModelSource } from '../support/node-source.ts';
import { referenceModels } from '../support/references.ts';
import { SKEWED } from '../support/trace-source.ts';

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
    'docs/experts.md',
    'docs/speculation.md',
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

test('the table of cache policies is what a replay gives', async () => {
  const cells = read('docs/experts.md')
    .split('\n')
    .filter((line) => /^\| `\w+` \| [\d.]+% \|/.test(line))
    .map((line) => line.split('|').map((text) => text.trim()));
  assert.equal(cells.length, 12);
  const cases = cells.map(([, policy, share]) => ({
    policy: policy?.replaceAll('`', '') as PolicyName,
    slots: (Number.parseFloat(share ?? '') / 100) * 48 * 128,
  }));
  for (const [column, uploads] of [2, 8, 16, undefined].entries()) {
    const trace = await RoutingTrace.open(await nodeModelSource(`${SKEWED}/trace.json`));
    const { rows } = await replay(trace, { cases, uploads, warmUpTokens: 256 });
    await trace.close();
    for (const [index, { hitRate, uploadsPerToken }] of rows.entries()) {
      const row = cells[index] ?? [];
      assert.equal(row[3 + column], `${(100 * hitRate).toFixed(1)}%`, `${row[1]} ${row[2]}, ${uploads} uploads`);
      if (uploads === undefined) assert.equal(row[7], uploadsPerToken.toFixed(1));
    }
  }
});
