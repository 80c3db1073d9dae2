/** A plan in words: what `conclave plan` prints. Reads the plan and nothing else, and decides nothing. */

import { runsLayers } from '../model/part-graphs.ts';
import type { Plan, PlannedBuffer, PlannedExperts, PlannedOperation, PlannedWeight } from './plan.ts';
import { showBytes, showCount, showPlural, showRanges, wrap } from './show.ts';

const WIDTH = 96;

/** What predicts further ahead stands behind all layers. */
const AHEAD = Number.POSITIVE_INFINITY;

/** The plan for a person to read, at most about 100 columns wide; layers that are served alike stand together. */
export function explain(plan: Plan): string {
  return [
    ...table(summary(plan)),
    '',
    'memory',
    ...indent(memory(plan)),
    '',
    'weights by format',
    ...indent(weights(plan)),
    '',
    'kernels',
    ...indent(kernels(plan)),
    ...ignored(plan),
  ].join('\n');
}

type Row = readonly string[];

function summary(plan: Plan): Row[] {
  const { cache, maxRows } = plan;
  return [
    ['model', `${plan.architecture}, ${showPlural(layerCount(plan), 'layer')}`],
    ...devices(plan),
    ...experts(plan),
    ['context', `${showPlural(plan.context, 'token')}: ${plan.contextReason}`],
    ['rows a run', `up to ${showCount(maxRows.prompt)} of a prompt, ${showCount(maxRows.step)} of decoding`],
    ['cache', `${cache.type}, ${showPlural(cache.pages, 'page')} of ${showPlural(cache.pageRows, 'position')}`],
    ...speculation(plan),
    ['reads', `${showBytes(plan.bytesPerToken)} of weights for each decoded token`],
    [
      'reproducible',
      plan.reproducible
        ? 'yes: the same tokens alone, in a batch and after a reused prefix'
        : 'not reproducible: what is computed where, and so the last bits, depends on what ran before and beside it',
    ],
  ];
}

function speculation({ speculation: planned }: Plan): Row[] {
  if (planned === undefined) return [];
  const { source, drafts, model } = planned;
  const by = {
    mtp: "by the model's own head (MTP)",
    lookup: 'by looking up what followed before',
    draft: `by ${model?.name} (${model?.architecture}), which takes ${showBytes(model?.bytes ?? 0)} more`,
  };
  return [['drafts', `${showPlural(drafts, 'token')} at a time ${by[source]}, while that pays`]];
}

/** A row for each device, and one that says why it is not the one that was hoped for. */
function devices(plan: Plan): Row[] {
  const { parts, threads, adapter, deviceReason, layersReason } = plan;
  const rows = parts.map(({ device, first, end, features, experts: computed }, index): Row => {
    const name = device === 'gpu' && adapter !== undefined ? `gpu (${adapter})` : device;
    const own = device === 'cpu' ? [showPlural(threads, 'thread'), ...features] : features;
    // The last part that runs layers has the head.
    const last = parts.findLastIndex(runsLayers);
    const layers = [
      ...(index === 0 ? ['embedding'] : []),
      ...(end > first
        ? [
            `${end - first === 1 ? 'layer' : 'layers'} ${showRanges(Array.from({ length: end - first }, (_, at) => first + at))}`,
          ]
        : []),
      ...(index === last ? ['head'] : []),
      ...(computed === undefined
        ? []
        : [`experts of ${computed.length === 1 ? 'layer' : 'layers'} ${showRanges(computed)}`]),
    ];
    const checks = device === 'gpu' && plan.unchecked === false ? ['with its own checks'] : [];
    const said = [name, ...checks, ...own].join(', ');
    return [index === 0 ? 'device' : '', parts.length === 1 ? said : `${layers.join(', ')}: ${said}`];
  });
  return [
    ...rows,
    ...(layersReason === undefined ? [] : [['', `layers on the GPU: ${layersReason}`]]),
    ...(deviceReason === undefined ? [] : [['', `auto was asked for, but ${deviceReason}`]]),
  ];
}

