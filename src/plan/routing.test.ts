import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { fakePlan } from '../../test/support/fake-model.ts';
import { Refusal, UsageError } from '../errors.ts';
import type { FeedForwardSpec, ModelSpec } from '../model/spec.ts';
import type { DeviceName, Plan, PlannedExperts } from './plan.ts';
import { checkRoutingUse, type GivenTrace, routedModel, whyUnseen } from './routing.ts';

const norm = { epsilon: 1e-5 };
const moe = (experts = 16, used = 4): FeedForwardSpec => ({
  kind: 'moe',
  norm,
  moe: {
    experts,
    used,
    inner: 128,
    activation: 'silu',
    router: { gating: 'softmax', selectionBias: false, normalise: true, scale: 1 },
  },
});
const dense: FeedForwardSpec = { kind: 'dense', norm, inner: 256, activation: 'silu' };

/** A model with these layers, each on a device; `split`: layers whose experts are split. */
function planned(layers: readonly (readonly [FeedForwardSpec, DeviceName])[], split?: readonly number[]) {
  const { plan, spec } = fakePlan();
  const layered = layers.map(([feedForward]) => ({ feedForward })) as unknown as ModelSpec['layers'];
  const operations = layers.map(([{ kind }, device], layer): Plan['operations'][number] => ({
    layer,
    kind: kind === 'moe' ? 'moe' : 'glu',
    output: `layers.${layer}`,
    device,
    rows: { prompt: 'row', step: 'row' },
  }));
  const experts = split && ({ layers: split } as PlannedExperts);
  return { plan: { ...plan, operations, experts }, spec: { ...spec, layers: layered } };
}

const trace = (shape: Partial<GivenTrace> = {}): GivenTrace => ({
  layers: 2,
  experts: 16,
  used: 4,
  ids: new Uint16Array(16),
  ...shape,
});
const use = ({ plan, spec }: ReturnType<typeof planned>, asked: Parameters<typeof checkRoutingUse>[2]) =>
  checkRoutingUse(plan, spec, asked);

test('layers on the CPU, on the reference and with split experts let the host know what they choose, whole ones on a GPU do not', () => {
  const { plan, spec } = planned(
    [
      [dense, 'gpu'],
      [moe(), 'gpu'],
      [moe(), 'gpu'],
      [moe(), 'cpu'],
      [moe(), 'reference'],
    ],
    [2],
  );
  const routed = routedModel(plan, spec);
  assert.deepEqual(routed, { layers: [1, 2, 3, 4], experts: 16, used: 4, seen: [2, 3, 4] });
  assert.match(whyUnseen(plan, routed) as string, /^1 of its 4 layers with experts are whole on the GPU/);
});

describe('what cannot be done is named', () => {
  const onCpu = planned([
    [moe(), 'cpu'],
    [moe(), 'cpu'],
  ]);
  const onGpu = planned([
    [moe(), 'gpu'],
    [moe(), 'gpu'],
  ]);
  const half = planned([
    [moe(), 'gpu'],
    [moe(), 'cpu'],
  ]);
  const split = planned(
    [
      [moe(), 'gpu'],
      [moe(), 'gpu'],
    ],
    [0, 1],
  );
  const withoutExperts = planned([[dense, 'cpu']]);
  const unequal = planned([
    [moe(), 'cpu'],
    [moe(8), 'cpu'],
  ]);

  test('counting needs one layer that tells, recording all of them', () => {
    for (const model of [onCpu, split]) use(model, { expertStats: true, recordRouting: true });
    use(half, { expertStats: true });
    for (const [model, message] of [
      [onGpu, /nothing to count: all of its 2 layers with experts are whole on the GPU/],
      [withoutExperts, /nothing to count: it has no experts/],
      [unequal, /nothing to count: its layers have different numbers of experts/],
    ] as const) {
      assert.throws(
        () => use(model, { expertStats: true }),
        (error) => error instanceof UsageError && message.test(error.message),
      );
    }
    for (const [model, message] of [
      [half, /cannot be recorded: 1 of its 2 layers/],
      [onGpu, /cannot be recorded: all of its 2 layers/],
      [withoutExperts, /cannot be recorded: it has no experts/],
    ] as const) {
      assert.throws(
        () => use(model, { recordRouting: true }),
        (error) => error instanceof Refusal && message.test(error.message),
      );
    }
  });

  test('routing is given to split experts alone, and must be of the model', () => {
    use(split, { routing: trace() });
    const foreseen = {
      ...split,
      plan: { ...split.plan, experts: { ...split.plan.experts, prefetch: 'gate' } as PlannedExperts },
    };
    assert.throws(
      () => use(foreseen, { routing: trace() }),
      /expertPrefetch gate .* what routers say is not what rows then use/,
    );
    for (const [model, given, message] of [
      [onCpu, trace(), /routing \(--routing\) is of use only where experts are split/],
      [onGpu, trace(), /of use only where experts are split/],
      [
        split,
        trace({ layers: 3 }),
        /found 3 layers of 16 experts, 4 used, expected the model's 2 layers of 16, 4 used/,
      ],
      [split, trace({ experts: 17 }), /found 2 layers of 17 experts/],
      [split, trace({ used: 2 }), /2 used, expected/],
      [split, trace({ ids: new Uint16Array(0) }), /found not one token/],
    ] as const) {
      assert.throws(
        () => use(model, { routing: given }),
        (error) => error instanceof UsageError && message.test(error.message),
      );
    }
  });
});

test('rows of drafts are in no trace: where tokens are drafted nothing is recorded', () => {
  const made = planned([[moe(), 'cpu']]);
  use(made, { recordRouting: true });
  const drafted = { ...made, plan: { ...made.plan, speculation: { source: 'lookup', drafts: 3 } } as const };
  use(drafted, { expertStats: true });
  assert.throws(
    () => use(drafted, { recordRouting: true }),
    (error: unknown) => error instanceof Refusal && /leave --spec out/.test(error.message),
  );
});
