/** Picks the platform by the runtime, once. */

import type { Platform } from './platform.ts';

export type { Platform, PlatformWorker, SourceInput, WorkerEntry, WorkerPort } from './platform.ts';

let picked: Promise<Platform> | undefined;

/** The platform this code runs on. */
export function platform(): Promise<Platform> {
  picked ??= pick();
  return picked;
}

async function pick(): Promise<Platform> {
  if ('process' in globalThis && typeof globalThis.process?.versions?.node === 'string') {
    return (await import('./node.ts')).nodePlatform;
  }
  return (await import('./browser.ts')).browserPlatform;
}
