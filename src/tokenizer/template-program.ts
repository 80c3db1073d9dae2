/**
 * A chat template, parsed, and run with the globals that Hugging Face gives it. Every template sees the same things:
 * `messages`, `tools`, `documents`, `add_generation_prompt`, the special tokens by name, `raise_exception`,
 * `strftime_now`, `range`, `namespace`, and what the caller adds.
 */

import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja';

/** What a template is run on; plain data. */
export interface TemplateInput {
  readonly messages: readonly unknown[];
  readonly tools?: readonly unknown[];
  readonly documents?: readonly unknown[];
  readonly kwargs?: Readonly<Record<string, unknown>>;
  readonly addGenerationPrompt: boolean;
  /** `bos_token`, `eos_token` …: the texts of special tokens. */
  readonly namedTokens: Readonly<Record<string, string>>;
}

/** The template called `raise_exception`. */
export class TemplateRaised extends Error {}

/** The template is not Jinja that we can read. */
export class TemplateSyntax extends Error {}

/** More than any template means; the list is made in full before the first turn of a loop. */
const LONGEST_RANGE = 100_000;

export class TemplateProgram {
  /**
   * String literals that the template compares text with, keeps in variables, or gives to methods and filters: text that
   * holds them must keep them as they are for the template to mean the same.
   */
  readonly comparedWith: readonly string[];
  readonly #program: ReturnType<typeof parse>;

  /** @throws TemplateSyntax */
  constructor(source: string) {
    try {
      this.#program = parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }));
    } catch (error) {
      throw new TemplateSyntax(messageOf(error), { cause: error });
    }
    const literals = new Set<string>();
    collectCompared(this.#program, false, literals);
    this.comparedWith = [...literals];
  }

  /** @throws TemplateRaised; Error for anything else that goes wrong inside. */
  render(input: TemplateInput, now: Date): string {
    const variables: Record<string, unknown> = {
      true: true,
      false: false,
      none: null,
      True: true,
      False: false,
      None: null,
      range,
      raise_exception: (message: unknown) => {
        throw new TemplateRaised(typeof message === 'string' ? message : 'raised without a message');
      },
      strftime_now: (format: string) => strftime(now, format),
      tools: input.tools ?? null,
      documents: input.documents ?? null,
      ...input.namedTokens,
      ...input.kwargs,
      messages: input.messages,
      add_generation_prompt: input.addGenerationPrompt,
    };
    const environment = new Environment();
    for (const [name, value] of Object.entries(variables)) {
      environment.variables.delete(name);
      environment.set(name, value);
    }
    const result = new Interpreter(environment).run(this.#program);
    return String(result.value);
  }
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** `compared`: whether a literal right here is an operand of a comparison, an argument or a variable's value. */
function collectCompared(node: unknown, compared: boolean, into: Set<string>): void {
  if (node instanceof Map) {
    for (const [key, value] of node) {
      collectCompared(key, compared, into);
      collectCompared(value, compared, into);
    }
    return;
  }
  if (Array.isArray(node)) {
    for (const item of node) collectCompared(item, compared, into);
    return;
  }
  if (typeof node !== 'object' || node === null) return;
  const { type, value, operator } = node as { type?: string; value?: unknown; operator?: { value?: string } };
  if (type === 'StringLiteral') {
    if (compared && typeof value === 'string' && value !== '') into.add(value);
    return;
  }
  const comparison = type === 'BinaryExpression' && ['==', '!=', 'in', 'not in'].includes(operator?.value ?? '');
  for (const [name, child] of Object.entries(node)) {
    const argument = (type === 'CallExpression' && name === 'args') || (type === 'Set' && name === 'value');
    const inherited = compared && type !== 'BinaryExpression' && type !== 'MemberExpression';
    collectCompared(child, comparison || argument || inherited, into);
  }
}

function range(start: number, stop?: number, step = 1): number[] {
  const [from, to] = stop === undefined ? [0, start] : [start, stop];
  const length = Math.max(0, Math.ceil((to - from) / step));
  if (!(length <= LONGEST_RANGE)) throw new Error(`range(${from}, ${to}, ${step}) is longer than ${LONGEST_RANGE}`);
  return Array.from({ length }, (_, i) => from + i * step);
}

const MONTHS = 'January February March April May June July August September October November December'.split(' ');
const DAYS = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ');

/** Python's `strftime` in the C locale, for the directives that templates use; others stay as they are. */
function strftime(now: Date, format: string): string {
  const two = (value: number) => String(value).padStart(2, '0');
  const hour12 = now.getHours() % 12 === 0 ? 12 : now.getHours() % 12;
  const month = MONTHS[now.getMonth()]!;
  const day = DAYS[now.getDay()]!;
  const values: Readonly<Record<string, string>> = {
    Y: String(now.getFullYear()),
    y: two(now.getFullYear() % 100),
    m: two(now.getMonth() + 1),
    B: month,
    b: month.slice(0, 3),
    d: two(now.getDate()),
    e: String(now.getDate()).padStart(2),
    '-d': String(now.getDate()),
    '-m': String(now.getMonth() + 1),
    A: day,
    a: day.slice(0, 3),
    H: two(now.getHours()),
    I: two(hour12),
    M: two(now.getMinutes()),
    S: two(now.getSeconds()),
    p: now.getHours() < 12 ? 'AM' : 'PM',
    '%': '%',
  };
  return format.replace(/%(-?.)/g, (directive, key: string) => values[key] ?? directive);
}
