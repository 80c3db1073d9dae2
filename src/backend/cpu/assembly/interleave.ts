// Stores a weight's rows four at a time: unit i of rows 0…3 stands side by side, so that a vector holds one row a lane.

/**
 * `source` holds `rows` (1…4) rows of `blocks` blocks each; `target` gets the group, absent rows as zero. Each segment is
 * bytes · 256 + unit: so many bytes of a block, moved in units of 1, 2 or 4 bytes; a segment of 0 ends the list.
 */
export function interleave(
  source: usize, target: usize, rows: i32, blocks: i32, blockBytes: i32,
  segment0: i32, segment1: i32, segment2: i32, segment3: i32, segment4: i32,
): void {
  const rowBytes = <usize>blocks * <usize>blockBytes;
  for (let row: usize = <usize>rows; row < 4; row++) memory.fill(source + row * rowBytes, 0, rowBytes);
  for (let block = 0; block < blocks; block++) {
    let from = source + <usize>block * <usize>blockBytes;
    target = moveSegment(from, target, rowBytes, segment0);
    from += <usize>(segment0 >> 8);
    target = moveSegment(from, target, rowBytes, segment1);
    from += <usize>(segment1 >> 8);
    target = moveSegment(from, target, rowBytes, segment2);
    from += <usize>(segment2 >> 8);
    target = moveSegment(from, target, rowBytes, segment3);
    from += <usize>(segment3 >> 8);
    target = moveSegment(from, target, rowBytes, segment4);
  }
}

function moveSegment(from: usize, target: usize, rowBytes: usize, segment: i32): usize {
  const bytes = <usize>(segment >> 8);
  const unit = segment & 255;
  const row1 = from + rowBytes;
  const row2 = row1 + rowBytes;
  const row3 = row2 + rowBytes;
  let at: usize = 0;
  if (unit == 4) {
    for (; at + 16 <= bytes; at += 16) {
      const a = v128.load(from + at);
      const b = v128.load(row1 + at);
      const c = v128.load(row2 + at);
      const d = v128.load(row3 + at);
      const ab0 = i32x4.shuffle(a, b, 0, 4, 1, 5);
      const cd0 = i32x4.shuffle(c, d, 0, 4, 1, 5);
      const ab1 = i32x4.shuffle(a, b, 2, 6, 3, 7);
      const cd1 = i32x4.shuffle(c, d, 2, 6, 3, 7);
      v128.store(target, i64x2.shuffle(ab0, cd0, 0, 2));
      v128.store(target, i64x2.shuffle(ab0, cd0, 1, 3), 16);
      v128.store(target, i64x2.shuffle(ab1, cd1, 0, 2), 32);
      v128.store(target, i64x2.shuffle(ab1, cd1, 1, 3), 48);
      target += 64;
    }
    for (; at < bytes; at += 4) {
      store<u32>(target, load<u32>(from + at));
      store<u32>(target, load<u32>(row1 + at), 4);
      store<u32>(target, load<u32>(row2 + at), 8);
      store<u32>(target, load<u32>(row3 + at), 12);
      target += 16;
    }
    return target;
  }
  if (unit == 2) {
    for (; at < bytes; at += 2) {
      store<u16>(target, load<u16>(from + at));
      store<u16>(target, load<u16>(row1 + at), 2);
      store<u16>(target, load<u16>(row2 + at), 4);
      store<u16>(target, load<u16>(row3 + at), 6);
      target += 8;
    }
    return target;
  }
  for (; at < bytes; at++) {
    store<u8>(target, load<u8>(from + at));
    store<u8>(target, load<u8>(row1 + at), 1);
    store<u8>(target, load<u8>(row2 + at), 2);
    store<u8>(target, load<u8>(row3 + at), 3);
    target += 4;
  }
  return target;
}
