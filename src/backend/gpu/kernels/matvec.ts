/**
 * Products of a few run rows (T = 1…64, and the head), several matrices side by side, with the norm before and the sum
 * after them: `lane-product.ts` says how. A row's sums have one order, whatever rows are beside it: the tile of run rows
 * that share a workgroup's weights changes nothing but who computes them.
 */

import type { RowNorm, ValueName } from '../../../model/graph.ts';
import type { Weight } from '../../../model/weights.ts';
import type { Mode } from '../../kernel.ts';
import type { Binding, Builder, Dispatch, RunShape } from '../builder.ts';
import { softcapCode } from './activation.ts';
import { columnsOf, KernelText, rowReader, rowsOf, spread, unrolled } from './kernel-text.ts';
import { ENABLE_EXCHANGE, exchangeSums, exchanges } from './lane-exchange.ts';
import {
  blocksOf,
  type Encoding,
  type Lanes,
  laneSums,
  lanesOf,
  scratchCode,
  type Turns,
  turnsOf,
} from './lane-product.ts';
import { bindNorm, staging } from './lane-staging.ts';

export interface MatVec {
  readonly label: string;
  readonly encoding: Encoding;
  readonly input: ValueName;
  readonly norm?: RowNorm;
  readonly output: Exclude<Binding, { kind: 'weight' }>;
  /** f32 of an output row; the weights' rows stand one after the other in it. */
  readonly outputWidth: number;
  /** Where in an output row the first weight's rows begin; 0 if it is not said. */
  readonly outputOffset?: number;
  /** Matrices of the same columns. */
  readonly weights: readonly { readonly weight: Weight; readonly bias?: string }[];
  /** A value of the output's width that is added. */
  readonly add?: ValueName;
  /** Whether the rows are those whose logits are wanted. */
  readonly wanted: boolean;
  /** What results y become cap · tanh(y / cap) with. */
  readonly softcap?: number;
}

/** Emits a dispatch for each size of tile; one of them serves a run. */
export function emitMatVec(builder: Builder, mode: Mode, product: MatVec): void {
  const tiles = tilesFor(product);
  for (const [index, tile] of tiles.entries()) {
    const { code, bindings, groups } = matVecKernel(builder, product, tile);
    const least = index === 0 ? 0 : (tiles[index - 1] as number);
    const most = index === tiles.length - 1 ? Number.POSITIVE_INFINITY : tile;
    const [x, y] = spread(groups);
    builder.dispatch(mode, {
      label: product.label,
      code,
      bindings,
      workgroups(run: RunShape) {
        const count = product.wanted ? run.wanted : run.rows;
        return count > least && count <= most ? [x, y, Math.ceil(count / tile)] : [0, 0, 0];
      },
    });
  }
}

/** Of workgroup memory, less what little things take: every device has 16 KiB. */
const MEMORY_WORDS = 4096 - 320;

interface Shape {
  readonly lanes: Lanes;
  readonly turns: Turns;
  /** Words of workgroup memory. */
  readonly words: number;
}

/**
 * How the weights of a product are shared out among lanes does not depend on the tile, so that a row's sums do not; how many
 * weight rows a team has may, since each has sums of its own.
 */
function shapeOf({ weights, encoding, norm }: MatVec, tile: number): Shape {
  const total = weights.reduce((sum, { weight }) => sum + rowsOf(weight), 0);
  const lanes = lanesOf(blocksOf((weights[0] as { weight: Weight }).weight), total, encoding);
  const inWork = lanes.lanes * lanes.span;
  const wordsOf = (rows: number) => {
    const sums = lanes.teams * rows * tile * (lanes.lanes + 1);
    const segments = lanes.teams * rows * tile * 8;
    return (
      segments +
      (encoding.id === 'f32' ? 32 * (inWork + 1) + sums : tile * (9 * inWork + 32) + Math.max(8 * inWork, sums)) +
      (norm === undefined ? 0 : tile * (lanes.threads + 16))
    );
  };
  let { mostLoads } = encoding;
  let turns = turnsOf(total, lanes, mostLoads);
  while (turns.rows > 1 && wordsOf(turns.rows) > MEMORY_WORDS) {
    mostLoads /= 2;
    turns = turnsOf(total, lanes, mostLoads);
  }
  return { lanes, turns, words: wordsOf(turns.rows) };
}

/** The sizes of tiles that fit into workgroup memory. */
function tilesFor(product: MatVec): readonly number[] {
  return product.encoding.tiles.filter((tile) => tile === 1 || shapeOf(product, tile).words <= MEMORY_WORDS);
}

