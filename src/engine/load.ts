/** From a source to a model that answers, or to the plan of one. */

import { findAdapter } from '../backend/gpu/device.ts';
import { Refusal } from '../errors.ts';
import type { ModelFile } from '../format/model-file.ts';
import { openModelFile } from '../format/open.ts';
import type { SourceInput } from '../format/source.ts';
import { buildGraph } from '../model/decoder.ts';
import type { Graph } from '../model/graph.ts';
import { type ReadModel, readModel } from '../model/read-model.ts';
import { adapterNumber, checkDevices, type GpuFacts, gpuUse, reasonOf } from '../plan/devices.ts';
import { explain } from '../plan/explain.ts';
import { plan as makePlan, programsOf } from '../plan/place.ts';
import type { DeviceName, Plan, PlanOptions } from '../plan/plan.ts';
import { checkRoutingUse, routedModel } from '../plan/routing.ts';
import { readSpeculation } from '../plan/speculation.ts';
import { type Platform, platform } from '../platform/index.ts';
import { type Tokenizer, tokenizerOf } from '../tokenizer/index.ts';
import { type BootedEngine, bootEngine, EngineClient } from './engine-client.ts';
import { startOrFallBack } from './fallback.ts';
import { type FileSampling, samplingOf } from './file-defaults.ts';
import { LoadedModel } from './model.ts';
import { checkLoadOptions, checkThreads } from './options.ts';
import { draftModel, draftOptions } from './speculate/draft-plan.ts';
import { checkSameVocabulary, type NamedTokenizer } from './speculate/vocabulary.ts';
import { chatTemplates } from './templates.ts';
import type { LoadOptions, Model, ModelInfo, PrintablePlan } from './types.ts';

/** How long an aborted load may take to clean up before it is given up as it is: a read may never be answered. */
const ABORT_MS = 1000;

/** What is known of a model before its weights are read. */
interface Opened {
  readonly file: ModelFile;
  readonly model: ReadModel;
  readonly graph: Graph;
  readonly sampling: FileSampling;
  readonly plan: Plan;
  /** The plan where the GPU is not to be had. */
  planWithoutGpu(reason: string): Plan;
}

/**
 * Loads a model: reads its file's head, plans, streams the weights to their places, and starts its engine in a worker.
 * @param source a path (Node), an http(s) address whose server answers range requests, a File or Blob, or a byte source
 * @throws SourceError `source` when it cannot be opened or read; CorruptFileError `corrupt_file`; Refusal `refused` for a
 * sound file that is not supported, and for a GPU that is not there; UsageError `usage` for a bad option; OutOfMemoryError
 * `out_of_memory`; DeviceLostError `device_lost` when the GPU fails; `signal.reason` when aborted. With device `auto` the
 * CPU serves where the GPU cannot, and `plan.deviceReason` says why.
 */
export async function load(source: SourceInput, options: LoadOptions = {}): Promise<Model> {
  checkLoadOptions(options);
  const { signal } = options;
  signal?.throwIfAborted();
  const loading = loadModel(source, options);
  if (signal === undefined) return loading;
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const abort = () => {
    timer = setTimeout(() => reject(signal.reason), ABORT_MS);
  };
  signal.addEventListener('abort', abort);
  try {
    return await Promise.race([loading, aborted]);
  } catch (error) {
    // Nobody is left to take a model that comes of it all the same.
    void loading.then(
      (model) => model.dispose(),
      () => {},
    );
    throw error;
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', abort);
  }
}

