/** Which values an operation reads; the one place that knows the operations' fields by what they name. */

import type { Operation, ValueName } from './graph.ts';

/** Every value that an operation reads. */
export function inputsOf(operation: Operation): readonly ValueName[] {
  switch (operation.kind) {
    case 'embed':
    case 'incoming':
      return [];
    case 'attention':
      if (operation.rotated !== undefined) return [operation.query];
      return [operation.query, operation.key, ...(operation.value === undefined ? [] : [operation.value])];
    case 'glu':
      return [operation.gate, operation.up];
    case 'add':
    case 'concat':
      return [operation.left, operation.right];
    case 'gate':
      return [operation.input, operation.gate];
    case 'moe':
      return [operation.input, operation.routerInput, operation.add].filter((name) => name !== undefined);
    case 'project':
      return operation.add === undefined ? [operation.input] : [operation.input, operation.add];
    case 'norm':
    case 'linear':
    case 'headLinear':
    case 'rope':
    case 'scale':
    case 'head':
    case 'gated':
    case 'rotate':
    case 'experts':
      return [operation.input];
  }
}
