/** Renders chat templates to text that tells content from template, and says in plain data what went wrong. */

import { messageOf, type TemplateInput, TemplateProgram, TemplateRaised, TemplateSyntax } from './template-program.ts';
import { contentRanges } from './template-tags.ts';
import type { RenderedTemplate } from './types.ts';

export interface TemplateRequest extends TemplateInput {
  readonly template: string;
  /** Texts of the control tokens. */
  readonly controlTexts: readonly string[];
}

/**
 * `syntax`: the template does not parse. `raised`: it refused its input. `failed`: it broke. `mixed`: it treats content
 * that holds a control token's text in a way that cannot be followed.
 */
export type TemplateOutcome =
  | { readonly kind: 'rendered'; readonly rendered: RenderedTemplate }
  | { readonly kind: 'syntax' | 'raised' | 'failed' | 'mixed'; readonly message: string };

let latest: { readonly source: string; readonly program: TemplateProgram } | undefined;

export function renderTemplate(request: TemplateRequest, now = new Date()): TemplateOutcome {
  try {
    if (latest?.source !== request.template) {
      latest = { source: request.template, program: new TemplateProgram(request.template) };
    }
    const { program } = latest;
    const render = (input: TemplateInput) => program.render(input, now);
    const plain = render(request);
    const { controlTexts } = request;
    const rendered = contentRanges(plain, request, { controlTexts, comparedWith: program.comparedWith, render });
    if (rendered !== undefined) return { kind: 'rendered', rendered };
    const given = JSON.stringify([request.messages, request.tools, request.documents, request.kwargs]);
    const found = controlTexts.filter((text) => given.includes(JSON.stringify(text).slice(1, -1)));
    return { kind: 'mixed', message: found.join(', ') || 'characters that control tokens are made of' };
  } catch (error) {
    if (error instanceof TemplateSyntax) return { kind: 'syntax', message: error.message };
    if (error instanceof TemplateRaised) return { kind: 'raised', message: error.message };
    return { kind: 'failed', message: messageOf(error) };
  }
}
