/** WGSL of what a row's attention sees and how sharply, as `model/attention.ts` says it. */

import type { AttentionOperation } from '../../../model/graph.ts';
import { PAGE_ROWS } from '../../backend.ts';
import { f32Literal } from './snippets.ts';

export interface ReachCode {
  /** Whether a row may not see all positions up to its own. */
  readonly limited: boolean;
  /**
   * `fn firstSeen(visible: u32) -> u32` of a row that sees nothing from position `visible` on, and `fn firstPage`, the same
   * at the beginning of its page; none where rows see everything.
   */
  readonly functions: string;
  /** WGSL of the position at which the page of the first position begins that is seen. */
  firstPage(visible: string): string;
  /** WGSL of the first position that is seen. */
  first(visible: string): string;
}

export function reachCode({ reach }: AttentionOperation): ReachCode {
  if (reach === undefined) return { limited: false, functions: '', firstPage: () => '0u', first: () => '0u' };
  const { kind, length } = reach;
  const first = kind === 'window' ? `visible - min(visible, ${length}u)` : `(visible - 1u) / ${length}u * ${length}u`;
  return {
    limited: true,
    functions: `fn firstSeen(visible: u32) -> u32 { return ${first}; }
fn firstPage(visible: u32) -> u32 { return firstSeen(visible) / ${PAGE_ROWS}u * ${PAGE_ROWS}u; }`,
    firstPage: (visible) => `firstPage(${visible})`,
    first: (visible) => `firstSeen(${visible})`,
  };
}

/** `fn temperature(visible: u32) -> f32`: what the queries of a row are multiplied with; empty where there is none. */
export function temperatureCode({ temperature }: AttentionOperation): string {
  if (temperature === undefined) return '';
  const { length, scale } = temperature;
  return `fn temperature(visible: u32) -> f32 {
  let steps = visible / ${length}u;
  return select(fma(${f32Literal(scale)}, log(f32(steps + 1u)), 1f), 1f, steps == 0u);
}`;
}
