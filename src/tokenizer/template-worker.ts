/** The worker that templates render in: it can be ended when one of them does not end by itself. */

import { workerPort } from '../platform/worker-port.ts';
import { renderTemplate, type TemplateOutcome, type TemplateRequest } from './template-render.ts';

export interface TemplateJob {
  readonly id: number;
  readonly request: TemplateRequest;
}

/** `ready` comes once, when jobs can be taken; then one `done` a job, in order. */
export type TemplateReply =
  | { readonly type: 'ready' }
  | { readonly type: 'done'; readonly id: number; readonly outcome: TemplateOutcome };

const port = await workerPort();
const reply = (message: TemplateReply) => port.postMessage(message);
port.onMessage((message) => {
  const { id, request } = message as TemplateJob;
  reply({ type: 'done', id, outcome: renderTemplate(request) });
});
reply({ type: 'ready' });
