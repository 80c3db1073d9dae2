/** WGSL that several kernels are composed from: bindings, numbers as text, and sums over a workgroup in a fixed order. */

import type { ValueName } from '../../../model/graph.ts';
import type { Binding } from '../builder.ts';

/** The most workgroups that any device takes in one direction. */
export const MAX_WORKGROUPS = 65535;

/** WGSL of a number below every score. Not -infinity, so that the difference of two of them is 0. */
export const LEAST = '-3e38f';

/** A finite number as an f32 literal of WGSL, with all of its digits. */
export function f32Literal(value: number): string {
  return `${Math.fround(value)}f`;
}

/**
 * `fn blockSum(thread, value) -> f32`: the sum of every thread's value, for all of them, in an order that depends on the
 * number of threads alone (a power of two). Two rounds instead of a tree: latency of barriers counts more than additions.
 * Call it once a kernel, in uniform control flow.
 */
export function blockSum(threads: number): string {
  return blockReduce('blockSum', threads, '0f', (a, b) => `${a} + ${b}`);
}

/** As {@link blockSum}, of the largest; `least` is below every value. A NaN may be lost. */
export function blockMax(threads: number, least: string): string {
  return blockReduce('blockMax', threads, least, (a, b) => `max(${a}, ${b})`);
}

function blockReduce(name: string, threads: number, least: string, combine: (a: string, b: string) => string): string {
  const second = 2 ** Math.floor(Math.log2(threads) / 2);
  return `var<workgroup> ${name}First: array<f32, ${threads}>;
var<workgroup> ${name}Second: array<f32, ${second}>;
fn ${name}(thread: u32, value: f32) -> f32 {
  ${name}First[thread] = value;
  workgroupBarrier();
  if (thread < ${second}u) {
    var part = ${least};
    for (var i = 0u; i < ${threads / second}u; i++) { part = ${combine('part', `${name}First[thread + i * ${second}u]`)}; }
    ${name}Second[thread] = part;
  }
  workgroupBarrier();
  var all = ${least};
  for (var i = 0u; i < ${second}u; i++) { all = ${combine('all', `${name}Second[i]`)}; }
  return all;
}`;
}

/** A binding, the name its kernel calls it by, and the type of its elements. */
export type Bound = readonly [binding: Binding, name: string, element: string];

export const readValue = (name: ValueName): Binding => ({ kind: 'value', name, access: 'read' });
export const writeValue = (name: ValueName): Binding => ({ kind: 'value', name, access: 'write' });
export const STEP: Bound = [{ kind: 'step' }, 'step', 'u32'];

/** The bindings of a dispatch, and the WGSL that declares each as an array. */
export function declare(bound: readonly Bound[]): { readonly bindings: readonly Binding[]; readonly text: string } {
  const lines = bound.map(([binding, name, element], i) => {
    const access = 'access' in binding && binding.access === 'write' ? 'read_write' : 'read';
    return `@group(0) @binding(${i}) var<storage, ${access}> ${name}: array<${element}>;`;
  });
  return { bindings: bound.map(([binding]) => binding), text: lines.join('\n') };
}
