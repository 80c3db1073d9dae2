/** The feed that costs less is taken, and the other is not forgotten. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CheaperFeed, type FeedName } from './feed-choice.ts';

/** Loads of 16 MB, each feed at a rate of its own, until so many have been brought. @returns which feed brought each */
function bring(choice: CheaperFeed, loads: number, gigabytesPerSecond: Readonly<Record<FeedName, number>>): FeedName[] {
  return Array.from({ length: loads }, () => {
    const feed = choice.next();
    const bytes = 16e6;
    choice.learn(feed, { bytes, ms: bytes / gigabytesPerSecond[feed] / 1e6 });
    return feed;
  });
}

const share = (feeds: readonly FeedName[]) => feeds.filter((feed) => feed === 'file').length / feeds.length;

test('the file serves while its reads are the faster ones', () => {
  assert.equal(share(bring(new CheaperFeed(), 100, { file: 25, memory: 8 })), 1);
});

test('a file that is not in the cache is tried once, and looked at again from time to time', () => {
  const feeds = bring(new CheaperFeed(), 2000, { file: 0.5, memory: 8 });
  assert.deepEqual(feeds.slice(0, 3), ['file', 'memory', 'memory']);
  const again = share(feeds.slice(1));
  assert.ok(again > 0 && again < 0.005, `${again}`);
});

test('what looking again costs is bounded, however slow the file is', () => {
  for (const file of [0.01, 0.1, 1, 5]) {
    const rates = { file, memory: 8 };
    const feeds = bring(new CheaperFeed(), 5000, rates);
    const ms = (feed: FeedName) => feeds.filter((each) => each === feed).length / rates[feed];
    assert.ok(ms('file') <= ms('memory') / 16 + 2 / file, `${file} GB/s`);
  }
});

test('a file that has come into the cache serves again from the next look on, one that left it no more', () => {
  const choice = new CheaperFeed();
  bring(choice, 500, { file: 1, memory: 8 });
  const feeds = bring(choice, 500, { file: 25, memory: 8 });
  const first = feeds.indexOf('file');
  assert.ok(first >= 0 && feeds.slice(first).every((feed) => feed === 'file'));
  assert.equal(bring(choice, 5, { file: 0.5, memory: 8 }).at(-1), 'memory');
});

test('where copying is slow, too, a slower file serves', () => {
  const feeds = bring(new CheaperFeed(), 500, { file: 5, memory: 3 });
  assert.ok(share(feeds.slice(300)) > 0.9, `${share(feeds.slice(300))}`);
});

test('reads that nobody waited for cost nothing, and small loads say nothing', () => {
  const choice = new CheaperFeed();
  choice.learn('file', { bytes: 1000, ms: 100 });
  choice.learn('file', { bytes: 1000, ms: 0 });
  assert.equal(choice.next(), 'file');
});
