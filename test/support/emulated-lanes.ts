/**
 * Kernels that exchange values among the lanes of subgroups of 32, on devices whose subgroups have another size: each exchange
 * goes through workgroup memory. Who exchanges with whom, and in what order, is the kernel's own.
 */

import assert from 'node:assert/strict';

export function emulatedLanes(code: string): string {
  if (!code.includes('subgroupShuffleXor')) return code;
  const threads = Number(/@workgroup_size\((\d+)\)/.exec(code)?.[1]);
  const text = code
    .replace(/^enable subgroups;\n/gm, '')
    // Sizes and counts are bits, all else are numbers.
    .replace(/subgroupShuffleXor\((most|place), (\w+)\)/g, 'bitcast<u32>(exchanged(bitcast<f32>($1), $2))')
    .replace(/subgroupShuffleXor\((\w+), (\w+)\)/g, 'exchanged($1, $2)')
    .replace(/\nfn main\([^)]*(\([^)]*\)[^)]*)*\) \{\n/, (head) => `${head}  exchangingThread = tid;\n`);
  assert.ok(!text.includes('subgroup'), 'something has no stand-in');
  return text.replace(
    '@compute',
    /* wgsl */ `
var<private> exchangingThread: u32;
var<workgroup> exchange: array<f32, ${threads}>;
fn exchanged(value: f32, mask: u32) -> f32 {
  exchange[exchangingThread] = value;
  workgroupBarrier();
  let other = exchange[exchangingThread ^ mask];
  workgroupBarrier();
  return other;
}
@compute`,
  );
}
