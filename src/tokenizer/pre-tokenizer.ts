/**
 * Pre-tokenizers of byte-level BPE: how text is cut into words before merging, by the name that a GGUF file gives in
 * `tokenizer.ggml.pre`. The expressions are those that the models' own tokenizers were trained with; `\s` is written as
 * the Unicode property, because JavaScript's own `\s` counts U+FEFF in and leaves U+0085 out.
 */

import { Refusal } from '../errors.ts';

/**
 * One pass over the pieces so far: what the expression matches, and what lies between matches, become pieces of their
 * own. With `groups`, each match is cut further into groups of that many characters, counted from its right end.
 */
interface Stage {
  readonly expression: RegExp;
  readonly groups?: number;
}

export interface PreTokenizer {
  readonly name: string;
  readonly stages: readonly Stage[];
  /** A word that is in the vocabulary is that token, whatever the merges would make of it. */
  readonly ignoreMerges: boolean;
  /** Whether a text begins with BOS where the file does not say. */
  readonly addBos: boolean;
}

const SPACE = '\\p{White_Space}';
/** Whitespace except what stands right before a word. */
const TRAILING_SPACE = `${SPACE}+(?!\\P{White_Space})|${SPACE}+`;
const SPACE_TO_NEWLINE = `${SPACE}*[\\r\\n]+`;
/** English contractions in any case; U+017F is the other lower case of S. */
const CONTRACTION = "'(?:[sS\\u017F]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])";
const UPPER = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';
const LOWER = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]';
const PREFIX = '[^\\r\\n\\p{L}\\p{N}]?';
const IDEOGRAPHS_AND_KANA = '[\\u4E00-\\u9FA5\\u3040-\\u30FF]+';
const PUNCTUATION_THEN_LATIN = '[!-\\/:-@\\[-`{-~][A-Za-z]+';

function stage(...alternatives: string[]): Stage {
  return { expression: new RegExp(alternatives.join('|'), 'gu') };
}

const gpt2 = stage("'(?:s|t|re|ve|m|ll|d)", ' ?\\p{L}+', ' ?\\p{N}+', ` ?[^${SPACE}\\p{L}\\p{N}]+`, TRAILING_SPACE);

/** The shape that most models since 2023 share; they differ in digits and in what follows punctuation. */
function words(digits: string, options: { readonly marks?: boolean; readonly contraction?: boolean } = {}): Stage {
  const letter = options.marks === true ? '[\\p{L}\\p{M}]' : '\\p{L}';
  const marks = options.marks === true ? '\\p{M}' : '';
  return stage(
    ...(options.contraction === false ? [] : [CONTRACTION]),
    `${PREFIX}${letter}+`,
    digits,
    ` ?[^${SPACE}\\p{L}${marks}\\p{N}]+[\\r\\n]*`,
    SPACE_TO_NEWLINE,
    TRAILING_SPACE,
  );
}

/** Words cut where lower case turns to upper case (o200k and its kin). `without`: a script that is cut apart first. */
function casedWords(options: {
  readonly digits: string;
  readonly contraction: boolean;
  readonly afterPunctuation?: string;
  readonly without?: string;
}): Stage {
  const not = options.without === undefined ? '' : `(?!\\p{${options.without}})`;
  const upper = `(?:${not}${UPPER})`;
  const lower = `(?:${not}${LOWER})`;
  const tail = options.contraction ? `(?:${CONTRACTION})?` : '';
  return stage(
    ...(options.without === undefined ? [] : [`\\p{${options.without}}+`]),
    `${PREFIX}${upper}*${lower}+${tail}`,
    `${PREFIX}${upper}+${lower}*${tail}`,
    options.digits,
    ` ?[^${SPACE}\\p{L}\\p{N}]+[${options.afterPunctuation ?? '\\r\\n\\/'}]*`,
    SPACE_TO_NEWLINE,
    TRAILING_SPACE,
  );
}

/** Cased letters as DeepSeek's first tokenizers list them: fewer than today's Unicode has. Code points in hex. */
const DEEPSEEK_LETTERS =
  '41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 ' +
  '3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A ' +
  '1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 ' +
  '1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 ' +
  '212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D ' +
  'A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F ' +
  '104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943';

function classOf(ranges: string): string {
  return `[${ranges.replace(/[0-9A-F]+/g, (hex) => `\\u{${hex}}`).replaceAll(' ', '')}]`;
}

