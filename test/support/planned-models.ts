/** Models as plans see them: read, and without their weights. */

import { openModelFile } from '../../src/format/open.ts';
import type { ModelSource } from '../../src/format/source.ts';
import { buildGraph } from '../../src/model/decoder.ts';
import { readModel } from '../../src/model/read-model.ts';
import { syntheticModel } from '../../src/synthetic/source.ts';
import type { DeviceModel } from './device.ts';
import { familyFile } from './families.ts';
import { nodeModelSource } from './node-source.ts';

export type PlannedModel = Pick<DeviceModel, 'spec' | 'weights' | 'graph'>;

async function read(source: ModelSource): Promise<PlannedModel> {
  const file = await openModelFile(source);
  await file.close();
  const { spec, weights } = readModel(file);
  return { spec, weights, graph: buildGraph(spec) };
}

/** The tiny model of a family. */
export async function familyModel(name: string): Promise<PlannedModel> {
  return read(await nodeModelSource(familyFile(name, 'model.gguf')));
}

/** Of 30 billion parameters: 48 layers of 128 experts. */
export function largeModel(): Promise<PlannedModel> {
  return read(syntheticModel('qwen3-30b-a3b'));
}
