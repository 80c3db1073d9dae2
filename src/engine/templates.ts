/** The chat template of a model's file, ready to render: in a worker, which is ended when a template does not end. */

import type { Platform } from '../platform/platform.ts';
import { renderChat, templateHost } from '../tokenizer/chat-template.ts';
import type { RenderedTemplate, Tokenizer } from '../tokenizer/index.ts';
import type { ChatMessage } from './types.ts';

export interface ChatTemplates {
  /**
   * The template's text for messages, and which of it came from them.
   * @throws TemplateError `template`
   */
  render(
    messages: readonly ChatMessage[],
    options: { readonly kwargs?: Readonly<Record<string, unknown>>; readonly addGenerationPrompt?: boolean },
  ): Promise<RenderedTemplate>;
  dispose(): Promise<void>;
}

/** @param where how errors call the file */
export function chatTemplates(
  platform: Pick<Platform, 'spawnWorker'>,
  tokenizer: Tokenizer,
  where: string,
): ChatTemplates {
  const host = templateHost(platform);
  return {
    render: (messages, options) => renderChat({ messages, ...options }, { host, tokenizer, where }),
    dispose: () => host.dispose(),
  };
}
