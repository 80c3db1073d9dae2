/** Builds what is published: JavaScript and declarations of src/ in dist/, and the WASM kernels in dist/build/. */

import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { buildSync } from 'esbuild';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');

/** What every build of the kernels must have left in build/. */
const assets = ['conclave-dot.wasm', 'conclave-relaxed.wasm', 'conclave-simd.wasm'];

function node(...args: string[]): void {
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

/** Paths of all files below `folder`. */
function filesBelow(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
}

/** The compiler rewrites './x.ts' to './x.js' in JavaScript but not in declarations. */
function rewriteDeclarations(): void {
  for (const path of filesBelow(dist).filter((name) => name.endsWith('.d.ts'))) {
    const text = readFileSync(path, 'utf8');
    writeFileSync(path, text.replaceAll(/((?:from|import)\s*\(?\s*['"]\.[^'"]*)\.ts(['"])/g, '$1.js$2'));
  }
}

function copyAssets(): void {
  const target = join(dist, 'build');
  mkdirSync(target, { recursive: true });
  for (const name of assets) copyFileSync(join(root, 'build', name), join(target, name));
}

/**
 * Node's workers as one file each: a worker that reads one module instead of forty starts in two thirds of the time. A
 * browser's bundler does the same with the modules as they are.
 */
function bundleWorkers(): void {
  buildSync({
    entryPoints: [
      'engine/engine-worker.js',
      'backend/cpu/cpu-worker.js',
      'backend/gpu/plane-worker.js',
      'tokenizer/template-worker.js',
    ].map((path) => join(dist, path)),
    outdir: join(dist, 'workers'),
    entryNames: '[name]',
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node22',
    packages: 'external',
    logLevel: 'warning',
  });
}

rmSync(dist, { recursive: true, force: true });
node(join(root, 'scripts', 'build-wasm.ts'));
node(join(root, 'node_modules', 'typescript', 'bin', 'tsc'), '-p', 'tsconfig.build.json');
rewriteDeclarations();
copyAssets();
bundleWorkers();
console.error(`dist: ${filesBelow(dist).length} files`);
