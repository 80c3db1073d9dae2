/** What the bad-files suite does with a file: open it as far as a person's program would, then use it. */

import { statSync } from 'node:fs';
import { join } from 'node:path';
import { openModelFile } from '../../src/format/open.ts';
import { readModel } from '../../src/model/read-model.ts';
import { readTokenizer } from '../../src/tokenizer/index.ts';
import { nodeModelSource } from '../support/node-source.ts';

/** Opens the model at `path`, a file or a folder with an index, and closes it. */
export async function openCase(path: string): Promise<void> {
  const file = statSync(path).isDirectory() ? join(path, 'model.safetensors.index.json') : path;
  const source = await nodeModelSource(file);
  let close = () => source.file.close();
  try {
    const model = await openModelFile(source);
    close = () => model.close();
    readTokenizer(model.metadata, model.name);
    readModel(model);
  } finally {
    await close();
  }
}
