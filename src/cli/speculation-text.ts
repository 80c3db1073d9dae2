/** `--spec-stats`: what drafting came to, in a few lines. */

import type { Model, SpeculationStatistics } from '../engine/types.ts';
import type { ExpertStatsSnapshot } from '../experts/stats.ts';
import { showCount, showPlural } from './format.ts';

/** What a command shows of drafting: what came of the drafts, and how many experts the rows of a step had between them. */
export interface SpeculationResult extends SpeculationStatistics {
  /** Tokens of a step that drafts; absent where none did. */
  readonly tokensPerStep?: number;
  /** Different experts of a layer that a step of decoding reads; absent where that is not known. */
  readonly expertsPerStep?: number;
}

/** Undefined where nothing is drafted. */
export async function speculationOf(model: Model): Promise<SpeculationResult | undefined> {
  const stats = await model.speculationStats();
  if (stats === undefined) return undefined;
  return { ...stats, ...ratesOf(stats, (await model.expertStats())?.step) };
}

/** @param step what the experts did in steps, where that is known */
export function ratesOf(
  { steps, tokens }: Pick<SpeculationStatistics, 'steps' | 'tokens'>,
  step: ExpertStatsSnapshot | undefined,
): Pick<SpeculationResult, 'tokensPerStep' | 'expertsPerStep'> {
  const layers = step?.layers.filter((layer) => layer.steps > 0) ?? [];
  const runs = layers.reduce((sum, layer) => sum + layer.steps, 0);
  const experts = layers.reduce((sum, { uniqueExperts }) => sum + uniqueExperts, 0);
  return {
    ...(steps === 0 ? {} : { tokensPerStep: tokens / steps }),
    ...(runs === 0 ? {} : { expertsPerStep: experts / runs }),
  };
}

/** Lines, each with its end. */
export function describeSpeculation(result: SpeculationResult): string {
  const { source, drafts, steps, plainSteps, checked, accepted, tokensPerStep, expertsPerStep } = result;
  const { drafting, plain } = result.tokensPerSecond;
  const share = (part: number, whole: number) => `${Math.round((100 * part) / whole)}%`;
  const positions = checked.flatMap((count, index) =>
    count === 0 ? [] : [`draft ${index + 1} ${share(accepted[index] as number, count)} of ${showCount(count)}`],
  );
  const rate = (name: string, tokensPerSecond: number | undefined) =>
    tokensPerSecond === undefined ? [] : [`${tokensPerSecond.toFixed(1)} tokens/s ${name}`];
  const rates = [...rate('with drafts', drafting), ...rate('without', plain)];
  const lines = [
    `drafts: ${source}, up to ${showPlural(drafts, 'token')}; ${
      tokensPerStep === undefined
        ? 'no step has had any'
        : `${tokensPerStep.toFixed(2)} tokens a step in ${showPlural(steps, 'step')}`
    }, ${showPlural(plainSteps, 'step')} without`,
    ...(positions.length === 0 ? [] : [`accepted: ${positions.join(', ')}`]),
    ...(expertsPerStep === undefined ? [] : [`experts a step: ${expertsPerStep.toFixed(1)} of each layer`]),
    ...(rates.length === 0
      ? []
      : [`measured: ${rates.join(', ')}; now ${result.drafting ? 'with drafts' : 'without'}`]),
  ];
  return lines.map((line) => `${line}\n`).join('');
}
