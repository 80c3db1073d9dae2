/**
 * Runs every test with Node's runner, whose summary ends the output. Tests of the GPU need one: without it they are left
 * out and one line says so, but in CI (CI=true) they run and fail.
 */

import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { requestAdapter } from '../src/backend/gpu/device.ts';
import { nodePlatform } from '../src/platform/node.ts';

/** SwiftShader, as Debian's `chromium` package brings it: what CI runs the GPU's tests on. */
const SWIFTSHADER = '/usr/lib/chromium/vk_swiftshader_icd.json';

const everywhere = ['src/**/*.test.ts', 'scripts/*.test.ts', 'bench/peers/*.test.ts', 'test/!(gpu)/**/*.test.ts'];
const onGpu = 'test/gpu/*.test.ts';

if (process.env.VK_DRIVER_FILES === undefined && existsSync(SWIFTSHADER)) process.env.VK_DRIVER_FILES = SWIFTSHADER;

const without = process.env.CI === 'true' ? undefined : await whyNoGpu();
if (without !== undefined) console.log(`left out, for want of a GPU: ${onGpu} (${without})`);
const files = without === undefined ? [...everywhere, onGpu] : everywhere;
const { status } = spawnSync(process.execPath, ['--test', '--test-concurrency=2', ...files], { stdio: 'inherit' });
// Dawn's threads would keep the process.
process.exit(status ?? 1);

async function whyNoGpu(): Promise<string | undefined> {
  try {
    await requestAdapter(nodePlatform);
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
