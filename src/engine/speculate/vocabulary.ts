/** Whether two models speak of the same tokens: else what one drafts means nothing to the other. */

import { Refusal } from '../../errors.ts';
import type { ModelFile } from '../../format/model-file.ts';

/** @throws Refusal `refused` naming the first token that differs */
export function checkSameVocabulary(model: ModelFile, draft: ModelFile): void {
  const [own, others] = [tokensOf(model), tokensOf(draft)];
  const refuse = (found: string, expected: string, data: Readonly<Record<string, unknown>>) =>
    new Refusal(
      `${draft.name} cannot draft for ${model.name}: ${found}; expected ${expected}, since every id must mean the same text to both; ` +
        'choose a draft model of the same family, or draft with --spec lookup',
      { data },
    );
  if (own.length !== others.length) {
    throw refuse(`its vocabulary has ${others.length} tokens`, `${own.length}`, {
      found: others.length,
      expected: own.length,
    });
  }
  const id = own.findIndex((token, index) => token !== others[index]);
  if (id >= 0) {
    const show = (token: unknown) => JSON.stringify(String(token).slice(0, 40));
    throw refuse(`its token ${id} is ${show(others[id])}`, show(own[id]), { token: id });
  }
}

function tokensOf({ metadata }: ModelFile): readonly unknown[] {
  const tokens = metadata.get('tokenizer.ggml.tokens');
  return tokens?.type === 'array' ? Array.from(tokens.value as ArrayLike<unknown>) : [];
}
