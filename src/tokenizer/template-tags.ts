/**
 * Tells which characters of a rendered template came out of message content. Content is rendered a second time with its
 * characters swapped for private-use ones, one for one, so that trimming, slicing, joining and measuring do the same to
 * it; what is swapped in the result came from content. The second result must read the same as the first once swapped
 * back, else another way of tagging is tried, and where none works the template is not used.
 */

import type { TemplateInput } from './template-program.ts';
import type { RenderedTemplate } from './types.ts';

/** The texts of control tokens, and what the template compares text with. */
export interface TagContext {
  readonly controlTexts: readonly string[];
  readonly comparedWith: readonly string[];
}

/** One way to tag. Stricter ways come first; each later one suits templates that look closer at their content. */
interface Way {
  /** Swap letters and digits too: breaks templates that change case or read numbers. */
  readonly letters: boolean;
  /** Leave whole every literal that the template compares with, not only those that no control token could grow from. */
  readonly allLiterals: boolean;
  /** Leave whole also literals that hold a control token's text, between two marks. */
  readonly marks: boolean;
}

const ways: readonly Way[] = [
  { letters: true, allLiterals: false, marks: false },
  { letters: false, allLiterals: false, marks: false },
  { letters: false, allLiterals: true, marks: false },
  { letters: false, allLiterals: true, marks: true },
];

