/**
 * Writes a model of random weights in a real model's shape, for measuring speed without the real one:
 *
 *     node bench/synthetic.ts qwen3-30b-a3b-6l model.gguf
 */

import { shapes } from '../src/synthetic/shapes.ts';
import { writeSynthetic } from './synthetic/write.ts';

const [name, path, ...rest] = process.argv.slice(2);

if (name === undefined || path === undefined || rest.length > 0 || !Object.hasOwn(shapes, name)) {
  console.error(`usage: node bench/synthetic.ts SHAPE OUT.gguf\nshapes: ${Object.keys(shapes).join(', ')}`);
  process.exitCode = 2;
} else {
  const start = performance.now();
  const bytes = await writeSynthetic(name, path);
  const seconds = (performance.now() - start) / 1000;
  const megabytes = bytes / 1e6;
  console.log(
    `${path}: ${megabytes.toFixed(0)} MB in ${seconds.toFixed(1)} s (${(megabytes / seconds).toFixed(0)} MB/s)`,
  );
}
