/** What `conclave bench` finds, as data and in words and columns. */

import type { DeviceBandwidth, RunProfile } from '../backend/backend.ts';
import type { DeviceMemory, Model } from '../engine/types.ts';
import type { ExpertStatsSnapshot } from '../experts/stats.ts';
import type { Bandwidth } from './bandwidth.ts';
import { describeSnapshot, expertSums, leftOut } from './expert-stats-text.ts';
import { columns, printable, showBytes, showCount, showPlural, showRate, showTime } from './format.ts';
import { describeMemory } from './memory-text.ts';
import { describeSpeculation, type SpeculationResult } from './speculation-text.ts';

export interface Series {
  readonly tokens: number;
  /** Tokens that stood in the cache before them, where there was more than one. */
  readonly depth?: number;
  /** Tokens a second, a run each. */
  readonly runs: readonly number[];
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

/** A run of the graph by kernel, and what it computed: rows from a position on. */
export type BenchProfile = RunProfile & { readonly tokens: number; readonly position: number };

export interface BenchResult {
  readonly model: Model['info'];
  readonly device: string;
  readonly adapter?: string;
  readonly threads: number;
  readonly loadMs: number;
  readonly prefill?: Series;
  readonly decode?: Series;
  /** Of weights. */
  readonly bytesPerToken: number;
  /** Of the cache, by a token in the middle of the decode test. */
  readonly cacheBytesPerToken?: number;
  /** Of the device's memory; threads and passes of the CPU's. */
  readonly bandwidth?: DeviceBandwidth & Partial<Bandwidth>;
  /** Of the measured bandwidth, by the median decode run. */
  readonly bandwidthShare?: number;
  /** By kernel, where the device tells. */
  readonly profile?: { readonly prefill?: BenchProfile; readonly decode?: BenchProfile };
  /** What the experts did in the measured runs, where that is counted. */
  readonly experts?: {
    readonly prefill?: ExpertStatsSnapshot;
    readonly decode?: ExpertStatsSnapshot;
    readonly notCounted: readonly number[];
  };
  /** What drafting came to in the measured runs of the decode test, where tokens were drafted. */
  readonly speculation?: SpeculationResult;
  /** Of the GPU, where the model has a part there; with what it took at the most in all tests. */
  readonly gpuMemory?: DeviceMemory;
  /** Of this process, before the CPU's bandwidth was measured. */
  readonly peakMemoryBytes: number;
}

/** @param show.layers whether what the experts did is shown layer by layer */
export function describeBench(name: string, result: BenchResult, show: { readonly layers: boolean }): string {
  const { model, device, adapter, threads, prefill, decode, profile } = result;
  // On a GPU alone there is no pool of threads.
  const where = [
    ...(adapter === undefined ? [] : [printable(adapter)]),
    ...(device === 'gpu' ? [] : [showPlural(threads, 'thread')]),
  ].join(', ');
  const runs = Math.max(prefill?.runs.length ?? 0, decode?.runs.length ?? 0);
  return [
    `${name}: ${model.architecture} on ${device}, ${where}, ${showPlural(runs, 'run')} after a warm-up`,
    '',
    ...columns([['', 'median', 'min', 'max'], ...speed('prefill', prefill), ...speed('decode', decode)], [1, 2, 3]),
    '',
    ...columns(factsOf(result)),
    ...(result.speculation === undefined ? [] : ['', ...describeSpeculation(result.speculation).trimEnd().split('\n')]),
    ...expertLines(result, show.layers),
    ...(profile?.prefill === undefined ? [] : ['', ...profileLines('prefill', profile.prefill)]),
    ...(profile?.decode === undefined ? [] : ['', ...profileLines('decode', profile.decode)]),
    '',
  ].join('\n');
}

function speed(what: string, series: Series | undefined): string[][] {
  if (series === undefined) return [];
  const { tokens, depth, median, min, max } = series;
  const behind = depth === undefined ? '' : ` after ${showCount(depth)}`;
  return [
    [`${what} ${showPlural(tokens, 'token')}${behind}`, ...[median, min, max].map((rate) => showRate(rate, 'tokens'))],
  ];
}

function factsOf({ loadMs, bytesPerToken, cacheBytesPerToken, bandwidth, ...result }: BenchResult): string[][] {
  const readers = bandwidth?.threads === undefined ? 'the GPU' : showPlural(bandwidth.threads, 'thread');
  return [
    ['load', showTime(loadMs)],
    ['weights read a token', showBytes(bytesPerToken)],
    ...(cacheBytesPerToken === undefined ? [] : [['cache read a token', showBytes(Math.round(cacheBytesPerToken))]]),
    [
      'memory bandwidth',
      bandwidth === undefined
        ? `not measured: ${result.device.includes('+') ? 'the model reads the memory of two devices' : 'the GPU has no room left for it'}`
        : `${showRate(bandwidth.bytesPerSecond / 1e9, 'GB')} (${showBytes(bandwidth.bytes)} read by ${readers})`,
    ],
    ...(result.bandwidthShare === undefined
      ? []
      : [['share of it decoding', `${Math.round(result.bandwidthShare * 100)}%`]]),
    ['peak memory', showBytes(result.peakMemoryBytes)],
    ...(result.gpuMemory === undefined ? [] : [['peak memory of the GPU', describeMemory(result.gpuMemory)]]),
  ];
}

/** The experts of each test: sums where they are split, layers where these were asked for. */
function expertLines({ experts, profile }: BenchResult, layers: boolean): string[] {
  if (experts === undefined) return [];
  const tests = (['prefill', 'decode'] as const).flatMap((test) => {
    const snapshot = experts[test];
    if (snapshot === undefined || snapshot.steps === 0) return [];
    const title = `experts, ${test}`;
    const sums = [...expertSums(snapshot), ...gpuPart(profile?.[test])];
    if (layers) return ['', ...describeSnapshot(title, snapshot).trimEnd().split('\n'), ...gpuPart(profile?.[test])];
    return sums.length === 0 ? [] : ['', `${title}: ${sums[0]}`, ...sums.slice(1)];
  });
  return [...tests, ...(layers ? leftOut(experts.notCounted) : [])];
}

/** What of a run with split experts is the GPU's part, by its own clock. */
function gpuPart(profile: BenchProfile | undefined): string[] {
  const slots = profile?.kernels?.find(({ label }) => label === 'experts in slots');
  if (slots === undefined) return [];
  const eachMs = slots.ns / Math.max(1, slots.dispatches) / 1e6;
  return [
    `the GPU's part: ${(slots.ns / 1e6).toFixed(2)} ms (${eachMs.toFixed(3)} a stop) by its own clock, beside the CPU's`,
  ];
}

function profileLines(what: string, { tokens, position, ...run }: BenchProfile): string[] {
  const rows = tokens === 1 ? `one token at position ${showCount(position)}` : showPlural(tokens, 'token');
  const summary = `${what}, ${rows}: ${showPlural(run.dispatches, 'dispatch', 'dispatches')}, encoded in ${showTime(run.encodeMs)}, done in ${showTime(run.runMs)}`;
  if (run.kernels === undefined) return [summary, 'no time by kernel: this GPU has no timestamps'];
  const allNs = run.kernels.reduce((sum, { ns }) => sum + ns, 0);
  const dispatches = run.kernels.reduce((sum, kernel) => sum + kernel.dispatches, 0);
  const line = (label: string, count: number, ns: number) => [
    label,
    showCount(count),
    showTime(ns / 1e6),
    `${((100 * ns) / Math.max(1, allNs)).toFixed(1)}%`,
  ];
  return [
    summary,
    ...columns(
      [
        ['each kernel by itself', 'dispatches', 'time', 'share'],
        ...run.kernels.map(({ label, dispatches: count, ns }) => line(label, count, ns)),
        line('all', dispatches, allNs),
      ],
      [1, 2, 3],
    ),
  ];
}
