/** The row type of the CPU's kernel table: a kernel row that also says which tasks serve its operation. */

import type { Operation } from '../../model/graph.ts';
import type { KernelRow } from '../kernel.ts';
import type { Builder } from './builder.ts';

export interface CpuRow extends KernelRow {
  /** Emits the tasks of an operation that `accepts` has accepted. */
  emit(operation: Operation, builder: Builder): void;
}
