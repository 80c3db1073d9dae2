/**
 * Chat templates: messages to prompt text, rendered in a worker that is ended when a template takes too long, because
 * Jinja has loops and its interpreter knows no limit. One worker serves render after render.
 */

import { DisposedError, TemplateError, UsageError } from '../errors.ts';
import type { Platform, PlatformWorker } from '../platform/platform.ts';
import type { TemplateOutcome, TemplateRequest } from './template-render.ts';
import type { TemplateJob, TemplateReply } from './template-worker.ts';
import type { RenderedTemplate, Tokenizer } from './types.ts';

/** The longest that one render may take, in milliseconds, once its worker is up. */
export const TEMPLATE_TIMEOUT_MS = 500;
/** The longest that a worker may take to start. */
const START_TIMEOUT_MS = 10_000;

/** Renders templates, one after the other. Dispose it when the model goes. */
export interface TemplateHost {
  /**
   * @throws TemplateError `template` when the template does not parse, raises, fails or does not end in time;
   * UsageError `usage` for messages that are not plain data; DisposedError `disposed`.
   */
  render(request: TemplateRequest & { readonly where: string }, timeoutMs?: number): Promise<RenderedTemplate>;
  dispose(): Promise<void>;
}

/** What a chat prompt is made from. */
export interface ChatPrompt {
  readonly messages: readonly Readonly<Record<string, unknown>>[];
  /** Tool definitions, as the OpenAI API writes them. */
  readonly tools?: readonly unknown[];
  readonly documents?: readonly unknown[];
  /** More variables for the template: `{ enable_thinking: false }`. */
  readonly kwargs?: Readonly<Record<string, unknown>>;
  /** Whether the text ends where the assistant's answer begins. Default true. */
  readonly addGenerationPrompt?: boolean;
}

/**
 * The text of `prompt` by the tokenizer's own chat template, for `Tokenizer.encodeTemplated`. `where` is how errors call
 * the file.
 * @throws TemplateError `template`, also when the file has no template; see {@link TemplateHost.render}.
 */
export async function renderChat(
  prompt: ChatPrompt,
  { host, tokenizer, where }: { readonly host: TemplateHost; readonly tokenizer: Tokenizer; readonly where: string },
): Promise<RenderedTemplate> {
  if (tokenizer.chatTemplate === undefined) {
    throw new TemplateError(
      `${where}: it has no chat template (tokenizer.chat_template of a GGUF, chat_template.jinja of a folder), so messages cannot be turned into ` +
        'a prompt; give the prompt as text instead (--raw)',
    );
  }
  return host.render({
    where,
    template: tokenizer.chatTemplate,
    messages: prompt.messages,
    tools: prompt.tools,
    documents: prompt.documents,
    kwargs: prompt.kwargs,
    addGenerationPrompt: prompt.addGenerationPrompt ?? true,
    namedTokens: tokenizer.namedTokens,
    controlTexts: tokenizer.controlTexts,
  });
}

/** A host over the platform's `template-worker`. The worker starts with the first render. */
export function templateHost(platform: Pick<Platform, 'spawnWorker'>): TemplateHost {
  let line: WorkerLine | undefined;
  let last: Promise<unknown> = Promise.resolve();
  let disposed = false;

  const renderNow = async (request: TemplateRequest & { readonly where: string }, timeoutMs: number) => {
    if (disposed) throw new DisposedError('the chat template');
    const { where, ...job } = request;
    line ??= new WorkerLine(platform.spawnWorker('template-worker', undefined));
    const used = line;
    const outcome = await used.run(job, timeoutMs);
    if (outcome.kind === 'rendered') return outcome.rendered;
    if (outcome.kind === 'late' || outcome.kind === 'crashed') {
      // The worker is lost; the next render gets a new one.
      if (line === used) line = undefined;
      await used.end();
      if (disposed) throw new DisposedError('the chat template');
    }
    throw fault(outcome, where);
  };

  return {
    render(request, timeoutMs = TEMPLATE_TIMEOUT_MS) {
      const result = last.then(() => renderNow(request, timeoutMs));
      last = result.catch(() => undefined);
      return result;
    },
    async dispose() {
      disposed = true;
      const open = line;
      line = undefined;
      await open?.end();
    },
  };
}

type Outcome = TemplateOutcome | { readonly kind: 'late' | 'crashed' | 'uncloneable'; readonly message: string };

/** One worker, and the job that it is at. */
class WorkerLine {
  readonly #worker: PlatformWorker;
  readonly #ready: Promise<void>;
  #settle: ((outcome: Outcome) => void) | undefined;
  #crash: string | undefined;
  #job = 0;

  constructor(worker: PlatformWorker) {
    this.#worker = worker;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#ready = promise;
    worker.onMessage((message) => {
      const reply = message as TemplateReply;
      if (reply.type === 'ready') resolve();
      else if (reply.id === this.#job) this.#settle?.(reply.outcome);
    });
    worker.onError((error) => this.#stop(error instanceof Error ? error.message : String(error)));
  }

  async run(request: TemplateRequest, timeoutMs: number): Promise<Outcome> {
    const { promise, resolve } = Promise.withResolvers<Outcome>();
    this.#settle = resolve;
    if (this.#crash !== undefined) return { kind: 'crashed', message: this.#crash };
    this.#worker.ref();
    const late = (message: string) => () => resolve({ kind: 'late', message });
    let timer = setTimeout(late('its worker did not start'), START_TIMEOUT_MS);
    try {
      await Promise.race([this.#ready, promise]);
      clearTimeout(timer);
      timer = setTimeout(late(`it did not end within ${timeoutMs} ms`), timeoutMs);
      const job: TemplateJob = { id: ++this.#job, request };
      try {
        this.#worker.postMessage(job);
      } catch (error) {
        return { kind: 'uncloneable', message: error instanceof Error ? error.message : String(error) };
      }
      return await promise;
    } finally {
      clearTimeout(timer);
      this.#settle = undefined;
      this.#worker.unref();
    }
  }

  end(): Promise<void> {
    this.#stop('it was ended');
    return this.#worker.terminate();
  }

  #stop(message: string): void {
    this.#crash = message;
    this.#settle?.({ kind: 'crashed', message });
  }
}

function fault({ kind, message }: Exclude<Outcome, { kind: 'rendered' }>, where: string): TemplateError | UsageError {
  const data = { kind, message };
  switch (kind) {
    case 'syntax':
      return new TemplateError(
        `${where}: the chat template does not parse: ${message}; give the prompt as text, or get a file with a sound template`,
        { data },
      );
    case 'raised':
      return new TemplateError(`${where}: the chat template refuses these messages: ${message}`, { data });
    case 'late':
      return new TemplateError(`${where}: the chat template was stopped: ${message}; give the prompt as text instead`, {
        data,
      });
    case 'crashed':
      return new TemplateError(
        `${where}: the chat template ended its worker: ${message}; give the prompt as text instead`,
        {
          data,
        },
      );
    case 'mixed':
      return new TemplateError(
        `${where}: the chat template takes messages apart in a way that hides which control tokens are its own and which ` +
          `are their text (${message}); take them out of the messages`,
        { data },
      );
    case 'uncloneable':
      return new UsageError(`messages, tools and template arguments must be plain data: ${message}`, { data });
    case 'failed':
      return new TemplateError(`${where}: the chat template failed on these messages: ${message}`, { data });
  }
}
