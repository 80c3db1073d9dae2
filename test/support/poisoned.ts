/**
 * Workgroup memory that is full of what no kernel put there: a kernel must write what it reads, since the device does not
 * clear that memory for it.
 */

import assert from 'node:assert/strict';
import type { Gpu } from '../../src/backend/gpu/device.ts';

/** As a number not a number, as a count far too large, as an index beyond everything. */
const POISON = '0xffc0dead';

/** Has the device put poison into all workgroup memory of every kernel that is compiled from now on. */
export function poisoned(gpu: Gpu): Gpu {
  const { device } = gpu;
  const create = device.createShaderModule.bind(device);
  device.createShaderModule = (descriptor) => create({ ...descriptor, code: withPoison(descriptor.code) });
  return gpu;
}

/** The kernel `main` with its workgroup memory filled first. */
export function withPoison(code: string): string {
  const variables = [...code.matchAll(/^var<workgroup> (\w+): (.*);$/gm)].map(([, name, type]) => ({
    name: name as string,
    type: type as string,
  }));
  assert.equal(
    variables.length,
    code.split('var<workgroup>').length - 1,
    'workgroup memory that is not declared in a line',
  );
  if (variables.length === 0) return code;
  const main = /@workgroup_size\(([^)]*)\)\s*fn main\(((?:[^()]|\([^()]*\))*)\) \{/.exec(code);
  assert.ok(main !== null, 'a kernel is called main');
  const [head, size, parameters] = main as unknown as [string, string, string];
  const threads = size.split(',').reduce((product, n) => product * Number(n), 1);
  const known = /@builtin\(local_invocation_index\)\s*(\w+)/.exec(parameters)?.[1];
  const given = parameters.trim().replace(/,$/, '');
  const all = known === undefined ? `${given}, @builtin(local_invocation_index) poisoner: u32` : given;
  const fills = variables.map(({ name, type }) => fill(name, type, known ?? 'poisoner', threads));
  const start = head.replace(parameters, all);
  return code.replace(
    head,
    () => `${start}\n  var poisonBits = ${POISON}u;\n${fills.join('\n')}\n  workgroupBarrier();\n`,
  );
}

function fill(name: string, type: string, thread: string, threads: number): string {
  const array = /^array<(.*), (\d+)>$/.exec(type);
  if (array === null) return `  if (${thread} == 0u) { ${put(name, type)} }`;
  const [, element, count] = array as unknown as [string, string, string];
  return `  for (var poison = ${thread}; poison < ${count}u; poison += ${threads}u) { ${put(`${name}[poison]`, element)} }`;
}

/** The bits are a variable's, since what is no number may not be written as one. */
function put(place: string, type: string): string {
  if (type === 'atomic<u32>') return `atomicStore(&${place}, poisonBits);`;
  if (type === 'u32') return `${place} = poisonBits;`;
  const vector = /^vec([234])[uf]$/.exec(type)?.[1];
  assert.ok(type === 'f32' || vector !== undefined, `workgroup memory of ${type}`);
  return `${place} = bitcast<${type}>(${vector === undefined ? 'poisonBits' : `vec${vector}u(poisonBits)`});`;
}
