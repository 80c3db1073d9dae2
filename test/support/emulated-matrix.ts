/**
 * Kernels of subgroup matrices on devices without them: the text with each matrix operation written out in f32, for 32
 * threads that own eight values of a result each. Addresses, tails, order and decoding are the kernel's own.
 */

import assert from 'node:assert/strict';

const functions = /* wgsl */ `
fn bytesAsHalves(word: u32, scale: vec2f, minimum: vec2f) -> vec2u {
  let even = vec2f(vec2i(vec2u(word << 24u, word << 8u)) >> vec2u(24u));
  let odd = vec2f(vec2i(vec2u(word << 16u, word)) >> vec2u(24u));
  return vec2u(pack2x16float(fma(even, scale, -minimum)), pack2x16float(fma(odd, scale, -minimum)));
}
fn multiplied(a: vec2u, b: vec2u, sum: array<f32, 8>, lane: u32) -> array<f32, 8> {
  var result = sum;
  for (var e = 0u; e < 8u; e++) {
    let row = a.x + (lane / 2u) * a.y;
    let column = b.x + ((lane % 2u) * 8u + e) * b.y;
    for (var v = 0u; v < 2u; v++) {
      for (var k = 0u; k < 4u; k++) {
        let p = unpack2x16float(activations[row + v][k]) * unpack2x16float(weights[column + v][k]);
        result[e] += p.x + p.y;
      }
    }
  }
  return result;
}
fn stored(at: u32, values: array<f32, 8>, stride: u32, lane: u32) {
  for (var e = 0u; e < 8u; e++) { sums[at + (lane / 2u) * stride + (lane % 2u) * 8u + e] = values[e]; }
}
`;

const rewrites: readonly (readonly [from: RegExp, to: string])[] = [
  [/^enable .*\n/gm, ''],
  [/\n {2}@builtin\(subgroup_id\) subgroup: u32,/, ''],
  [/subgroup_matrix_result<f32, 16, 16>/g, 'array<f32, 8>'],
  [/subgroupMatrixLoad<.*?, \w+_major>\(&\w+, (.*), (\d+u)\)/g, 'vec2u($1, $2)'],
  [/subgroupMatrixMultiplyAccumulate\((\w+), (\w+), (\w+)\)/g, 'multiplied($1, $2, $3, tid % 32u)'],
  [/subgroupMatrixStore<row_major>\(&sums, (.*), (\w+), (\d+u)\)/g, 'stored($1, $2, $3, tid % 32u)'],
  [/fn ofWord[^}]*\}/, ''],
  [/ofWord/g, 'bytesAsHalves'],
  [/vec2<f16>/g, 'vec2f'],
];

/** Throws where something of the text needs what it stands in for. */
export function emulatedMatrix(code: string): string {
  let text = rewrites.reduce((changed, [from, to]) => changed.replace(from, to), code);
  text = text.replace(/\nfn main\([^)]*(\([^)]*\)[^)]*)*\) \{\n/, (head) => `${head}  let subgroup = tid / 32u;\n`);
  text = text.replace('@compute', `${functions}\n@compute`);
  for (const left of ['<f16', 'f16(', 'subgroupMatrix', 'subgroup_'])
    assert.ok(!text.includes(left), `${left} has no stand-in`);
  return text;
}
