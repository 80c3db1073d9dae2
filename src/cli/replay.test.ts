/** `conclave replay` on the fixture and on what is no trace. */

import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fakeLibrary, world } from '../../test/support/cli-world.ts';
import { SKEWED } from '../../test/support/trace-source.ts';
import { main } from './commands.ts';

const { library } = fakeLibrary(() => []);

async function conclave(...argv: string[]) {
  const { context, out, err } = world(library);
  return { code: await main(argv, context), out: out(), err: err() };
}

test('the table has a row for each cache, in the order in which they were given', async () => {
  const { code, out, err } = await conclave(
    'replay',
    SKEWED,
    ...['--expert-cache', 'static:25%', '--expert-cache', 'lru:1536', '--expert-cache', 'lfu:1GB'],
    ...['--expert-bytes', '1MB', '--uploads', '4'],
  );
  assert.equal(err, '');
  assert.equal(code, 0);
  const lines = out.split('\n');
  assert.match(lines[0], /skewed: 2,048 tokens, 48 layers, 8 of 128 experts a layer$/);
  assert.match(lines[1], /gets 82\.4% of the picks/);
  assert.match(lines[4], /^policy +slots +of all +hits +layers without a miss +uploads a token +bytes a token$/);
  assert.match(lines[5], /^static +1,536 +25\.0% +45\.6% +0\.7% +0\.0 +0 B$/);
  assert.match(lines[6], /^lru +1,536 +25\.0% +57\.5% +2\.0% +4\.0 +4 MB$/);
  assert.match(lines[7], /^lfu +1,000 +16\.3% /);
  assert.match(lines[9], /^after 256 tokens of warm-up; at most 4 uploads a token/);
});

test('without caches four policies are compared at three sizes, and --json gives them as data', async () => {
  const { code, out } = await conclave('replay', SKEWED, '--json', '--uploads', '1', '--warm-up', '2000');
  assert.equal(code, 0);
  const { rows, shape, warmUpTokens, uploads, routing } = JSON.parse(out);
  assert.deepEqual(
    rows.map((row: { policy: string; slots: number }) => `${row.policy} ${row.slots}`),
    ['lru', 'slru', 'lfu', 'static'].flatMap((policy) => [768, 1536, 3072].map((slots) => `${policy} ${slots}`)),
  );
  assert.deepEqual([shape.tokens, warmUpTokens, uploads], [2048, 2000, 1]);
  assert.ok(routing.entropyShare > 0.9 && routing.entropyShare < 1);
  for (const { hitRate, wholeShare } of rows) assert.ok(hitRate > 0 && hitRate < 1 && wholeShare < hitRate);
});

test('a policy without a size is run at the three sizes', async () => {
  const { out } = await conclave('replay', SKEWED, '--expert-cache', 'lfu', '--pin', '25', '--uploads', '0');
  assert.deepEqual(
    [...out.matchAll(/^lfu +([\d,]+) /gm)].map(([, slots]) => slots),
    ['768', '1,536', '3,072'],
  );
  assert.match(out, /at most 0 uploads a token.*; the hottest keep 25\.0% of the slots for good$/m);
});

for (const [line, code, message] of [
  ['replay', 2, /give the folder of one trace.*found 0/],
  ['replay a b', 2, /found 2/],
  ['replay ', 2, /the path of the trace is empty; give its folder/],
  ['replay nowhere', 1, /trace\.json: no such file; a trace is a folder with trace\.json and trace\.bin/],
  ['replay nowhere --expert-cache fifo:3', 2, /--expert-cache expects one of slru, lfu, static, lru.*found "fifo:3"/],
  ['replay nowhere --uploads -1', 2, /--uploads expects a whole number of at least 0, found "-1"/],
  [`replay ${SKEWED} --expert-cache lru:8GiB`, 2, /needs to know the bytes of an expert/],
  [`replay ${SKEWED} --warm-up 2048`, 2, /a warm-up of 2048 tokens leaves none of the trace's 2048/],
] as const) {
  test(`conclave ${line.replace(SKEWED, 'skewed')} ends with ${code} and one line`, async () => {
    const ended = await conclave(...line.split(' '));
    assert.equal(ended.code, code);
    assert.match(ended.err, message);
    assert.match(ended.err, /^conclave: [^\n]+\n$/);
    assert.equal(ended.out, '');
  });
}

test('names do not break lines, and a size that is another again is tried once', async () => {
  const root = mkdtempSync(join(tmpdir(), 'conclave-trace-'));
  try {
    const folder = join(root, 'two\nlines');
    mkdirSync(folder);
    const model = 'a\tb\r\n\x1b[31mc';
    writeFileSync(join(folder, 'trace.json'), JSON.stringify({ layers: 1, experts: 4, used: 1, tokens: 3, model }));
    writeFileSync(join(folder, 'trace.bin'), Uint8Array.from([0, 1, 2]));
    const { code, out } = await conclave('replay', folder, '--expert-cache', 'lfu', '--expert-cache', 'static:1');
    assert.equal(code, 0);
    const [first, second, , , head, ...rows] = out.split('\n');
    assert.match(first, /\/two\\nlines: 3 tokens, .*, of a\\tb\\x0d\\n\\x1b\[31mc$/);
    assert.match(second, /^the busier half /);
    assert.match(head, /^policy /);
    // An eighth of four experts is none, a quarter is one.
    assert.deepEqual(
      rows.slice(0, 4).map((row) => row.split(/ +/).slice(0, 2).join(' ')),
      ['lfu 1', 'lfu 2', 'static 1', ''],
    );
  } finally {
    rmSync(root, { recursive: true });
  }
});

test('a damaged trace is told by file and token', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'conclave-trace-'));
  try {
    writeFileSync(join(folder, 'trace.json'), '{"layers":1,"experts":4,"used":2,"tokens":2}');
    writeFileSync(join(folder, 'trace.bin'), Uint8Array.from([0, 1, 2, 2]));
    const { code, err } = await conclave('replay', folder);
    assert.equal(code, 1);
    assert.match(err, /trace\.bin: at token 1, layer 0, rank 1 stands expert 2 a second time/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
