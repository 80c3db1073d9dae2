/** Hands out the slots in which a device draws tokens, a request at most one. */

import type { Drawer } from '../backend/backend.ts';
import type { Request } from './request.ts';

export class DrawSlots {
  readonly #drawer: Drawer | undefined;
  /** The last one is handed out next. */
  readonly #free: number[];

  /** @param drawer absent: there are no slots */
  constructor(drawer: Drawer | undefined) {
    this.#drawer = drawer;
    this.#free = Array.from({ length: drawer?.slots ?? 0 }, (_, slot) => slot).reverse();
  }

  /**
   * Whether the device draws the request's next token: where it takes its settings, and as soon as a slot is free. The tokens
   * before it must have come, if the host has drawn so far.
   */
  take(request: Request): boolean {
    if (request.slot !== undefined) return true;
    const drawer = this.#drawer;
    const { settings, prompt, answer } = request;
    if (drawer === undefined || request.refused || this.#free.length === 0) return false;
    if (drawer.takes(settings) !== true) return false;
    request.slot = this.#free.pop() as number;
    drawer.begin(request.slot, settings, [...prompt, ...answer]);
    return true;
  }

  release(request: Request): void {
    if (request.slot !== undefined) this.#free.push(request.slot);
    request.slot = undefined;
  }
}
