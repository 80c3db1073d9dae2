/** The row type of the GPU's kernel table: a kernel row that also says which dispatches serve its operation. */

import type { Operation } from '../../model/graph.ts';
import type { KernelRow, Mode } from '../kernel.ts';
import type { Builder } from './builder.ts';

export interface GpuRow extends KernelRow {
  readonly device: 'gpu';
  /** Emits the dispatches of an operation that `accepts` has accepted, for runs of one mode. */
  emit(operation: Operation, builder: Builder, mode: Mode): void;
}
