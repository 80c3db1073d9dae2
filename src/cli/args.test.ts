/** The argument table: every flag reads what it says it takes, and complains by name about anything else. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { UsageError } from '../errors.ts';
import { describeFlags, type FlagSpec, nearest, parseFlags } from './args.ts';
import { benchFlags, flags, inspectFlags, planFlags, replayFlags, runFlags } from './flags.ts';

const all: Readonly<Record<string, FlagSpec>> = flags;
const commands = { run: runFlags, plan: planFlags, inspect: inspectFlags, bench: benchFlags, replay: replayFlags };

/** A value each kind takes with what it reads as, and values it must refuse. */
function samples(spec: FlagSpec): {
  readonly good: readonly (readonly [string, unknown])[];
  readonly bad: readonly string[];
} {
  switch (spec.kind) {
    case 'switch':
      return { good: [], bad: [] };
    case 'text':
      return {
        good: [
          ['a b', 'a b'],
          ['', ''],
          ['- dashed', '- dashed'],
        ],
        bad: [],
      };
    case 'list':
      return { good: [['one', ['one']]], bad: [] };
    case 'choice':
      return {
        good: spec.choices.map((choice) => [choice, choice] as const),
        bad: ['', 'nothing', spec.choices[0]!.toUpperCase()],
      };
    case 'form':
      return {
        good: spec.examples.map((example) => [example, example] as const),
        bad: ['', 'nothing', ...spec.examples.map((example) => `${example}x`)],
      };
    case 'bytes':
      return {
        good: [
          ['65536', 65_536],
          ['1MiB', 2 ** 20],
          ['2GB', 2e9],
          ['1.5G', 1.5e9],
        ],
        bad: ['', '-1', '0', '1XB', '9e9', '1PiB'],
      };
    case 'json':
      return { good: [['{"a":[1]}', { a: [1] }]], bad: ['', '{', '[]', 'null', '3', '"x"'] };
    default: {
      const { min, max, kind } = spec;
      const good: (readonly [string, unknown])[] = [
        [`${min ?? -3}`, min ?? -3],
        [`${max ?? 7}`, max ?? 7],
      ];
      const bad = ['', 'x', '1x', 'NaN', 'Infinity', '0x10', ' 1', '1,5', '1e999', kind === 'whole' ? '1.5' : '--1'];
      if (min !== undefined) bad.push(`${min - 1}`);
      if (max !== undefined) bad.push(`${max + 1}`);
      if (kind === 'whole') bad.push('9007199254740993');
      return { good, bad };
    }
  }
}

describe('every flag of the table', () => {
  for (const [name, spec] of Object.entries(all)) {
    const ways = [
      `--${name}`,
      ...(spec.aliases ?? []).map((alias) => `--${alias}`),
      ...(spec.short === undefined ? [] : [`-${spec.short}`]),
    ];
    const said = new RegExp(`--${name}\\b`);
    test(`--${name}`, () => {
      const table = { [name]: spec };
      const { good, bad } = samples(spec);
      for (const way of ways) {
        if (spec.kind === 'switch') {
          assert.deepEqual(parseFlags(table, [way]), { values: { [name]: true }, positionals: [] });
          if (way.startsWith('--'))
            assert.throws(() => parseFlags(table, [`${way}=1`]), { name: 'UsageError', message: said });
          continue;
        }
        for (const [text, value] of good) {
          assert.deepEqual(parseFlags(table, [way, text]).values, { [name]: value }, `${way} ${text}`);
          if (way.startsWith('--')) assert.deepEqual(parseFlags(table, [`${way}=${text}`]).values, { [name]: value });
        }
        for (const text of bad) {
          assert.throws(
            () => parseFlags(table, [way, text]),
            // The message holds the flag, the value as it was found, and what is expected.
            (error) =>
              error instanceof UsageError &&
              said.test(error.message) &&
              error.message.includes(JSON.stringify(text)) &&
              /expects (a|one of) /.test(error.message),
            `${way} ${JSON.stringify(text)}`,
          );
        }
        assert.throws(
          () => parseFlags(table, [way]),
          { name: 'UsageError', message: /needs / },
          `${way} without a value`,
        );
      }
    });
  }
});

