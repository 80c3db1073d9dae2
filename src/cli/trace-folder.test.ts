import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { RoutingTrace } from '../experts/trace.ts';
import { nodePlatform } from '../platform/node.ts';
import { createTraceFolder } from './trace-folder.ts';

const root = mkdtempSync(join(tmpdir(), 'conclave-trace-'));
after(() => rmSync(root, { recursive: true }));
const shape = { layers: 2, experts: 300, used: 1, model: 'fake' };

test('what is recorded bit by bit is a trace when it is finished, not before', async () => {
  const path = join(root, 'made', 'here');
  const folder = await createTraceFolder(path);
  const writer = folder.writer(shape);
  await writer.add([1, 299]);
  await writer.add([2, 3, 256, 257]);
  await assert.rejects(nodePlatform.openSource(join(path, 'trace.json')), { name: 'SourceError' });
  await folder.finish(writer);
  const trace = await RoutingTrace.open(await nodePlatform.openSource(join(path, 'trace.json')));
  assert.deepEqual(trace.shape, { ...shape, tokens: 3, expertBytes: undefined });
  const block = await trace.read(0, 3);
  assert.deepEqual(
    [0, 1, 2].map((token) => [...block.ids(token, 0), ...block.ids(token, 1)]),
    [
      [1, 299],
      [2, 3],
      [256, 257],
    ],
  );
  await trace.close();
});

test('a trace that failed leaves nothing, and another may take its place', async () => {
  const path = join(root, 'failed', 'below');
  const folder = await createTraceFolder(path);
  await folder.writer(shape).add([1, 2]);
  await folder.discard();
  assert.ok(!existsSync(join(root, 'failed')));
  const other = await createTraceFolder(path);
  writeFileSync(join(root, 'failed', 'of another'), '');
  await other.discard();
  assert.deepEqual(readdirSync(join(root, 'failed')), ['of another']);
  // A folder that was there stays.
  mkdirSync(path);
  await (await createTraceFolder(path)).discard();
  assert.deepEqual(readdirSync(path), []);
});

test('a trace is never written over', async () => {
  const path = join(root, 'taken');
  const folder = await createTraceFolder(path);
  await folder.finish(folder.writer(shape));
  await assert.rejects(createTraceFolder(path), {
    name: 'UsageError',
    message: /there is a trace in it already/,
  });
});

test('where nothing can be written is said', async () => {
  writeFileSync(join(root, 'file'), '');
  await assert.rejects(createTraceFolder(join(root, 'file')), {
    name: 'SourceError',
    message: /file: cannot be written: /,
  });
});

test('a file of a trace that is in the way is told before anything is recorded, and stays', async () => {
  for (const name of ['trace.json', 'trace.bin']) {
    for (const kind of ['file', 'link to nowhere', 'folder']) {
      const path = join(root, `${name} ${kind}`);
      mkdirSync(path);
      if (kind === 'file') writeFileSync(join(path, name), 'x');
      else if (kind === 'folder') mkdirSync(join(path, name));
      else symlinkSync(join(root, 'nowhere'), join(path, name));
      await assert.rejects(createTraceFolder(path), { name: 'UsageError', message: new RegExp(`\\(${name}\\)`) });
      assert.deepEqual(readdirSync(path), [name]);
    }
  }
  await assert.rejects(createTraceFolder(''), { name: 'UsageError', message: /is empty/ });
});

test('of a shape that cannot be written nothing is left, and what another put there is', async () => {
  const path = join(root, 'unwritable');
  mkdirSync(path);
  const folder = await createTraceFolder(path);
  const writer = folder.writer(shape);
  const unwritable = Object.assign(Object.create(writer), { json: () => ({}) });
  await assert.rejects(folder.finish(unwritable), { name: 'SourceError', message: /trace\.json: cannot be written/ });
  await folder.discard();
  assert.deepEqual(readdirSync(path), []);

  const other = await createTraceFolder(path);
  writeFileSync(join(path, 'trace.json'), 'x');
  await assert.rejects(other.finish(other.writer(shape)), { name: 'UsageError' });
  await other.discard();
  assert.deepEqual(readdirSync(path), ['trace.json']);
});

test('a folder that takes no folders is an error, not a wait', async () => {
  symlinkSync(join(root, 'nowhere'), join(root, 'dangling'));
  const paths = [join(root, 'dangling', 'a', 'b'), join(root, 'dangling')];
  // Where there is none, the path is a folder like any other.
  if (existsSync('/proc/self')) paths.push('/proc/conclave/trace');
  for (const path of paths) {
    await assert.rejects(createTraceFolder(path), { name: 'SourceError', message: /cannot be written/ });
  }
});
