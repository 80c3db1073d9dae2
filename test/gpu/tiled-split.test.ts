/** Products whose columns are cut into parts: near the reference, and no bit by what rows are in the run. */

import { after, test } from 'node:test';
import { emitTiledSplit } from '../../src/backend/gpu/kernels/tiled-split.ts';
import { gaussians, random } from '../conformance/support/blocks.ts';
import { near, sameBits } from '../conformance/support/compare.ts';
import { closeGpuTestDevice } from '../support/gpu.ts';
import { builderOf, deviceWeight, heldOf, runProgram } from '../support/gpu-program.ts';

after(closeGpuTestDevice);

// Parts of unequal size, the last ragged, in both heights of tiles; and a row that is not cut.
for (const { format, outputs, columns, rows } of [
  { format: 'F32', outputs: 70, columns: 1157, rows: 1900 },
  { format: 'Q8_0', outputs: 5, columns: 96, rows: 67 },
]) {
  test(`${format} [${outputs}, ${columns}]`, async () => {
    const width = outputs + 3;
    const weight = deviceWeight('w', format, [outputs, columns]);
    const builder = builderOf(rows + 61, [weight], { x: columns, y: width });
    builder.declareValue('y', width);
    emitTiledSplit(builder, {
      label: 'y',
      input: 'x',
      output: { kind: 'value', name: 'y', access: 'write' },
      outputWidth: width,
      weight: weight.weight,
    });
    const x = gaussians(rows * columns, random(1)) as Float32Array<ArrayBuffer>;
    const run = (first: number, count: number) =>
      runProgram(builder, 'prompt', {
        rows: count,
        held: { ...heldOf([weight]), x: x.slice(first * columns) },
        output: 'y',
      });
    const found = await run(0, rows);
    const expected = Float32Array.from({ length: (rows + 61) * width }, (_, i) => {
      const [t, r] = [Math.floor(i / width), i % width];
      if (t >= rows || r >= outputs) return 0;
      let sum = 0;
      for (let k = 0; k < columns; k++) {
        sum += (weight.values[r * columns + k] as number) * (x[t * columns + k] as number);
      }
      return sum;
    });
    near(found.subarray(0, expected.length), expected, 1e-6, 'all rows');
    sameBits((await run(40, 3)).subarray(0, 3 * width), found.subarray(40 * width, 43 * width), 'rows 40 … 42');
  });
}
