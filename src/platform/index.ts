/** Picks the platform by the runtime, once. */

import { Refusal } from '../errors.ts';
import type { Platform } from './platform.ts';

export type { Platform, PlatformWorker, SourceInput, WorkerEntry, WorkerPort } from './platform.ts';

let picked: Promise<Platform> | undefined;

/** The oldest Node that has what the engine uses; `engines` of package.json says the same. */
export const OLDEST_NODE = 22;

/** The platform this code runs on. @throws Refusal `refused` on a Node that is too old. */
export function platform(): Promise<Platform> {
  picked ??= pick();
  return picked;
}

async function pick(): Promise<Platform> {
  if ('process' in globalThis && typeof globalThis.process?.versions?.node === 'string') {
    checkNode(globalThis.process.versions.node);
    return (await import('./node.ts')).nodePlatform;
  }
  return (await import('./browser.ts')).browserPlatform;
}

/** @throws Refusal `refused`: an old Node would fail somewhere deep inside, with a message about something else. */
export function checkNode(version: string): void {
  if (Number.parseInt(version, 10) >= OLDEST_NODE) return;
  throw new Refusal(`Node ${version} is too old: Conclave needs Node ${OLDEST_NODE} or later`);
}
