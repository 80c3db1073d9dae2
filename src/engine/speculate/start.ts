/** Makes what drafts ready, in the engine's worker, from what the plan says of it. */

import type { Backend, Executable } from '../../backend/backend.ts';
import { prepareParts } from '../../backend/parts.ts';
import { type ConclaveError, InternalError } from '../../errors.ts';
import type { ByteSource } from '../../format/source.ts';
import type { Weight, Weights } from '../../model/weights.ts';
import type { DeviceName } from '../../plan/plan.ts';
import type { DraftModel, PrepareCommand } from '../protocol.ts';
import { ModelDrafts } from './draft-model.ts';
import { LookupDrafts } from './lookup.ts';
import { MtpDrafts } from './mtp.ts';
import { Speculator } from './speculator.ts';

export interface SpeculationHost {
  /** Of the model that is drafted for. */
  readonly executable: Executable;
  /** Those of both models. */
  readonly sources: readonly ByteSource[];
  backendFor(device: DeviceName): Promise<Backend>;
  onFault(error: ConclaveError): void;
}

/** @throws what preparing a draft model raises */
export async function startSpeculation(
  { speculation, draft, plan, spec }: Pick<PrepareCommand, 'speculation' | 'draft' | 'plan' | 'spec'>,
  host: SpeculationHost,
): Promise<Speculator | undefined> {
  if (speculation === undefined) return undefined;
  const { source, drafts } = speculation;
  const { onFault } = host;
  const { vocabulary } = spec;
  switch (source) {
    case 'lookup':
      return new Speculator({ source: new LookupDrafts(), drafts, onFault });
    case 'mtp': {
      const { mtp: runner } = host.executable;
      if (runner === undefined) throw new InternalError('the plan drafts by MTP, and the device runs none');
      const stepRows = Math.min(plan.maxRows.step, plan.maxRows.wanted);
      const made = new MtpDrafts({ runner, vocabulary, stepRows, promptRows: plan.maxRows.prompt });
      return new Speculator({ source: made, drafts, onFault });
    }
    case 'draft': {
      if (draft === undefined) throw new InternalError('the plan drafts by a model, and none was given');
      const executable = await prepareDraft(draft, host);
      const made = new ModelDrafts({ executable, plan: draft.plan, vocabulary });
      return new Speculator({ source: made, drafts, bytes: executable.bytes, onFault });
    }
  }
}

function prepareDraft(
  { plan, programs, spec, graph, weights, firstSource }: DraftModel,
  { sources, backendFor, onFault }: SpeculationHost,
): Promise<Executable> {
  const own = sources.slice(firstSource);
  const request = { plan, programs, spec, graph, weights: weightsByName(weights), sources: own, onFault };
  return prepareParts(request, backendFor);
}

export function weightsByName(weights: readonly Weight[]): Weights {
  return new Map(weights.map((weight) => [weight.name, weight]));
}
