/** What is asked of slots beside their number: what comes to them first, and what stays. Refused where there is nothing to say. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { aCard as adapter, type DeviceOptions, planFor } from '../../test/support/device.ts';
import { familyModel, type PlannedModel } from '../../test/support/planned-models.ts';
import { UsageError } from '../errors.ts';
import { explain } from './explain.ts';

const onGpu = (more: DeviceOptions): DeviceOptions => ({ context: 64, device: 'gpu', adapter, ...more });

const refused = (model: PlannedModel, more: DeviceOptions, message: RegExp, option: string) =>
  assert.throws(
    () => planFor(model, { context: 64, adapter, ...more }),
    (error) => error instanceof UsageError && message.test(error.message) && error.data.option === option,
    JSON.stringify(more),
  );

test('say what comes to them first and what stays, where that was asked for', async () => {
  const glm = await familyModel('glm4moe');
  const said = (more: DeviceOptions) => {
    const plan = planFor(glm, onGpu({ expertCache: 'lfu:8', ...more }));
    assert.ok(plan.experts !== undefined);
    return { ...plan.experts, text: explain(plan).replaceAll(/\s+/g, ' ') };
  };
  for (const off of [{}, { expertPrefetch: 'off' }] as const) {
    assert.deepEqual([said(off).prefetch, said(off).pins], ['off', 0]);
    assert.doesNotMatch(said(off).text, /come first|kept for good/);
  }
  assert.match(said({ expertPrefetch: 'previous' }).text, / first that a layer used in the step before /);
  assert.match(
    said({ expertPrefetch: 'gate' }).text,
    / first that a layer's router names on what the layer before it leaves /,
  );
  for (const [expertPin, pins] of [
    ['1', 1],
    ['8', 8],
    ['25%', 2],
    ['100%', 8],
  ] as const) {
    const { text, ...made } = said({ expertPin });
    assert.equal(made.pins, pins);
    assert.match(text, new RegExp(` ${pins} slots? kept for good `));
  }
});

test('what is said of slots, where there is nothing to be said', async () => {
  const glm = await familyModel('glm4moe');
  const gpu = { device: 'gpu', expertCache: 'lfu:8' } as const;
  for (const [asked, option, flag] of [
    [{ expertPrefetch: 'previous' }, 'expertPrefetch', '--expert-prefetch'],
    [{ expertPrefetch: 'gate' }, 'expertPrefetch', '--expert-prefetch'],
    [{ expertPin: '25%' }, 'expertPin', '--expert-pin'],
  ] as const) {
    const says = (why: string) => new RegExp(`^${option} \\(${flag}\\): ${why}`);
    refused(glm, { device: 'gpu', ...asked }, says('of use only where experts are split'), option);
    refused(glm, { device: 'cpu', ...asked }, says('of use only where experts are split'), option);
    refused(glm, { device: 'gpu', cpuMoe: true, ...asked }, says('no expert has a slot on the GPU'), option);
    refused(glm, { ...gpu, expertCache: 'static:8', ...asked }, says('what lies in static slots stays'), option);
    planFor(glm, onGpu({ ...gpu, ...asked }));
  }
  // Only one layer with experts is on the GPU.
  refused(
    glm,
    { ...gpu, expertCache: 'lfu:3', gpuLayers: 2, expertPrefetch: 'gate' },
    /none whose router can be asked ahead/,
    'expertPrefetch',
  );
  planFor(glm, onGpu({ ...gpu, expertCache: 'lfu:3', gpuLayers: 2, expertPrefetch: 'previous' }));
  for (const [expertPin, why] of [
    ['9', /9 slots of 8 slots are more than there are; ask for 1 to 8$/],
    ['1%', /1% of 8 slots are not one/],
    ['0', /^--expert-pin expects a number of slots \(64\) or a per cent of them \(25%\), found "0"$/],
    ['1GiB', /^--expert-pin expects/],
    ['101%', /^--expert-pin expects/],
  ] as const) {
    refused(glm, { ...gpu, expertPin }, why, 'expertPin');
  }
});