const newline = stage('[\\r\\n]');
const ideographs = stage('[\\u4E00-\\u9FA5\\u0800-\\u4E00\\uAC00-\\uD7FF]+');
const digit = stage('\\p{N}');
const digitRun = stage('\\p{N}+');
const threeDigits = stage('\\p{N}{1,3}');
const threeAsciiDigits = stage('[0-9][0-9][0-9]');
const digitGroups: Stage = { expression: /\p{N}+/gu, groups: 3 };

const deepseek3 = [
  threeDigits,
  stage(IDEOGRAPHS_AND_KANA),
  stage(
    PUNCTUATION_THEN_LATIN,
    '[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+',
    ' ?[\\p{P}\\p{S}]+[\\r\\n]*',
    SPACE_TO_NEWLINE,
    TRAILING_SPACE,
  ),
];
const bloom = stage(` ?[^(${SPACE}|.,!?\\u2026\\u3002\\uFF0C\\u3001\\u0964\\u06D4\\u060C)]+`);
/** Chinese, Japanese, Thai, Lao, Khmer, Burmese and Korean: scripts that AFMoE keeps apart from the rest. */
const asianScripts = stage(
  '[\\u4E00-\\u9FFF\\u3400-\\u4DBF\\uF900-\\uFAFF\\u3040-\\u30FF\\uFF65-\\uFF9F\\u2F00-\\u2FDF\\u0E40-\\u0EFF' +
    '\\u1780-\\u17FF\\u1000-\\u109F\\uAA60-\\uAA7F\\uA9E0-\\uA9FF\\uAC00-\\uD7AF\\u1100-\\u11FF]+',
);

interface Row {
  readonly names: readonly string[];
  readonly stages: readonly Stage[];
  readonly ignoreMerges?: boolean;
  readonly addBos?: boolean;
}

const rows: readonly Row[] = [
  {
    names: ['default'],
    stages: [stage('[\\p{P}$+<=>^~|]+'), gpt2, digitRun, threeAsciiDigits],
  },
  {
    names: [
      'gpt-2',
      'phi-2',
      'gigachat',
      'mellum',
      'modern-bert',
      'mpt',
      'olmo',
      'jais',
      'trillion',
      'granite-docling',
      'exaone4',
      'a.x-4.0',
    ],
    stages: [gpt2],
  },
  {
    names: ['llama-bpe', 'llama3', 'llama-v3', 'falcon3', 'falcon-h1', 'pixtral', 'midm-2.0', 'lfm2'],
    stages: [words('\\p{N}{1,3}')],
    ignoreMerges: true,
    addBos: true,
  },
  { names: ['dbrx', 'smaug-bpe', 'glm4', 'chatglm-bpe'], stages: [words('\\p{N}{1,3}')] },
  {
    names: ['qwen2', 'deepseek-r1-qwen', 'kormo', 'f2llmv2', 'megrez', 'stablelm2', 'hunyuan', 'solar-open', 'grok-2'],
    stages: [words('\\p{N}')],
  },
  { names: ['qwen35'], stages: [words('\\p{N}', { marks: true })] },
  { names: ['ufakzeka'], stages: [words('\\p{N}', { contraction: false })] },
  { names: ['laguna'], stages: [stage('[^\\n]+', '\\n+'), words('\\p{N}')] },
  { names: ['minicpm5'], stages: [threeDigits, words('\\p{N}+')], ignoreMerges: true },
  {
    names: ['smollm', 'starcoder', 'refact', 'command-r', 'codeshell', 'exaone', 'minerva-7b', 'mellum2'],
    stages: [digit, gpt2],
  },
  { names: ['falcon'], stages: [stage('[\\p{P}$+<=>^~|`]+'), gpt2, threeAsciiDigits] },
  {
    names: ['deepseek-llm'],
    stages: [
      newline,
      stage(`${SPACE}?${classOf(DEEPSEEK_LETTERS)}+`),
      stage(`${SPACE}?[!-\\/:-~\\uFF01-\\uFF0F\\uFF1A-\\uFF5E\\u2018-\\u201F\\u3000-\\u3002]+`),
      stage(`${SPACE}+$`),
      ideographs,
      digitRun,
    ],
  },
  {
    names: ['deepseek-coder'],
    stages: [newline, stage(`${SPACE}?\\p{L}+`), stage(`${SPACE}?\\p{P}+`), ideographs, digit],
  },
  { names: ['deepseek-v3', 'hunyuan-dense', 'joyai-llm', 'hy_v4'], stages: deepseek3 },
  {
    names: ['gpt-4o', 'llama4', 'kanana2', 'talkie', 'minimax-m2'],
    stages: [casedWords({ digits: '\\p{N}{1,3}', contraction: true })],
  },
  {
    names: ['tiny_aya', 'cohere2moe'],
    stages: [digitGroups, casedWords({ digits: '\\p{N}{1,3}', contraction: true, afterPunctuation: '\\r\\n\\/' })],
  },
  {
    names: ['tekken'],
    stages: [casedWords({ digits: '\\p{N}', contraction: false })],
    ignoreMerges: true,
    addBos: true,
  },
  {
    names: ['kimi-k2'],
    stages: [
      casedWords({
        digits: '\\p{N}{1,3}',
        contraction: true,
        afterPunctuation: '\\r\\n',
        without: 'Script=Han',
      }),
    ],
  },
  {
    names: ['bailingmoe', 'bailingmoe2', 'llada-moe'],
    stages: [
      stage(
        CONTRACTION,
        `${PREFIX}\\p{L}+`,
        '\\p{N}',
        ` ?[^${SPACE}\\p{L}\\p{N}]+[\\r\\n]*`,
        `${SPACE}*[\\r\\n]`,
        TRAILING_SPACE,
      ),
    ],
  },
  {
    names: ['seed-coder'],
    stages: [
      stage(
        CONTRACTION,
        `${PREFIX}\\p{L}+`,
        '\\p{N}',
        ` ?[^${SPACE}\\p{L}\\p{N}\\r\\n]+`,
        SPACE_TO_NEWLINE,
        TRAILING_SPACE,
      ),
    ],
  },
  {
    names: ['exaone-moe'],
    stages: [
      stage(
        CONTRACTION,
        `${PREFIX}(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+`,
        '\\p{N}',
        ` ?[^${SPACE}\\p{L}\\p{N}]+[\\r\\n\\/]?`,
        `${SPACE}*[\\r\\n]`,
        TRAILING_SPACE,
      ),
    ],
  },
  {
    names: ['afmoe'],
    stages: [digitGroups, asianScripts, deepseek3[2]!],
  },
  { names: ['poro-chat', 'bloom', 'gpt3-finnish'], stages: [bloom] },
  { names: ['viking'], stages: [bloom, digit] },
];