function matVecKernel(
  builder: Builder,
  product: MatVec,
  tile: number,
): Pick<Dispatch, 'code' | 'bindings'> & { readonly groups: number } {
  const { encoding, input, norm, output, outputWidth, outputOffset = 0, weights, add, wanted, softcap } = product;
  const columns = columnsOf((weights[0] as { weight: Weight }).weight);
  const {
    lanes,
    turns: { rows: own, turns },
  } = shapeOf(product, tile);
  const { blocks, span, threads, rounds, teams } = lanes;
  const turnRows = teams * own;
  const groupRows = turns * turnRows;

  const reader = rowReader(columns);
  const text = new KernelText()
    .bind({ kind: 'value', name: input, access: 'read' }, 'x', reader.type)
    .bind(output, 'y', 'f32');
  // Of one row a workgroup, there are as many workgroups as rows: nobody waits to hear how many that is.
  const single = tile === 1 && !wanted;
  if (!single) text.bind({ kind: 'step' }, 'step', 'u32');
  if (add !== undefined) text.bind({ kind: 'value', name: add, access: 'read' }, 'residual', 'f32');
  bindNorm(text, norm, columns);
  let firstGroup = 0;
  let firstRow = outputOffset;
  const segments = weights.map(({ weight, bias }) => {
    const matrix = text.matrix(weight);
    const biasName = bias === undefined ? undefined : `bias${text.bindings.length}`;
    if (bias !== undefined) text.vector(bias, biasName as string);
    const rows = rowsOf(weight);
    const segment = { matrix, bias: biasName, rows, firstGroup, firstRow };
    firstGroup += Math.ceil(rows / groupRows);
    firstRow += rows;
    return segment;
  });
  type Segment = (typeof segments)[number];
  /** Code for the segment that a workgroup is in. */
  const choose = (code: (segment: Segment) => string) =>
    segments
      .map((segment, i) => {
        const end = segments[i + 1]?.firstGroup;
        return `${i === 0 ? '' : ' else '}${end === undefined ? '' : `if (group < ${end}u) `}{\n${code(segment)}\n}`;
      })
      .join('');

  const at = builder.step;
  const count = wanted ? at.wantedCount : at.rows;
  // Beyond the run's rows the last one is read again, and nobody keeps what comes of it.
  const inputRow = (t: number) => {
    if (single) return 'first';
    const row = `min(first + ${t}u, count - 1u)`;
    return wanted ? `step[${at.wanted}u + ${row}]` : row;
  };
  const subgroups = exchanges(builder, lanes);
  const staged = staging({ encoding, lanes, columns, tile, row: (t) => `row${t}`, norm, subgroups });
  const sums = subgroups ? exchangeSums(own * tile, lanes, 1) : laneSums(own * tile, lanes);
  /** Loads of a turn's weights, of the block `b`, into `name`0 …; `now` makes Weights of them at once. */
  const load = (name: string, b: string, turn: string, now = false) =>
    choose(({ matrix, rows, firstGroup: start }) =>
      unrolled(own, (r) => {
        const row = `(group - ${start}u) * ${groupRows}u + ${turn}team * ${own}u + ${r}u`;
        const loaded = encoding.load(matrix, { row: `min(${row}, ${rows - 1}u) * ${matrix.rowWords}u`, b, span });
        return `  ${name}${r} = ${now ? encoding.decode(matrix, { loaded, b, span }) : loaded};`;
      }),
    );
  const declare = (name: string) => unrolled(own, (r) => `  var ${name}${r}: Loaded;`);
  /** Statements that use `weights`, a team's row `r` once it is decoded; formats of several matrices are told apart. */
  const decoded = (r: number, b: string, use: string) => {
    const formats = [...new Set(segments.map(({ matrix }) => matrix.format))];
    const of = (format: string) => segments.find(({ matrix }) => matrix.format === format) as Segment;
    const decode = (format: string) => encoding.decode(of(format).matrix, { loaded: `w${r}`, b, span });
    if (formats.length === 1) return `  {\n    let weights = ${decode(formats[0] as string)};\n${use}\n  }`;
    const inFormat = (format: string) =>
      segments
        .map(({ matrix, firstGroup: start }, i) => {
          if (matrix.format !== format) return undefined;
          const end = segments[i + 1]?.firstGroup ?? firstGroup;
          return `(group >= ${start}u && group < ${end}u)`;
        })
        .filter((test) => test !== undefined)
        .join(' || ');
    const choices = formats.map((format) => `    if (${inFormat(format)}) { weights = ${decode(format)}; }`).join('\n');
    return `  {\n    var weights: Weights;\n${choices}\n${use}\n  }`;
  };
  /** Code for the row of an output, which it calls `row`, and for its place in the output's buffer. */
  const home = (turn: string, output: string, use: (segment: Segment) => string) =>
    choose(
      (segment) => `      let row = (group - ${segment.firstGroup}u) * ${groupRows}u + ${turn}(${output}) / ${tile}u;
      if (row < ${segment.rows}u) {
        let place = t * ${outputWidth}u + ${segment.firstRow}u + row;
        ${use(segment)}
      }`,
    );
  /** Code for the run row `t` of an output, where there is one. */
  const ofRow = (output: string, use: string) =>
    single
      ? `    let t = first;\n    ${use}`
      : `    let t = first + (${output}) % ${tile}u;\n    if (t < count) {\n    ${use}\n    }`;
  // What is added is read before anything is computed, where it is known who adds it.
  const early = add !== undefined && turns === 1 ? sums.writer : undefined;
  const fetchAdded =
    early === undefined
      ? ''
      : `  var added = 0.0;
  if (${early.is}) {
${ofRow(
  early.output,
  home('', early.output, () => 'added = residual[place];'),
)}
  }`;
  const added = add === undefined ? '' : early === undefined ? ' + residual[place]' : ' + added';
  /** @param values by the team's weight row, and tile row in it */
  const write = (turn: string, value: (r: number, t: number) => string) => {
    const values = Array.from({ length: own * tile }, (_, k) => value(Math.floor(k / tile), k % tile));
    return sums.total([values], (output, [sum]) => {
      const total = `${sum} * ${staged.factor(`(${output}) % ${tile}u`)}`;
      const put = ({ bias }: Segment) => {
        const made = `${total}${bias === undefined ? '' : ` + ${bias}[row]`}${added}`;
        return `y[place] = ${softcap === undefined ? made : `capped(${made})`};`;
      };
      return ofRow(output, home(turn, output, put));
    });
  };
  const firstBlock = span === 1 ? 'lane' : '2u * lane';
  const dot = (t: number) => `dotLane(weights, x${t})`;
  /** One turn: its weights are decoded while the input is staged. */
  const taken = () => `${staged.fetch('0u')}
${unrolled(own, (r) => `  var weights${r}: Weights;`)}
${load('weights', firstBlock, '', true)}
${staged.stage}
${staged.end}
${unrolled(own, (r) => unrolled(tile, (t) => `  let p${r}_${t} = dotLane(weights${r}, x${t});`))}
${write('', (r, t) => `p${r}_${t}`)}`;
  /** Several: the bits of each turn's weights are on their way while those before are multiplied. */
  const takenInTurns = () => `${staged.fetch('0u')}
${declare('w')}
${load('w', firstBlock, '')}
${staged.stage}
${staged.end}
  for (var turn = 0u; turn < ${turns}u; turn++) {
${declare('next')}
    if (turn + 1u < ${turns}u) {
${load('next', firstBlock, `(turn + 1u) * ${turnRows}u + `)}
    }
${unrolled(own, (r) => unrolled(tile, (t) => `  var p${r}_${t}: f32;`))}
${unrolled(own, (r) =>
  decoded(
    r,
    firstBlock,
    unrolled(tile, (t) => `    p${r}_${t} = ${dot(t)};`),
  ),
)}
${write(`turn * ${turnRows}u + `, (r, t) => `p${r}_${t}`)}
${sums.again}
${unrolled(own, (r) => `    w${r} = next${r};`)}
  }`;
  /** Longer rows: sums grow over the rounds. */
  const rounded = () => `${unrolled(own, (r) => unrolled(tile, (t) => `  var a${r}_${t} = 0.0;`))}
  for (var round = 0u; round < ${rounds}u; round++) {
    let b = min((round * ${lanes.lanes}u + lane) * ${span}u, ${blocks - span}u);
${staged.fetch('round')}
${declare('w')}
${load('w', 'b', '')}
${staged.stage}
${unrolled(own, (r) =>
  decoded(
    r,
    'b',
    unrolled(tile, (t) => `    a${r}_${t} += ${dot(t)};`),
  ),
)}
  }
${staged.end}
${write('', (r, t) => `a${r}_${t}`)}`;
  const body = /* wgsl */ `
${reader.code}
${encoding.helpers(
  span,
  segments.map(({ matrix }) => matrix),
)}
${scratchCode(staged, sums)}
${staged.functions}
${sums.code}
${softcap === undefined ? '' : softcapCode(softcap)}

@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(local_invocation_index) tid: u32) {
  let group = wg.y * ${spread(firstGroup)[0]}u + wg.x;
  let first = wg.z * ${tile}u;
${
  single
    ? `  if (group >= ${firstGroup}u) { return; }`
    : `  let count = step[${count}u];\n  if (group >= ${firstGroup}u || first >= count) { return; }`
}
  let lane = tid % ${lanes.lanes}u;
  let team = tid / ${lanes.lanes}u;
${unrolled(tile, (t) => `  let row${t} = ${inputRow(t)};`)}
${staged.start}
${fetchAdded}
${rounds > 1 ? rounded() : turns > 1 ? takenInTurns() : taken()}
}`;
  return { code: `${subgroups ? ENABLE_EXCHANGE : ''}${text.code(body)}`, bindings: text.bindings, groups: firstGroup };
}
