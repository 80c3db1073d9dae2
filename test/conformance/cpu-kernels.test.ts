/**
 * Law 2 over the CPU's own table: what a row states it takes is served by that row, what lies just outside is refused
 * with a reason, and where no row is left `select` names each one that was tried. A row that has no cases fails here;
 * the runs of each operation are in the files beside this one.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cpuFormats } from '../../src/backend/cpu/formats.ts';
import { cpuRows } from '../../src/backend/cpu/rows.ts';
import type { KernelRequest } from '../../src/backend/kernel.ts';
import { referenceRows } from '../../src/backend/reference/rows.ts';
import { Refusal } from '../../src/errors.ts';
import { select } from '../../src/plan/select.ts';
import { formats } from '../../src/quant/index.ts';
import { casesOf, requestFor } from './support/requests.ts';

const modes = ['prompt', 'step'] as const;

function refusal(request: KernelRequest): Refusal | undefined {
  try {
    select(cpuRows, request);
    return undefined;
  } catch (error) {
    assert.ok(error instanceof Refusal);
    return error;
  }
}

describe('the CPU table', () => {
  test('names each row once, and serves every operation that the reference serves, with every format', () => {
    assert.equal(new Set(cpuRows.map(({ name }) => name)).size, cpuRows.length);
    assert.deepEqual(
      new Set(cpuRows.map(({ operation }) => operation)),
      new Set(referenceRows.map(({ operation }) => operation)),
    );
    assert.deepEqual(cpuFormats.map(({ id }) => id).sort(), formats.map(({ id }) => id).sort());
    assert.ok(cpuRows.every(({ device }) => device === 'cpu'));
  });

  test('holds every tolerance to what its arithmetic allows, with a reason', () => {
    for (const { name, tolerance } of cpuRows) {
      assert.ok([1e-6, 1e-4, 2e-3, 1e-2].includes(tolerance.relativeRms), `${name}: ${tolerance.relativeRms}`);
      assert.ok(tolerance.reason.length > 10, `${name}: a tolerance without a reason`);
    }
  });

  test('needs SIMD and shared memory, and says so', () => {
    for (const row of cpuRows) {
      const [request] = casesOf(row).accepted as readonly [KernelRequest];
      for (const missing of ['simd', 'threads']) {
        const features = new Set([...request.features].filter((feature) => feature !== missing));
        const error = refusal({ ...request, features });
        assert.ok(
          error?.reasons.every(({ reason }) => reason.includes(`WebAssembly ${missing}`) || /found|takes/.test(reason)),
          row.name,
        );
        assert.match(String(row.accepts({ ...request, features })), new RegExp(`needs WebAssembly ${missing}`));
      }
    }
  });
});

for (const row of cpuRows) {
  test(`${row.name}: serves what it states and refuses what lies outside`, () => {
    const { accepted, refused } = casesOf(row);
    assert.ok(accepted.length > 0);
    for (const given of accepted) {
      for (const mode of modes) {
        const request = { ...given, mode, rows: mode === 'prompt' ? 512 : 64 };
        assert.equal(row.accepts(request), true);
        assert.equal(select(cpuRows, request).name, row.name);
      }
    }
    for (const { request, reason } of refused) {
      const answer = row.accepts(request);
      assert.ok(typeof answer === 'string', `${row.name} takes ${JSON.stringify(request.weights)}`);
      assert.match(answer, reason);
      const rows = cpuRows.filter(({ operation }) => operation === row.operation);
      const error = refusal(request);
      if (rows.some((other) => other.accepts(request) === true)) {
        assert.equal(error, undefined);
        continue;
      }
      assert.deepEqual(
        error?.reasons.map(({ row: name }) => name),
        rows.map(({ name }) => name),
      );
      for (const { row: name, reason: why } of error?.reasons ?? [])
        assert.ok(error?.message.includes(`${name}: ${why}`));
    }
  });
}

test('a mode that a row does not state is a reason of its own', () => {
  const [first] = cpuRows;
  assert.ok(first !== undefined);
  const rows = [{ ...first, modes: ['prompt'] as const }];
  const [given] = casesOf(first).accepted;
  assert.throws(
    () => select(rows, { ...(given as KernelRequest), mode: 'step' }),
    (error: unknown) => error instanceof Refusal && error.reasons[0]?.reason === 'serves prompt rows, not step rows',
  );
});

test('an operation that no row serves is refused with nothing tried', () => {
  const operation = { kind: 'sample', layer: 0, output: 'y' } as unknown as KernelRequest['operation'];
  assert.deepEqual(refusal(requestFor(operation))?.reasons, []);
});