async function loadModel(source: SourceInput, options: LoadOptions): Promise<Model> {
  const { signal, onProgress, onFault, expertStats, recordRouting, routing, ...planOptions } = options;
  const place = await platform();
  checkThreads(options.threads, place.threads());
  const threads = options.threads ?? place.threads();
  let booted: BootedEngine | undefined;
  const boot = (devices: readonly DeviceName[]): BootedEngine => {
    booted = bootEngine(place, { devices, threads });
    booted.worker.unref();
    return booted;
  };
  let file: ModelFile | undefined;
  let draftFile: ModelFile | undefined;
  const abandoned = new AbortController();
  // While a read is awaited nothing else would end the worker.
  const stop = () => void booted?.worker.terminate();
  signal?.addEventListener('abort', stop);
  try {
    const { opened, draft } = await openAll(place, source, planOptions, () => {
      // Reading the file's head and planning takes about as long as starting workers.
      boot(sureDevices(planOptions));
    });
    const { model, graph, sampling } = opened;
    file = opened.file;
    draftFile = draft?.file;
    const sources = [...model.sources, ...(draft?.model.sources ?? [])];
    const firstSource = model.sources.length;
    signal?.throwIfAborted();
    let starts = 0;
    const start = async (made: Plan) => {
      checkRoutingUse(made, model.spec, { expertStats, recordRouting, routing });
      return EngineClient.start({
        // The worker of an engine that failed is gone.
        booted: starts++ === 0 ? (booted as BootedEngine) : boot(['cpu']),
        plan: made,
        programs: programsOf(made),
        spec: model.spec,
        graph,
        weights: model.weights,
        sources,
        // How many experts the rows of a step have in common decides whether drafting pays.
        expertStats: expertStats ?? (made.experts !== undefined || made.speculation !== undefined),
        routing: routing?.ids,
        expertUses: planOptions.expertUses,
        ...(draft === undefined ? {} : { draft: draftModel(draft, firstSource) }),
        onProgress,
        onFault,
        signal: signal === undefined ? abandoned.signal : AbortSignal.any([signal, abandoned.signal]),
      });
    };
    const starting = startOrFallBack({ ...opened, options: planOptions, start });
    // The vocabulary is read while the engine gets its memory; what goes wrong there is heard when it is awaited.
    starting.catch(() => {});
    let tokenizer: Tokenizer;
    try {
      tokenizer = tokenizerOf(file, model.spec.vocabulary);
    } catch (error) {
      abandoned.abort(error);
      await starting.catch(() => {});
      throw error;
    }
    const { engine, plan } = await starting;
    const templates = chatTemplates(place, tokenizer, file.name);
    return new LoadedModel({
      file,
      draftFile,
      engine,
      tokenizer,
      templates,
      sampling: sampling.defaults,
      info: describe(file, model, plan),
      plan: printable(plan),
      routed: routedModel(plan, model.spec),
    });
  } catch (error) {
    await booted?.worker.terminate();
    await Promise.all([file?.close(), draftFile?.close()]);
    throw error;
  } finally {
    signal?.removeEventListener('abort', stop);
  }
}

/**
 * What {@link load} would do, without reading a weight: which kernels would run where, and how many bytes that takes.
 * @throws as {@link load}
 */
export async function planModel(
  source: SourceInput,
  options: PlanOptions = {},
): Promise<{ readonly plan: PrintablePlan; readonly info: ModelInfo }> {
  checkLoadOptions(options);
  const place = await platform();
  checkThreads(options.threads, place.threads());
  const { opened, draft } = await openAll(place, source, options);
  const { file, model, plan } = opened;
  try {
    tokenizerOf(file, model.spec.vocabulary);
  } finally {
    await Promise.all([file.close(), draft?.file.close()]);
  }
  return { plan: printable(plan), info: describe(file, model, plan) };
}

/** What a plan will use whatever the machine has. */
function sureDevices(options: PlanOptions): readonly DeviceName[] {
  if (gpuUse(options) !== 'none') return [];
  return [options.device === 'reference' ? 'reference' : 'cpu'];
}

/**
 * The GPU, where a plan may use one.
 * @throws Refusal `refused` where it must be there and is not
 */
async function findGpu(place: Platform, options: PlanOptions): Promise<GpuFacts> {
  const use = gpuUse(options);
  if (use === 'none') return {};
  try {
    return { adapter: await findAdapter(place, { number: adapterNumber(options) }) };
  } catch (error) {
    if (use === 'asked' || !(error instanceof Refusal)) throw error;
    return { noGpu: reasonOf(error) };
  }
}

