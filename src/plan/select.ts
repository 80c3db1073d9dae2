/** Picks the kernel row that serves a request, or refuses with every row's reason. The only support check there is. */

import { answerOf, type KernelRequest, type KernelRow } from '../backend/kernel.ts';
import { Refusal, type RefusalReason } from '../errors.ts';

/**
 * The first row, in table order, that accepts `request`.
 * @throws Refusal `refused` with the reason of each row of that operation.
 */
export function select<Row extends KernelRow>(rows: readonly Row[], request: KernelRequest): Row {
  const reasons: RefusalReason[] = [];
  for (const row of rows) {
    if (row.operation !== request.operation.kind) continue;
    const answer = answerOf(row, request);
    if (answer === true) return row;
    reasons.push({ row: row.name, reason: answer });
  }
  const weights = Object.entries(request.weights).map(
    ([name, { format, shape }]) => `${name} ${format} [${shape.join(', ')}]`,
  );
  const device = rows[0]?.device ?? 'device';
  throw new Refusal(
    `no ${device} kernel serves ${request.operation.kind} → ${request.operation.output}` +
      ` (${request.mode}, up to ${request.rows} rows${weights.length > 0 ? `; ${weights.join(', ')}` : ''}); tried:`,
    { reasons, data: { operation: request.operation.kind, output: request.operation.output, mode: request.mode } },
  );
}
