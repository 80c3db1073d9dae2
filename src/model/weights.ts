/** Weights as a backend sees them: logical names bound to what the file holds. */

import type { TensorInfo } from '../format/model-file.ts';
import type { FormatId } from '../quant/index.ts';
import type { WeightName } from './graph.ts';

export interface Weight {
  readonly name: WeightName;
  readonly format: FormatId;
  /** Row-major, outermost first; see the table in `spec.ts`. */
  readonly shape: readonly number[];
  /** The file's tensors that make it up, in order; several are stacked along the outermost axis. */
  readonly parts: readonly TensorInfo[];
  readonly bytes: number;
  /** Its bytes are gathered, as they are read, from where the file has them: codes beside scales, rows in turns. */
  readonly gathered?: true;
}

/** The matrices of a routed expert; a layer's are stacked. */
export type ExpertPart = 'gate' | 'up' | 'down';

/** What of a MoE layer's weights is added or multiplied element by element, by the names under its prefix; the rest are matrices. */
export const expertVectors: ReadonlySet<string> = new Set([
  'selectionBias',
  'expertScale',
  'router.bias',
  'gate.bias',
  'up.bias',
  'down.bias',
  'gateScale',
  'outputScale',
]);

export type Weights = ReadonlyMap<WeightName, Weight>;