/** A model, and where another one drafts for it that one, whose memory comes first. @param onOpened as {@link open} takes it */
async function openAll(
  place: Platform,
  source: SourceInput,
  options: PlanOptions,
  onOpened?: () => void,
): Promise<{ readonly opened: Opened; readonly draft?: Opened }> {
  const speculation = readSpeculation(options.speculation);
  if (speculation === undefined) return { opened: await open(place, source, options, { onOpened }) };
  const { drafts } = speculation;
  if (speculation.source !== 'draft') {
    const planned = { source: speculation.source, drafts };
    return { opened: await open(place, source, options, { onOpened, speculation: planned }) };
  }
  const draft = await open(place, speculation.model, draftOptions(options));
  try {
    const { name, architecture } = describe(draft.file, draft.model, draft.plan);
    const model = { name, architecture, bytes: draft.plan.bytes.total };
    const opened = await open(place, source, options, { onOpened, speculation: { source: 'draft', drafts, model } });
    try {
      checkSameVocabulary(vocabularyOf(opened), vocabularyOf(draft));
    } catch (error) {
      await opened.file.close();
      throw error;
    }
    return { opened, draft };
  } catch (error) {
    await draft.file.close();
    throw error;
  }
}

function vocabularyOf({ file, model }: Opened): NamedTokenizer {
  return { name: file.name, tokenizer: tokenizerOf(file, model.spec.vocabulary) };
}

/** @param more.onOpened called once there is a file to read */
async function open(
  place: Platform,
  source: SourceInput,
  options: PlanOptions,
  { onOpened, speculation }: { readonly onOpened?: () => void; readonly speculation?: Plan['speculation'] } = {},
): Promise<Opened> {
  checkDevices(options);
  const modelSource = await place.openSource(source);
  onOpened?.();
  let file: ModelFile;
  try {
    file = await openModelFile(modelSource);
  } catch (error) {
    await modelSource.file.close();
    throw error;
  }
  try {
    const model = readModel(file, { ignoreKeys: options.ignoreKeys, mtp: speculation?.source === 'mtp' });
    const sampling = samplingOf(file);
    const graph = buildGraph(model.spec);
    // What drafts takes its memory from the same.
    const taken = speculation?.model?.bytes ?? 0;
    const less = (bytes: number) => Math.max(0, bytes - taken);
    const { memoryBytes } = options;
    const planWith = (gpu: GpuFacts) =>
      makePlan({
        spec: model.spec,
        graph,
        weights: model.weights,
        ignored: [...model.ignored, ...sampling.ignored],
        options: memoryBytes === undefined ? options : { ...options, memoryBytes: less(memoryBytes) },
        speculation,
        platform: {
          threads: place.threads(),
          freeMemoryBytes: less(place.freeMemoryBytes()),
          features: place.features(),
          ...gpu,
        },
      });
    return {
      file,
      model,
      graph,
      sampling,
      plan: planWith(await findGpu(place, options)),
      planWithoutGpu: (noGpu) => planWith({ noGpu }),
    };
  } catch (error) {
    await file.close();
    throw error;
  }
}

function describe(file: ModelFile, { spec, parameters }: ReadModel, plan: Plan): ModelInfo {
  return {
    name: nameOf(file),
    architecture: spec.architecture,
    parameters,
    context: plan.context,
    vocabulary: spec.vocabulary,
  };
}

/** What the file calls its model; else what the file is called, and of a folder, the folder. */
function nameOf({ metadata, name, folder }: ModelFile): string {
  const said = metadata.get('general.name');
  if (said?.type === 'string' && typeof said.value === 'string' && said.value !== '') return said.value;
  return folder?.config === undefined ? name : (folder.name.split(/[/\\]/).findLast((part) => part !== '') ?? name);
}

function printable(plan: Plan): PrintablePlan {
  return { ...plan, explain: () => explain(plan) };
}