describe('every command', () => {
  for (const [name, table] of Object.entries(commands)) {
    test(`${name}: no two flags share a spelling`, () => {
      const ways = Object.entries(table as Readonly<Record<string, FlagSpec>>).flatMap(([flag, spec]) => [
        `--${flag}`,
        ...(spec.short === undefined ? [] : [`-${spec.short}`]),
        ...(spec.aliases ?? []).map((alias) => `--${alias}`),
      ]);
      assert.deepEqual(
        ways.filter((way, index) => ways.indexOf(way) !== index),
        [],
      );
    });

    test(`${name}: help lists each flag once unless it is hidden, within 100 columns`, () => {
      const help = describeFlags(table);
      for (const [flag, spec] of Object.entries(table as Readonly<Record<string, FlagSpec>>)) {
        const lines = help.split('\n').filter((line) => new RegExp(`--${flag}( |$)`).test(line.slice(0, 40)));
        assert.equal(lines.length, spec.hidden === true ? 0 : 1, flag);
      }
      assert.deepEqual(
        help.split('\n').filter((line) => line.length > 100),
        [],
      );
    });
  }
});

test('values may start with a dash', () => {
  assert.deepEqual(
    parseFlags(runFlags, ['-n', '-1', '--presence-penalty', '-.5', '-p', '-- hm', '--logit-bias', '-5']).values,
    {
      predict: -1,
      'presence-penalty': -0.5,
      prompt: '-- hm',
      'logit-bias': ['-5'],
    },
  );
});

test('a flag where a value is due is a forgotten value', () => {
  assert.throws(() => parseFlags(runFlags, ['-p', '-n', '5']), {
    message: '-p/--prompt needs a value, found the flag -n',
  });
  assert.equal(parseFlags(runFlags, ['--prompt=-n']).values.prompt, '-n');
});

test('lists gather, other flags keep the last value', () => {
  const { values } = parseFlags(runFlags, ['--stop', 'a', '--stop', 'b', '--temp', '1', '--temp', '0']);
  assert.deepEqual(values, { stop: ['a', 'b'], temp: 0 });
});

test('short flags take their value attached, and -- ends the flags', () => {
  assert.deepEqual(parseFlags(runFlags, ['-n5', '--', '-p']), { values: { predict: 5 }, positionals: ['-p'] });
});

for (const [given, meant] of [
  ['--tmep', '--temp'],
  ['--topk', '--top-k'],
  ['--modle', '--model'],
  ['--repeat_penalty', '--repeat-penalty'],
  ['--thread', '--threads'],
  ['--max-token', '--max-tokens'],
  ['--SEED', '--seed'],
  ['-json', '--json'],
] as const) {
  test(`${given} is unknown, and ${meant} is offered`, () => {
    assert.throws(() => parseFlags(runFlags, [given, '1']), {
      name: 'UsageError',
      message: `unknown flag ${given}; did you mean ${meant}?`,
    });
  });
}

test('one dash where two were meant is told', () => {
  assert.throws(() => parseFlags(runFlags, ['-temp', '0']), {
    message: /-t\/--threads expects .*; did you mean --temp\?$/,
  });
});

test('a flag that resembles none points to the help', () => {
  assert.throws(() => parseFlags(runFlags, ['--zzzzzz']), {
    message: 'unknown flag --zzzzzz; --help lists all of them',
  });
  assert.throws(() => parseFlags(runFlags, ['--constructor']), { message: /^unknown flag --constructor/ });
  assert.throws(() => parseFlags(runFlags, ['--__proto__', 'x']), { message: /^unknown flag --__proto__/ });
});

test('nearest measures edits and knows when nothing is near', () => {
  assert.equal(nearest('isnpect', ['run', 'inspect', 'plan']), 'inspect');
  assert.equal(nearest('pln', ['run', 'inspect', 'plan']), 'plan');
  assert.equal(nearest('quantize', ['run', 'inspect', 'plan']), undefined);
  assert.equal(nearest('x'.repeat(100_000), ['run', 'inspect']), undefined);
});
