import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { InternalError } from '../../errors.ts';
import { formatOf } from '../../quant/index.ts';
import { acceptsWeight, gpuFormat, gpuFormats } from './formats/index.ts';
import { type GpuFormat, planeWords, toPlanes, weightCode } from './formats.ts';

/** Device bytes of rows of `columns`, from a target that was dirty before. */
function placed(format: GpuFormat, columns: number, source: Uint8Array): Uint8Array {
  const { blockBytes, blockLength } = formatOf(format.id);
  const rows = source.length / ((columns / blockLength) * blockBytes);
  const target = new Uint8Array(rows * planeWords(format, columns).rowWords * 4).fill(0xa5);
  toPlanes(format, columns, source, target);
  return target;
}

function bitsOf(bytes: Uint8Array): number[] {
  const bits: number[] = [];
  bytes.forEach((byte, at) => {
    for (let bit = 0; bit < 8; bit++) if (byte & (1 << bit)) bits.push(8 * at + bit);
  });
  return bits;
}

for (const format of gpuFormats) {
  const { blockBytes, blockLength } = formatOf(format.id);
  describe(format.id, () => {
    test('its planes are the whole block, in parts that are copied quickly', () => {
      assert.equal(
        format.planes.reduce((sum, bytes) => sum + bytes, 0),
        blockBytes,
      );
      for (const bytes of format.planes) assert.ok(bytes <= 2 || bytes % 4 === 0, `${bytes} bytes`);
    });

    test('planes and rows begin at 16 bytes', () => {
      for (const blocks of [1, 2, 3, 8, 31]) {
        const { starts, rowWords } = planeWords(format, blocks * blockLength);
        for (const at of [...starts, rowWords]) assert.equal(at % 4, 0);
        const padding = rowWords * 4 - blocks * blockBytes;
        assert.ok(padding >= 0 && padding < 16 * format.planes.length, `${padding} bytes of padding`);
      }
    });

    test('every bit arrives at a place of its own, and padding is zero', () => {
      const columns = 3 * blockLength;
      const rowBytes = 3 * blockBytes;
      const rowBits = planeWords(format, columns).rowWords * 32;
      const seen = new Set<number>();
      for (let bit = 0; bit < rowBytes * 8; bit++) {
        const source = new Uint8Array(2 * rowBytes);
        source[rowBytes + (bit >> 3)] = 1 << (bit & 7);
        const bits = bitsOf(placed(format, columns, source));
        assert.equal(bits.length, 1, `bit ${bit} became ${bits.length} bits`);
        assert.ok((bits[0] as number) >= rowBits, `bit ${bit} of the second row went to the first`);
        seen.add(bits[0] as number);
      }
      assert.equal(seen.size, rowBytes * 8);
    });

    test('any byte of shared memory may be where the file begins, and rows do not depend on each other', () => {
      const columns = 4 * blockLength;
      const rowBytes = 4 * blockBytes;
      const bytes = Uint8Array.from({ length: 3 * rowBytes }, (_, i) => (i * 151 + (i >> 3)) & 255);
      const whole = placed(format, columns, bytes);
      for (const shift of [1, 2, 3]) {
        const moved = new Uint8Array(new SharedArrayBuffer(bytes.length + 8), shift, bytes.length);
        moved.set(bytes);
        assert.deepEqual(placed(format, columns, moved), whole);
      }
      const single = [0, 1, 2].map((row) => placed(format, columns, bytes.slice(row * rowBytes, (row + 1) * rowBytes)));
      assert.deepEqual(Buffer.concat(single), Buffer.from(whole));
    });
  });
}

test('a target of another size is refused', () => {
  const format = gpuFormat('Q8_0') as GpuFormat;
  assert.throws(() => toPlanes(format, 64, new Uint8Array(68), new Uint8Array(76)), InternalError);
  assert.throws(() => toPlanes(format, 64, new Uint8Array(67), new Uint8Array(80)), InternalError);
});

test('a weight that no kernel takes says why', () => {
  assert.equal(acceptsWeight('head', 'Q4_K', 512), true);
  assert.equal(acceptsWeight('head', 'F16', 7), true);
  assert.match(acceptsWeight('head', 'Q4_K', 96) as string, /^head: needs columns in multiples of 256 .*found 96$/);
  assert.match(acceptsWeight('head', 'IQ1_S', 256) as string, /^head: needs one of F32, .*found IQ1_S$/);
});

test('what a named weight declares ends in its name', () => {
  for (const format of gpuFormats) {
    const code = weightCode({ format, columns: 512, binding: 3, name: 'gate' });
    const names = [...code.matchAll(/(?:^|\n)\s*(?:@.*\s)?(?:fn|const|var<storage, read>)\s+(\w+)/g)].map(
      ([, name]) => name,
    );
    assert.ok(names.length > 8);
    for (const name of names) assert.match(name as string, /_gate$/);
    assert.match(code, /@binding\(3\) var<storage, read> w_gate: array<vec4u>/);
  }
});
