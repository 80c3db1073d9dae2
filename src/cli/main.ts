#!/usr/bin/env node
/** The executable: this process as a command's context. Importing this file runs it. */

import { main } from './commands.ts';
import type { Context } from './context.ts';

/** The real world's context: this process. */
function processContext(): Context {
  const handlers: (() => void)[] = [];
  process.on('SIGINT', () => {
    const handler = handlers.at(-1);
    if (handler === undefined) process.exit(130);
    else handler();
  });
  for (const stream of [process.stdout, process.stderr]) {
    // Whoever read us has gone (`conclave … | head`): that is the end, and no error.
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EPIPE') process.exit(0);
      if (stream === process.stdout) process.stderr.write(`conclave: cannot write the output: ${error.message}\n`);
      process.exit(1);
    });
  }
  return {
    stdin: process.stdin,
    stdout: process.stdout,
    stderr: process.stderr,
    library: () => import('../index.ts'),
    onInterrupt(handler) {
      handlers.push(handler);
      return () => {
        const at = handlers.indexOf(handler);
        if (at >= 0) handlers.splice(at, 1);
      };
    },
    exit: (code) => process.exit(code),
  };
}

const code = await main(process.argv.slice(2), processContext());
// What was written goes out first; after that nothing that was left running may hold the process.
await new Promise<void>((resolve) => process.stdout.write('', () => resolve()));
process.exit(code);