/** How experts are split: those of the GPU, and where there are any the others. */
function experts(plan: Plan): Row[] {
  const { experts: split } = plan;
  if (split === undefined) return [];
  const { layers, policy, slots, experts: all, recommended, status, first, uploads, passes, prefetch, pins } = split;
  const share = Math.round((slots / all) * 100);
  const begin = first === 'evenly' ? 'as many of each layer' : 'the most used';
  const change = uploads > 0 ? `at first ${begin}, at most ${showCount(uploads)} brought there a step` : begin;
  const held =
    slots === 0
      ? `of ${layers.length === 1 ? 'layer' : 'layers'} ${showRanges(layers)} none on the GPU`
      : `${showCount(slots)} of ${showCount(all)} on the GPU (${share}%, ${policy}, ${change})`;
  const verdict = slots === 0 ? '' : `; ${showCount(recommended)} are recommended: ${status}`;
  const prompts =
    passes === 'all'
      ? `of a prompt all ${slots === 0 ? '' : 'others '}pass through the GPU`
      : 'of a prompt those of most rows pass through the GPU, as many as are copied while the CPU computes the rest';
  return [
    ['experts', `${held}${verdict}`],
    ...(slots === all ? [] : [['', `${slots === 0 ? 'all' : 'the others'} on the CPU; ${prompts}`]]),
    ...(prefetch === 'off' ? [] : [['', `of what is brought there those come first that ${foreseenBy[prefetch]}`]]),
    ...(pins === 0
      ? []
      : [['', `${showPlural(pins, 'slot')} kept for good by the experts used most in the first tokens`]]),
    ['', neverLeaving(plan, split)],
  ];
}

const foreseenBy = {
  previous: 'a layer used in the step before',
  gate: "a layer's router names on what the layer before it leaves",
} as const;

/** How many layers a run does not stop in. */
function neverLeaving({ operations }: Plan, { layers: split, whole }: PlannedExperts): string {
  const layers = operations.flatMap(({ kind, layer, device }) => (kind === 'moe' && device === 'gpu' ? [layer] : []));
  const never = layers.filter((layer) => whole.includes(layer) || !split.includes(layer));
  const which = never.length === 0 ? '' : ` (${showRanges(never)})`;
  return `${showCount(never.length)} of its ${showPlural(layers.length, 'layer')} with experts never leave the GPU${which}`;
}

function memory(plan: Plan): string[] {
  if (plan.parts.length > 1) return memoryByDevice(plan);
  const { bytes, memoryBytes, arenas } = plan;
  const rows: Row[] = [
    ['weights', showBytes(bytes.weights)],
    ['cache', showBytes(bytes.cache)],
    ['buffers', showBytes(bytes.buffers), largest(plan)],
    [
      'total',
      showBytes(bytes.total),
      memoryBytes === undefined
        ? ''
        : `of ${showBytes(memoryBytes)} that may be used${share(bytes.total, memoryBytes)}`,
    ],
  ];
  const lines = table(rows);
  return arenas.length === 0 ? lines : [...lines, `in ${showPlural(arenas.length, 'arena')}: ${arenaSizes(arenas)}`];
}

/** A column for each device, and one for all. */
function memoryByDevice(plan: Plan): string[] {
  const { parts, bytes, arenas } = plan;
  const row = (name: 'weights' | 'cache' | 'buffers' | 'total'): Row => [
    name,
    ...parts.map((part) => showBytes(part.bytes[name])),
    showBytes(bytes[name]),
    name === 'buffers' ? largest(plan) : '',
  ];
  const lines = table([
    ['', ...parts.map(({ device }) => device), 'in all', ''],
    ...(['weights', 'cache', 'buffers', 'total'] as const).map(row),
    [
      'may be used',
      ...parts.map(({ memoryBytes }) => (memoryBytes === undefined ? 'not known' : showBytes(memoryBytes))),
      '',
      '',
    ],
  ]);
  return arenas.length === 0 ? lines : [...lines, `in ${showPlural(arenas.length, 'arena')}: ${arenaSizes(arenas)}`];
}

function share(part: number, whole: number): string {
  return whole > 0 ? ` (${Math.ceil((part / whole) * 100)}%)` : '';
}

/** The buffers that matter most, so that a surprising sum explains itself. */
function largest(plan: Plan): string {
  const buffers = [...plan.buffers].sort((a, b) => b.bytes - a.bytes);
  const shown = buffers.slice(0, 3).filter((buffer) => buffer.bytes > 0);
  if (shown.length === 0) return '';
  const more = buffers.length > shown.length ? `, and ${buffers.length - shown.length} smaller` : '';
  const of = (buffer: PlannedBuffer) => (plan.parts.length > 1 ? `${buffer.device}'s ${buffer.name}` : buffer.name);
  return `${shown.map((buffer) => `${of(buffer)} ${showBytes(buffer.bytes)}`).join(', ')}${more}`;
}

/** Arenas of one size are told once: `3 × 8.39 MB, 2.10 MB`. */
function arenaSizes(arenas: readonly number[]): string {
  const counts = new Map<string, number>();
  for (const bytes of arenas) counts.set(showBytes(bytes), (counts.get(showBytes(bytes)) ?? 0) + 1);
  return [...counts].map(([size, count]) => (count === 1 ? size : `${count} × ${size}`)).join(', ');
}

