/** The public API of Conclave. */

export type { DeviceBandwidth, DeviceMemoryUse, KernelTime, RunProfile } from './backend/backend.ts';
export { load, planModel } from './engine/load.ts';
export type {
  ChatMessage,
  DeviceMemory,
  ExpertStatistics,
  ExpertStatsSnapshot,
  FinishReason,
  GenerateOptions,
  LayerSnapshot,
  LoadOptions,
  Model,
  ModelInfo,
  Part,
  PrintablePlan,
  Profile,
  Prompt,
  RoutedRows,
  RoutingRecording,
  SamplingOptions,
  Session,
  SpeculationStatistics,
  Usage,
} from './engine/types.ts';
export {
  ConclaveError,
  CorruptFileError,
  DeviceLostError,
  DisposedError,
  type ErrorData,
  InternalError,
  NonFiniteError,
  OutOfMemoryError,
  Refusal,
  type RefusalReason,
  SourceError,
  TemplateError,
  UsageError,
} from './errors.ts';
export type { ByteSource, ModelSource, SourceFolder, SourceInput } from './format/source.ts';
export type {
  DeviceName,
  DeviceOption,
  Plan,
  PlannedBuffer,
  PlannedOperation,
  PlannedPart,
  PlannedSpeculation,
  PlannedWeight,
  PlanOptions,
} from './plan/plan.ts';
export type { GivenTrace } from './plan/routing.ts';
export type { SpeculationOption } from './plan/speculation.ts';
