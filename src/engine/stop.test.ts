import assert from 'node:assert/strict';
import { test } from 'node:test';
import { StopMatcher } from './stop.ts';

function run(stops: readonly string[], pieces: readonly string[]): { emitted: readonly string[]; stopped: boolean } {
  const matcher = new StopMatcher(stops);
  const emitted = pieces.map((piece) => matcher.push(piece));
  const { stopped } = matcher;
  return { emitted: [...emitted, matcher.flush()], stopped };
}

/** By definition: the text ends before the stop string that is complete first, the longest if several are at once. */
function expected(stops: readonly string[], text: string): { text: string; stopped: boolean } {
  for (let end = 1; end <= text.length; end++) {
    const longest = Math.max(
      0,
      ...stops.filter((stop) => text.slice(0, end).endsWith(stop)).map((stop) => stop.length),
    );
    if (longest > 0) return { text: text.slice(0, end - longest), stopped: true };
  }
  return { text, stopped: false };
}

/** Every way to cut `text` into pieces. */
function* splits(text: string): Generator<string[]> {
  for (let cuts = 0; cuts < 2 ** (text.length - 1); cuts++) {
    const pieces: string[] = [];
    let start = 0;
    for (let at = 1; at <= text.length; at++) {
      if (at === text.length || (cuts >> (at - 1)) & 1) {
        pieces.push(text.slice(start, at));
        start = at;
      }
    }
    yield pieces;
  }
}

const cases: readonly { readonly stops: readonly string[]; readonly text: string }[] = [
  { stops: ['END'], text: 'theENDxx' },
  { stops: ['END'], text: 'EENENDEN' },
  { stops: ['END'], text: 'the ENx' },
  { stops: ['END'], text: 'xxEN' },
  { stops: ['abab'], text: 'xabaabab' },
  { stops: ['aab'], text: 'aaaaaabc' },
  { stops: ['abcd', 'bc'], text: 'xabcdx' },
  { stops: ['abcd', 'bx'], text: 'abcabcd' },
  { stops: ['bc', 'abc'], text: 'xxabcx' },
  { stops: ['a'], text: 'a' },
  { stops: ['\n\n', '\nQ:'], text: 'x\nQ\nQ:y' },
  { stops: ['😀!'], text: 'a😁😀!b' },
  { stops: [], text: 'anything' },
];

test('any split gives the text that the definition gives', () => {
  for (const { stops, text } of cases) {
    const whole = expected(stops, text);
    for (const pieces of splits(text)) {
      const { emitted, stopped } = run(stops, pieces);
      assert.deepEqual({ text: emitted.join(''), stopped }, whole, JSON.stringify({ stops, pieces }));
    }
  }
});

test('what was given out at any time is a prefix of the outcome', () => {
  for (const { stops, text } of cases) {
    const whole = expected(stops, text);
    let given = '';
    for (const piece of run(stops, [...text]).emitted) {
      given += piece;
      assert.ok(whole.text.startsWith(given), JSON.stringify({ stops, text, given }));
    }
  }
});

test('only what may become a stop string is held back', () => {
  const matcher = new StopMatcher(['<end>']);
  assert.equal(matcher.push('hello <en'), 'hello ');
  assert.equal(matcher.push('ter'), '<enter');
  assert.equal(matcher.push(' <end'), ' ');
  assert.equal(matcher.push('>never'), '');
  assert.equal(matcher.stopped, true);
  assert.equal(matcher.push('more'), '');
  assert.equal(matcher.flush(), '');
});

test('a long text against stop strings that nearly match takes linear time', () => {
  const stops = Array.from({ length: 8 }, (_, i) => `${'a'.repeat(4000)}${i}`);
  const matcher = new StopMatcher(stops);
  let length = 0;
  for (let i = 0; i < 200; i++) length += matcher.push('a'.repeat(1000)).length;
  assert.equal(length + matcher.flush().length, 200_000);
});