const LETTER = /[\p{L}\p{M}\p{N}_-]/u;
/** Characters that JSON escapes, and spaces, which templates trim. */
const NEVER_TAGGED = /[\p{White_Space}"\\\p{Cc}]/u;
const FIRST_PRIVATE = 0xe000;
const LAST_PRIVATE = 0xf8ff;

/**
 * The ranges of `plain`, the text of `input`, that came from content; undefined when that cannot be told.
 * `render` runs the template.
 */
export function contentRanges(
  plain: string,
  input: TemplateInput,
  context: TagContext & { readonly render: (input: TemplateInput) => string },
): RenderedTemplate | undefined {
  const control = anyOf(context.controlTexts);
  const present = control === undefined ? [] : textsIn(plain, control, context.controlTexts);
  if (control === undefined || present.length === 0) return { text: plain, content: [] };
  const free = unusedPrivate(input, plain, context.comparedWith);
  for (const way of ways) {
    const tags = new Tags(way, { present, control, comparedWith: context.comparedWith, free });
    if (!tags.safe) continue;
    const tagged = tags.input(input);
    if (!tags.used) return { text: plain, content: [] };
    let result: string;
    try {
      result = context.render(tagged);
    } catch {
      continue; // the plain text rendered: it is the tags that this template does not bear
    }
    const rendered = tags.remove(result);
    if (rendered?.text === plain) return rendered;
  }
  return undefined;
}

class Tags {
  /** Something in the input has been tagged. */
  used = false;
  /** Every control token has a character that is tagged wherever content has it, so content alone cannot spell one. */
  readonly safe: boolean;
  readonly #tagOf = new Map<string, string>();
  readonly #characterOf = new Map<string, string>();
  /** Runs of characters to tag. */
  readonly #taggable: RegExp;
  /** Runs of tags, and single marks. */
  readonly #tagRuns: RegExp;
  readonly #open: string;
  readonly #close: string;
  /** Matches what stays whole. */
  readonly #whole: RegExp | undefined;
  /** Of that, what goes between marks. */
  readonly #marked: ReadonlySet<string>;
  readonly #control: RegExp;

  constructor(
    way: Way,
    context: {
      readonly present: readonly string[];
      readonly control: RegExp;
      readonly comparedWith: readonly string[];
      readonly free: IterableIterator<string>;
    },
  ) {
    const { present, control, comparedWith, free } = context;
    this.#control = control;
    this.#open = next(free);
    this.#close = next(free);
    for (const text of present) {
      const spelledInLetters = [...text].every((character) => LETTER.test(character) || NEVER_TAGGED.test(character));
      for (const character of text) {
        if (character.length > 1 || NEVER_TAGGED.test(character) || this.#tagOf.has(character)) continue;
        if (LETTER.test(character) && !way.letters && !spelledInLetters) continue;
        const tag = next(free);
        this.#tagOf.set(character, tag);
        this.#characterOf.set(tag, character);
      }
    }
    this.#taggable = new RegExp(`[${escaped([...this.#tagOf.keys()].join(''))}]+`, 'g');
    this.#tagRuns = new RegExp(`[${this.#open}${this.#close}]|[${[...this.#characterOf.keys()].join('')}]+`, 'g');
    const kept = comparedWith.filter((literal) => {
      if (this.#hasControl(literal)) return way.marks;
      return way.allLiterals || !couldGrow(literal, present);
    });
    this.#whole = anyOf(kept);
    const growing = kept.filter((literal) => !this.#hasControl(literal) && couldGrow(literal, present));
    this.safe = present.every((text) =>
      [...text].some(
        (character) => this.#tagOf.has(character) && !growing.some((literal) => literal.includes(character)),
      ),
    );
    this.#marked = new Set(kept.filter((literal) => this.#hasControl(literal)));
  }

  input(input: TemplateInput): TemplateInput {
    return {
      ...input,
      messages: this.#value(input.messages) as readonly unknown[],
      tools: this.#value(input.tools) as readonly unknown[] | undefined,
      documents: this.#value(input.documents) as readonly unknown[] | undefined,
      kwargs: this.#value(input.kwargs) as Readonly<Record<string, unknown>> | undefined,
    };
  }

  /** The text with tags swapped back, and where they were; undefined when marks do not stand around what they stood. */
  remove(tagged: string): RenderedTemplate | undefined {
    const content: number[] = [];
    let text = '';
    let done = 0;
    let opened = -1;
    for (const { 0: run, index } of tagged.matchAll(this.#tagRuns)) {
      text += tagged.slice(done, index);
      done = index + run.length;
      if (run === this.#open) {
        if (opened >= 0) return undefined;
        opened = text.length;
      } else if (run === this.#close) {
        const between = text.slice(opened);
        if (opened < 0 || !(between === '' || this.#marked.has(between))) return undefined;
        if (between !== '') append(content, opened, text.length);
        opened = -1;
      } else {
        append(content, text.length, text.length + run.length);
        text += swapped(run, this.#characterOf);
      }
    }
    return opened < 0 ? { text: text + tagged.slice(done), content } : undefined;
  }

  #value(value: unknown, key = ''): unknown {
    if (typeof value === 'string') return key === 'role' && /^[\w.-]*$/.test(value) ? value : this.#text(value);
    if (Array.isArray(value)) return value.map((item) => this.#value(item));
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(
      Object.entries(value).map(([name, item]) => [
        /^[\w$.-]*$/.test(name) ? name : this.#text(name),
        this.#value(item, name),
      ]),
    );
  }

  #text(text: string): string {
    let result = '';
    let done = 0;
    for (const [start, end] of this.#whole === undefined ? [] : matches(this.#whole, text)) {
      const literal = text.slice(start, end);
      result += this.#swap(text.slice(done, start));
      if (this.#marked.has(literal)) {
        this.used = true;
        result += this.#open + literal + this.#close;
      } else {
        result += literal;
      }
      done = end;
    }
    return result + this.#swap(text.slice(done));
  }

  #swap(text: string): string {
    return text.replace(this.#taggable, (run) => {
      this.used = true;
      return swapped(run, this.#tagOf);
    });
  }

  #hasControl(text: string): boolean {
    this.#control.lastIndex = 0;
    return this.#control.test(text);
  }
}

/** Whether a control token's text could be put together with `literal` as a part of it. */
function couldGrow(literal: string, controlTexts: readonly string[]): boolean {
  if ([...literal].every((character) => LETTER.test(character) || NEVER_TAGGED.test(character))) return false;
  return controlTexts.some((text) => {
    if (text.includes(literal)) return true;
    for (let length = 1; length < Math.min(text.length, literal.length); length++) {
      if (literal.endsWith(text.slice(0, length)) || literal.startsWith(text.slice(-length))) return true;
    }
    return false;
  });
}

/** Which of `texts`, all matched by `any`, can be read in `text`, those inside others included; none of mere space. */
function textsIn(text: string, any: RegExp, texts: readonly string[]): string[] {
  const found = new Set(Array.from(text.matchAll(new RegExp(`(?=(${any.source}))`, 'g')), (match) => match[1]!));
  return texts.filter(
    (each) =>
      (found.has(each) || [...found].some((longer) => longer.includes(each))) &&
      [...each].some((character) => !NEVER_TAGGED.test(character)),
  );
}

/** Appends a range that begins no earlier than the last one ends. */
function append(ranges: number[], start: number, end: number): void {
  if (ranges.at(-1) === start) ranges[ranges.length - 1] = end;
  else ranges.push(start, end);
}

function matches(expression: RegExp, text: string): (readonly [number, number])[] {
  return Array.from(text.matchAll(expression), (match) => [match.index, match.index + match[0].length] as const);
}

function swapped(run: string, by: ReadonlyMap<string, string>): string {
  let result = '';
  for (let at = 0; at < run.length; at++) result += by.get(run[at]!)!;
  return result;
}

/** `text` with what regular expressions read as syntax taken literally, in a class or outside. */
function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/-]/g, '\\$&');
}

/** Matches any of `texts`, the longest first. */
function anyOf(texts: readonly string[]): RegExp | undefined {
  if (texts.length === 0) return undefined;
  const longestFirst = [...texts].sort((a, b) => b.length - a.length);
  return new RegExp(longestFirst.map(escaped).join('|'), 'g');
}

/** Private-use characters that appear nowhere in what the template works on. */
function* unusedPrivate(input: TemplateInput, plain: string, literals: readonly string[]): IterableIterator<string> {
  const used = new Set(`${JSON.stringify([input, literals])}${plain}`.match(/[\uE000-\uF8FF]/g));
  for (let code = FIRST_PRIVATE; code <= LAST_PRIVATE; code++) {
    const character = String.fromCharCode(code);
    if (!used.has(character)) yield character;
  }
}

function next(free: IterableIterator<string>): string {
  const { value, done } = free.next();
  if (done === true) throw new RangeError('the messages use too many private-use characters');
  return value;
}