function weights(plan: Plan): string[] {
  const groups = groupBy(plan.weights, (weight) =>
    JSON.stringify([weight.format, weight.layout ?? '', weight.device, weight.gathered === true]),
  );
  const rows = [...groups.values()]
    .map((group) => ({ group, first: group[0]!, bytes: group.reduce((sum, weight) => sum + weight.bytes, 0) }))
    .sort((a, b) => b.bytes - a.bytes)
    .map(({ group, first, bytes }): Row => {
      const layout = first.layout === undefined ? [] : [`repacked: ${first.layout}`];
      const steps = [...(first.gathered === true ? ['gathered as read'] : []), ...layout];
      const stored = steps.length === 0 ? 'as in the file' : steps.join(', ');
      return [
        first.format,
        showBytes(bytes),
        `${showPlural(group.length, 'weight')}, ${stored}${elsewhere(plan, first)}`,
      ];
    });
  return [...table(rows), ...twice(plan)];
}

/** Weights that two devices read, each from its own memory. */
function twice({ weights: all }: Plan): string[] {
  const homes = groupBy(all, ({ name }) => name);
  return [...homes].flatMap(([name, each]) =>
    // The norms of experts that are elsewhere are small, and many.
    each.length > 1 && each.every(({ shape }) => shape.length > 1)
      ? [`${name}: on ${each.map(({ device }) => device).join(' and ')}, which both read it`]
      : [],
  );
}

/** Says the device of what does not sit on the plan's own. */
function elsewhere(plan: Plan, { device }: PlannedWeight | PlannedOperation): string {
  return device === plan.device ? '' : `, on ${device}`;
}

/** One block for each set of layers that is served alike, one line for each kernel (or pair of kernels) in it. */
function kernels(plan: Plan): string[] {
  const formats = formatsByOutput(plan);
  // Rows that come from another device stand before the layer that they are for.
  const layers = groupBy(plan.operations, ({ kind, layer, mtp }) =>
    mtp === true ? AHEAD : kind === 'incoming' ? layer - 0.5 : layer,
  );
  const last = layerCount(plan);
  const blocks = groupBy([...layers], ([layer, operations]) => {
    const place = layer === AHEAD ? 'ahead' : layer < 0 ? 'before' : layer >= last ? 'after' : 'layer';
    return JSON.stringify([place, operations.map((operation) => signature(operation, formats))]);
  });
  // A device whose kernels serve both is told in one column.
  const twofold = plan.operations.some(({ rows }) => rows.prompt !== rows.step);
  const rows: Row[] = twofold ? [['', '', '', 'decoding', 'prompts']] : [];
  for (const block of [...blocks.values()].sort((a, b) => a[0]![0] - b[0]![0])) {
    const numbers = block.map(([layer]) => layer).sort((a, b) => a - b);
    rows.push([title(numbers, last)]);
    const served = groupBy(block[0]![1], (operation) => JSON.stringify(kernelOf(operation, formats)));
    for (const operations of served.values()) rows.push(kernelLine({ plan, operations, formats, twofold }));
  }
  return table(rows.map((row) => (row.length === 1 ? row : [`  ${row[0]}`, ...row.slice(1)])));
}

function title(layers: readonly number[], last: number): string {
  if (layers[0] === AHEAD) return 'drafts (MTP)';
  if (!Number.isInteger(layers[0])) return 'between devices';
  if (layers[0]! < 0) return 'before the layers';
  if (layers[0]! >= last) return 'after the layers';
  return `${layers.length === 1 ? 'layer' : 'layers'} ${showRanges(layers)}`;
}

/** What is computed, which of it, in which format, and the kernels for decoding and for prompts. */
function kernelLine(line: {
  readonly plan: Plan;
  readonly operations: readonly PlannedOperation[];
  readonly formats: ReadonlyMap<string, string>;
  readonly twofold: boolean;
}): Row {
  const { plan, operations, formats, twofold } = line;
  const first = operations[0]!;
  const { prompt, step } = first.rows;
  const names = operations.map(role).filter((name) => name !== '');
  const which = [first.kind, names.join(', '), formats.get(first.output) ?? ''];
  if (!twofold) return [...which, step + elsewhere(plan, first)];
  return [...which, step, (prompt === step ? 'the same' : prompt) + elsewhere(plan, first)];
}

