/** Which values an operation reads; the one place that knows the operations' fields by what they name. */

import type { Operation, ValueName } from './graph.ts';

/** Every value that an operation reads. */
export function inputsOf(operation: Operation): readonly ValueName[] {
  switch (operation.kind) {
    case 'embed':
    case 'incoming':
      return [];
    case 'attention':
      return operation.rotated ? [operation.query] : [operation.query, operation.key, operation.value];
    case 'glu':
      return [operation.gate, operation.up];
    case 'add':
    case 'concat':
      return [operation.left, operation.right];
    case 'project':
    case 'moe':
      return operation.add === undefined ? [operation.input] : [operation.input, operation.add];
    case 'norm':
    case 'linear':
    case 'rope':
    case 'head':
    case 'gated':
    case 'rotate':
    case 'experts':
      return [operation.input];
  }
}