/** Names of the pre-tokenizers that are known. */
export const preTokenizerNames: readonly string[] = rows.flatMap((row) => row.names);

/**
 * The pre-tokenizer that a file names.
 * @throws Refusal `refused` for a name that is not in the table.
 */
export function preTokenizer(name: string, where: string): PreTokenizer {
  const row = rows.find(({ names }) => names.includes(name));
  if (row === undefined) {
    throw new Refusal(
      `${where}: the pre-tokenizer '${name}' (tokenizer.ggml.pre) is not known, and guessing would cut words wrongly; ` +
        `known are ${preTokenizerNames.join(', ')}`,
      { data: { key: 'tokenizer.ggml.pre', name } },
    );
  }
  return { name, stages: row.stages, ignoreMerges: row.ignoreMerges ?? false, addBos: row.addBos ?? false };
}

/** Cuts `text` into words; together they are the text. */
export function splitWords(text: string, { stages }: PreTokenizer): string[] {
  let pieces = text === '' ? [] : [text];
  for (const { expression, groups } of stages) {
    const next: string[] = [];
    for (const piece of pieces) cut(piece, expression, groups, next);
    pieces = next;
  }
  return pieces;
}

function cut(piece: string, expression: RegExp, groups: number | undefined, into: string[]): void {
  let done = 0;
  expression.lastIndex = 0;
  for (let match = expression.exec(piece); match !== null; match = expression.exec(piece)) {
    if (match.index > done) into.push(piece.slice(done, match.index));
    if (groups === undefined) into.push(match[0]);
    else pushGroups(match[0], groups, into);
    done = match.index + match[0].length;
  }
  if (done < piece.length) into.push(done === 0 ? piece : piece.slice(done));
}

function pushGroups(run: string, size: number, into: string[]): void {
  const characters = Array.from(run);
  let end = characters.length % size;
  if (end > 0) into.push(characters.slice(0, end).join(''));
  for (; end < characters.length; end += size) into.push(characters.slice(end, end + size).join(''));
}