/** Which of the norms, projections or rotations an operation is; empty where its kind says it all. */
function role({ kind, output }: PlannedOperation): string {
  if (kind !== 'norm' && kind !== 'linear' && kind !== 'headLinear' && kind !== 'rope') return '';
  const name = local(output);
  if (name === 'normed' || name === 'mtp.normed') return 'final';
  if (name.endsWith('.input')) return name.slice(0, -'.input'.length);
  return name.replace(/^(attention|feedForward|mtp)\./, '').replace(/\.(normed|rotated)$/, '');
}

function kernelOf(operation: PlannedOperation, formats: ReadonlyMap<string, string>): readonly unknown[] {
  const { kind, device, rows, output } = operation;
  return [kind, device, rows.prompt, rows.step, formats.get(output) ?? ''];
}

function signature(operation: PlannedOperation, formats: ReadonlyMap<string, string>): readonly unknown[] {
  return [...kernelOf(operation, formats), local(operation.output)];
}

/** A name without its layer: `layers.3.attention.query` is `attention.query`. */
function local(name: string): string {
  return name.replace(/^layers\.\d+\./, '');
}

/** The formats of the matrices behind each operation, by the operation's output; norms and biases are too small to tell. */
function formatsByOutput(plan: Plan): ReadonlyMap<string, string> {
  const matrices = new Map<string, string[]>();
  const outputs = new Set(plan.operations.map((operation) => operation.output));
  // Without one of its own, the model's serves, and for its head the embedding.
  const own = (name: string, otherwise: string) =>
    plan.weights.some((weight) => weight.name === name) ? name : otherwise;
  const head = own('head', 'embedding');
  const mtpHead = own('mtp.head', head);
  const mtpEmbedding = own('mtp.embedding', 'embedding');
  const add = (output: string, format: string) => {
    const found = matrices.get(output) ?? [];
    if (!found.includes(format)) matrices.set(output, [...found, format]);
  };
  for (const { name, format, shape } of plan.weights) {
    if (shape.length < 2) continue;
    const moe = /^(layers\.\d+\.moe)\.(gate|up|down|shared\.(gate|up|down))$/.exec(name);
    const made = moe === null ? [name] : [moe[1]!, `${moe[1]!}.experts`];
    for (const output of made) if (outputs.has(output)) add(output, format);
    if (name === 'embedding') add('embedded', format);
    if (name === head) add('logits', format);
    if (name === mtpEmbedding) add('mtp.embedded', format);
    if (name === mtpHead) add('mtp.logits', format);
  }
  return new Map([...matrices].map(([output, found]) => [output, found.sort().join(' + ')]));
}

function ignored(plan: Plan): string[] {
  if (plan.ignored.length === 0) return [];
  // Many tensors share a reason (a whole layer that is not used): the reason is told once.
  const groups = groupBy(plan.ignored, ({ reason }) => reason);
  const lines = [...groups].flatMap(([reason, entries]) => {
    const shown = entries
      .slice(0, 4)
      .map(({ name }) => name)
      .join(', ');
    const more = entries.length > 4 ? ` and ${showCount(entries.length - 4)} more` : '';
    return wrap(`${shown}${more}: ${reason}`, WIDTH - 2);
  });
  return ['', 'ignored', ...indent(lines)];
}

function layerCount(plan: Plan): number {
  // The highest layer number belongs to what comes after the last layer (the final norm, the head).
  return plan.operations.reduce((most, { layer }) => Math.max(most, layer), 0);
}

function groupBy<Item, Key>(items: readonly Item[], keyOf: (item: Item) => Key): Map<Key, Item[]> {
  const groups = new Map<Key, Item[]>();
  for (const item of items) {
    const key = keyOf(item);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [item]);
    else group.push(item);
  }
  return groups;
}

/** Columns two spaces apart, the last one wrapped into its own column. Rows of one cell are titles. */
function table(rows: readonly Row[]): string[] {
  const widths: number[] = [];
  for (const row of rows) {
    for (const [column, cell] of row.slice(0, -1).entries())
      widths[column] = Math.max(widths[column] ?? 0, cell.length);
  }
  return rows.flatMap((row) => {
    if (row.length === 1) {
      const [first = '', ...more] = wrap(row[0]!, WIDTH - 2);
      return [first, ...more.map((line) => `  ${line}`)];
    }
    const before = row
      .slice(0, -1)
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ');
    const [first = '', ...more] = wrap(row.at(-1)!, Math.max(24, WIDTH - before.length - 2));
    return [`${before}  ${first}`.trimEnd(), ...more.map((line) => `${' '.repeat(before.length)}  ${line}`)];
  });
}

function indent(lines: readonly string[]): string[] {
  return lines.map((line) => `  ${line}`);
}
