/**
 * Which room of src/ may import which: the table behind `npm run imports`. Imports run one way; a room that may only
 * name another's types says so. A room that is not in the table is a violation, so that a new one gets its line here.
 */

export interface Room {
  /** A folder or a file of src/. The first line that fits a file is its room. */
  readonly path: string;
  /** Rooms it may import, values and types. Its own room always. */
  readonly imports: readonly string[];
  /** Rooms of which it may `import type` only. */
  readonly types?: readonly string[];
  /** Packages it may import; `node:` stands for Node's own modules. */
  readonly packages?: readonly string[];
}

/** The seam to the platform: its interfaces, the choice of the platform, and the inside of a worker. */
const seam = ['platform/platform.ts', 'platform/index.ts', 'platform/worker-port.ts'];

export const rooms: readonly Room[] = [
  { path: 'errors.ts', imports: [] },
  { path: 'platform/platform.ts', imports: ['errors.ts'], types: ['format'] },
  { path: 'platform/worker-port.ts', imports: ['errors.ts', 'platform/platform.ts', 'platform'], packages: ['node:'] },
  { path: 'platform/index.ts', imports: ['errors.ts', 'platform/platform.ts', 'platform'], types: ['format'] },
  {
    path: 'platform',
    imports: ['errors.ts', 'format', 'platform/platform.ts', 'platform/worker-port.ts'],
    packages: ['node:', 'webgpu'],
  },
  { path: 'quant', imports: ['errors.ts'] },
  { path: 'format', imports: ['errors.ts', 'quant'] },
  { path: 'synthetic', imports: ['errors.ts', 'quant', 'format'] },
  {
    path: 'tokenizer',
    imports: ['errors.ts', 'format', ...seam],
    packages: ['@huggingface/jinja', '@huggingface/tokenizers'],
  },
  { path: 'model', imports: ['errors.ts', 'quant', 'format'] },
  { path: 'experts', imports: ['errors.ts', 'quant', 'format'] },
  {
    path: 'backend',
    imports: ['errors.ts', 'quant', 'format', 'model', 'experts', ...seam],
    // A backend is handed a plan; it never makes one.
    types: ['plan'],
  },
  { path: 'plan', imports: ['errors.ts', 'quant', 'format', 'model', 'experts', 'backend'] },
  {
    path: 'engine',
    imports: ['errors.ts', 'quant', 'format', 'tokenizer', 'model', 'experts', 'backend', 'plan', ...seam],
  },
  {
    path: 'index.ts',
    imports: ['errors.ts', 'quant', 'format', 'tokenizer', 'model', 'backend', 'plan', 'engine', ...seam],
  },
  { path: 'server', imports: ['errors.ts', 'tokenizer', 'engine', 'plan', 'index.ts'] },
  {
    path: 'cli',
    imports: [
      'errors.ts',
      'quant',
      'format',
      'synthetic',
      'tokenizer',
      'model',
      'experts',
      'backend',
      'plan',
      'engine',
      'server',
      'index.ts',
      'platform',
      ...seam,
    ],
    packages: ['node:'],
  },
];

/** Words that name a device, which nothing under src/model may do (comments aside). */
export const deviceWords = /\b(?:cpu|gpu|webgpu|wgsl|wasm|simd|cuda|vulkan|metal)\b/i;
