/** Who is in slots as runs see it: an expert that leaves is gone before another one comes, and comes only when it is there. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { random } from '../../../test/conformance/support/blocks.ts';
import { ExpertCache } from '../../experts/cache.ts';
import type { PolicyName } from '../../experts/policies.ts';
import { type PredictorName, Prefetch } from '../../experts/prefetch.ts';
import type { Mode } from '../kernel.ts';
import { CachedResidency, type Placing } from './residency.ts';

const EXPERTS = 8;
const groups = [
  { layers: [0, 2], slots: 3 },
  { layers: [1], slots: 2 },
] as const;
const LAYERS = [0, 1, 2] as const;
const groupOf = (layer: number) => groups.findIndex(({ layers }) => (layers as readonly number[]).includes(layer));

function residencyOf(policy: PolicyName, uploads = 1, foreseenBy?: PredictorName): CachedResidency {
  const cache = new ExpertCache({ policy, experts: EXPERTS, groups });
  return new CachedResidency(cache, uploads, foreseenBy && new Prefetch(cache, foreseenBy));
}

/** Experts by where they are seen. */
function seen(residency: CachedResidency): Map<string, { readonly layer: number; readonly expert: number }> {
  const found = new Map<string, { layer: number; expert: number }>();
  for (const layer of LAYERS) {
    for (let expert = 0; expert < EXPERTS; expert++) {
      const slot = residency.slotOf(layer, expert);
      if (slot === undefined) continue;
      const key = `${groupOf(layer)} ${slot}`;
      assert.ok(!found.has(key), `slot ${key} is said to hold two experts`);
      assert.ok(slot < (groups[groupOf(layer)]?.slots ?? 0));
      found.set(key, { layer, expert });
    }
  }
  return found;
}

/** What the device was told: the tables of layers that have changed since. */
class Device {
  readonly tables = new Map<number, (number | undefined)[]>(LAYERS.map((layer) => [layer, []]));
  readonly slots = new Map<string, string>();

  tell(residency: CachedResidency): void {
    for (const layer of residency.changed()) {
      this.tables.set(
        layer,
        Array.from({ length: EXPERTS }, (_, expert) => residency.slotOf(layer, expert)),
      );
    }
  }

  carry(placings: readonly Placing[]): void {
    for (const { layer, expert, slot } of placings) this.slots.set(`${groupOf(layer)} ${slot}`, `${layer} ${expert}`);
  }

  /** No table names a slot in which something else lies. */
  check(): void {
    for (const [layer, table] of this.tables) {
      for (const [expert, slot] of table.entries()) {
        if (slot !== undefined) assert.equal(this.slots.get(`${groupOf(layer)} ${slot}`), `${layer} ${expert}`);
      }
    }
  }
}

describe('residency', () => {
  for (const [policy, foreseenBy] of [
    ['slru', undefined],
    ['lfu', undefined],
    ['static', undefined],
    ['lru', undefined],
    ['slru', 'gate'],
    ['lfu', 'previous'],
  ] as const) {
    test(`${policy}${foreseenBy === undefined ? '' : `, prefetching (${foreseenBy})`}: what the device is told is true whenever something is submitted`, () => {
      const next = random(policy.length);
      const residency = residencyOf(policy, 2, foreseenBy);
      const device = new Device();
      const bring = (placings: readonly Placing[], fails: boolean) => {
        device.tell(residency);
        // From here on the slots are written.
        device.carry(placings);
        device.check();
        for (const { layer, expert } of placings) assert.equal(residency.slotOf(layer, expert), undefined);
        if (fails) residency.abort();
        else residency.commit();
        device.tell(residency);
        device.check();
      };
      bring(residency.fill(), false);
      assert.equal(seen(residency).size, 5);
      let brought = 0;
      for (let run = 0; run < 2000; run++) {
        const mode = run % 10 === 9 ? 'prompt' : 'step';
        const rows = mode === 'prompt' ? 1 + Math.floor(next() * 20) : 1 + (run % 3);
        const placings = mode === 'step' ? residency.begin(mode, rows) : [];
        assert.ok(placings.length <= 2);
        brought += placings.length;
        device.tell(residency);
        const before = seen(residency);
        for (const layer of LAYERS) {
          const ids = Int32Array.from({ length: 2 * rows }, () => Math.floor(EXPERTS * next() ** 2));
          residency.chosen(layer, ids, { mode, rows });
          if (mode === 'step')
            residency.named(
              layer,
              [next(), next()].map((x) => Math.floor(EXPERTS * x)),
              2,
            );
        }
        assert.deepEqual(seen(residency), before, 'nothing moves while a run is under way');
        if (run % 50 === 7) {
          // The run fails, and is not counted.
          bring(placings, true);
          continue;
        }
        residency.ended({ mode, rows });
        bring(placings, false);
        if (mode === 'step') continue;
        const after = residency.begin(mode, rows);
        assert.ok(after.length <= rows);
        bring(after, run % 3 === 0);
      }
      if (policy === 'static') assert.equal(brought, 0);
      else assert.ok(brought > 500, `${brought} were brought`);
      assert.ok(seen(residency).size >= 3);
    });
  }

  test('what is foreseen comes before what was only missed, in steps', () => {
    const firstOf = (mode: Mode, foreseenBy?: PredictorName) => {
      const residency = residencyOf('lfu', 1, foreseenBy);
      residency.fill();
      residency.commit();
      // Expert 5 of layer 1 is missed often, then 6 once.
      for (const expert of [5, 5, 5, 6]) {
        residency.chosen(1, [expert], { mode: 'step', rows: 1 });
        residency.ended({ mode: 'step', rows: 1 });
      }
      return residency.begin(mode, 2)[0]?.expert;
    };
    assert.deepEqual([firstOf('step'), firstOf('prompt')], [5, 5]);
    assert.deepEqual([firstOf('step', 'previous'), firstOf('prompt', 'previous')], [6, 5]);
  });

  test('a layer without slots has no experts in any, and may be used', () => {
    const cache = new ExpertCache({ policy: 'slru', experts: EXPERTS, groups: [] });
    const residency = new CachedResidency(cache, 1);
    residency.chosen(0, [1, 2], { mode: 'step', rows: 1 });
    residency.ended({ mode: 'step', rows: 1 });
    assert.deepEqual(residency.fill(), []);
    assert.deepEqual(residency.begin('step', 1), []);
    assert.equal(residency.slotOf(0, 1), undefined);
    assert.deepEqual(residency.changed(), []);
  });
});
