/** Whether two models speak of the same tokens: else what one drafts means nothing to the other. */

import { Refusal } from '../../errors.ts';
import type { Tokenizer } from '../../tokenizer/index.ts';

export interface NamedTokenizer {
  /** How errors call its model. */
  readonly name: string;
  readonly tokenizer: Tokenizer;
}

/** @throws Refusal `refused` naming the first token that differs */
export function checkSameVocabulary(model: NamedTokenizer, draft: NamedTokenizer): void {
  const [own, others] = [model.tokenizer, draft.tokenizer];
  const refuse = (found: string, expected: string, data: Readonly<Record<string, unknown>>) =>
    new Refusal(
      `${draft.name} cannot draft for ${model.name}: ${found}; expected ${expected}, since every id must mean the same text to both; ` +
        'choose a draft model of the same family, or draft with --spec lookup',
      { data },
    );
  const [expected, found] = [own.vocabularySize, others.vocabularySize];
  if (found !== expected) {
    throw refuse(`its vocabulary has ${found} tokens`, `${expected}`, { found, expected });
  }
  const show = (text: string) => JSON.stringify(text.slice(0, 40));
  for (let id = 0; id < expected; id++) {
    const [text, other] = [own.text(id), others.text(id)];
    if (text !== other) throw refuse(`its token ${id} is ${show(other)}`, show(text), { token: id });
    if (own.isSpecial(id) === others.isSpecial(id)) continue;
    const kind = (tokenizer: Tokenizer) => (tokenizer.isSpecial(id) ? 'a control token' : 'text');
    throw refuse(`its token ${id}, ${show(text)}, is ${kind(others)}`, kind(own), { token: id });
  }
}
