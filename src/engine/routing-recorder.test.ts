/** Recording routing: what the worker's end gathers, and that neither end holds more than a few blocks. */

import assert from 'node:assert/strict';
import { suite, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { type RoutingBlock, RoutingReceiver, RoutingRecorder } from './routing-recorder.ts';

function recorder(layers: readonly number[], used: number) {
  const posted: RoutingBlock[] = [];
  return { posted, made: new RoutingRecorder({ layers, used, post: (block) => posted.push(block) }) };
}

suite('the worker’s end', () => {
  test('runs follow each other row by row, whatever order the layers tell in', async () => {
    const { posted, made } = recorder([2, 5], 2);
    made.began('prompt', 2);
    made.routed(5, Int32Array.of(4, 5, 6, 7));
    made.routed(2, [0, 1, 2, 3]);
    made.ended();
    made.began('step', 1);
    made.routed(2, [8, 9]);
    made.routed(5, [10, 11]);
    made.ended();
    await made.flush(false);
    assert.deepEqual(posted, [], 'few ids wait for more');
    await made.flush(true);
    assert.deepEqual(posted, [{ rows: 3, ids: Uint16Array.of(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11) }]);
    await made.flush(true);
    assert.equal(posted.length, 1, 'nothing twice');
  });

  test('a run that failed leaves nothing, nor does a layer that is not recorded', async () => {
    const { posted, made } = recorder([1], 1);
    made.began('step', 1);
    made.routed(1, [7]);
    made.began('step', 2);
    made.routed(0, [3, 3]);
    made.routed(1, [4, 5]);
    made.ended();
    await made.flush(true);
    assert.deepEqual(posted, [{ rows: 2, ids: Uint16Array.of(4, 5) }]);
  });

  test('many ids go without being asked for, and with two blocks on their way it waits', async () => {
    const { posted, made } = recorder([0], 8);
    const run = async () => {
      made.began('prompt', 2 ** 12);
      made.routed(0, new Uint16Array(2 ** 15).fill(posted.length));
      made.ended();
      await made.flush(false);
    };
    await run();
    assert.equal(posted.length, 1);
    let done = false;
    const second = run().then(() => {
      done = true;
    });
    for (let i = 0; i < 5; i++) await turn();
    assert.deepEqual([posted.length, done], [2, false]);
    made.taken();
    await second;
    made.taken();
    await run();
    assert.deepEqual(
      posted.map(({ rows, ids }) => [rows, ids[0]]),
      [
        [4096, 0],
        [4096, 1],
        [4096, 2],
      ],
    );
  });
});

suite('the main side’s end', () => {
  const block = (id: number): RoutingBlock => ({ rows: 1, ids: Uint16Array.of(id) });

  test('blocks are handed on one after the other, however long each takes', async () => {
    const order: string[] = [];
    const receiver = new RoutingReceiver(async ({ ids }) => {
      order.push(`begin ${ids[0]}`);
      await turn();
      order.push(`end ${ids[0]}`);
    });
    await Promise.all([receiver.receive(block(1)), receiver.receive(block(2))]);
    await receiver.finish();
    assert.deepEqual(order, ['begin 1', 'end 1', 'begin 2', 'end 2']);
  });

  test('a failure is told at the end, and what follows it is dropped, not waited for', async () => {
    const seen: number[] = [];
    const receiver = new RoutingReceiver(({ ids }) => {
      seen.push(ids[0] as number);
      throw new RangeError('the disk is full');
    });
    await receiver.receive(block(1));
    await receiver.receive(block(2));
    await assert.rejects(receiver.finish(), /the disk is full/);
    assert.deepEqual(seen, [1]);
  });
});
