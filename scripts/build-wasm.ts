/**
 * Compiles the CPU kernels (AssemblyScript) to WebAssembly, into `build/`: without relaxed SIMD, with its products of bytes in
 * pairs, and with its products that are added to a sum (`DOT_SUM` in the sources), which many processors have as one
 * instruction and the others as several. Does nothing when the outputs are newer than every source.
 */

import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const sources = join(root, 'src/backend/cpu/assembly');
const output = join(root, 'build');
const variants = [
  { file: 'conclave-dot.wasm', features: ['simd', 'threads', 'relaxed-simd'], dotSum: true },
  { file: 'conclave-relaxed.wasm', features: ['simd', 'threads', 'relaxed-simd'], dotSum: false },
  { file: 'conclave-simd.wasm', features: ['simd', 'threads'], dotSum: false },
];

/**
 * Binaryen's usual passes move a kernel's expressions to where they are used, and V8 keeps the order it is given: it then
 * writes to memory what no longer fits into registers. These passes keep the order of the source.
 */
const PASSES = ['simplify-globals', 'inlining', 'merge-blocks', 'vacuum', 'coalesce-locals', 'reorder-locals'];

const DATA_SECTION = 11;
const newest = Math.max(
  statSync(fileURLToPath(import.meta.url)).mtimeMs,
  ...readdirSync(sources, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => statSync(join(entry.parentPath, entry.name)).mtimeMs),
);
const compiler = join(dirname(createRequire(import.meta.url).resolve('assemblyscript/package.json')), 'bin/asc.js');
mkdirSync(output, { recursive: true });
for (const { file, features, dotSum } of variants) {
  const target = join(output, file);
  const made = statSync(target, { throwIfNoEntry: false });
  if (made !== undefined && made.mtimeMs > newest) continue;
  execFileSync(
    process.execPath,
    [
      compiler,
      join(sources, 'index.ts'),
      '--outFile',
      target,
      '--runtime',
      'stub',
      '--noAssert',
      '-O0',
      '--runPasses',
      PASSES.join(','),
      '--importMemory',
      '--sharedMemory',
      '--initialMemory',
      '1',
      '--maximumMemory',
      '65536',
      '--noColors',
      '--use',
      `DOT_SUM=${dotSum ? 1 : 0}`,
      ...features.flatMap((feature) => ['--enable', feature]),
    ],
    { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] },
  );
  // An instance writes its static data into the arena it is given, over what lies there.
  if (sectionsOf(readFileSync(target)).includes(DATA_SECTION)) {
    rmSync(target);
    console.error(`${file} has static data; kernels must do without (tables, strings, Math.exp and its like)`);
    process.exit(1);
  }
}

/** Ids of a module's sections (WebAssembly core specification, 5.5). */
function sectionsOf(bytes: Uint8Array): number[] {
  const ids: number[] = [];
  let at = 8;
  while (at < bytes.length) {
    ids.push(bytes[at++] as number);
    let length = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[at++] as number;
      length |= (byte & 127) << shift;
      if (byte < 128) break;
    }
    at += length;
  }
  return ids;
}
