/**
 * Every error that Conclave raises on purpose. Each carries a stable `code` and plain `data`, so that a program can act
 * on it without reading the message; the message says what was found, what was expected and what to do.
 */

export type ErrorData = Readonly<Record<string, unknown>>;

export class ConclaveError extends Error {
  readonly code: string;
  readonly data: ErrorData;

  constructor(code: string, message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.code = code;
    this.data = options.data ?? {};
  }
}

/** The file is damaged or contradicts itself. `code`: `corrupt_file`. */
export class CorruptFileError extends ConclaveError {
  constructor(message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super('corrupt_file', message, options);
  }
}

/** One row (or check) that was tried, and why it did not fit. */
export interface RefusalReason {
  readonly row: string;
  readonly reason: string;
}

/** A sound request that is not supported, said by name before anything runs. `code`: `refused`. */
export class Refusal extends ConclaveError {
  readonly reasons: readonly RefusalReason[];

  constructor(
    message: string,
    options: { reasons?: readonly RefusalReason[]; data?: ErrorData; cause?: unknown } = {},
  ) {
    const reasons = options.reasons ?? [];
    const lines = reasons.map(({ row, reason }) => `  ${row}: ${reason}`);
    super('refused', [message, ...lines].join('\n'), { ...options, data: { ...options.data, reasons } });
    this.reasons = reasons;
  }
}

/** The model file could not be opened or read. `code`: `source`. */
export class SourceError extends ConclaveError {
  constructor(message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super('source', message, options);
  }
}

/** A bad option, flag or argument. `code`: `usage`. */
export class UsageError extends ConclaveError {
  constructor(message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super('usage', message, options);
  }
}

/** A chat template that does not parse, raises, or does not end. `code`: `template`. */
export class TemplateError extends ConclaveError {
  constructor(message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super('template', message, options);
  }
}

/** A value that must be finite is not: names the step and the layer. `code`: `non_finite`. */
export class NonFiniteError extends ConclaveError {
  constructor(message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super('non_finite', message, options);
  }
}

/** Used after `dispose`. `code`: `disposed`. */
export class DisposedError extends ConclaveError {
  /** @param remedy what to do about it */
  constructor(what: string, remedy = 'load the model again') {
    super('disposed', `${what} was used after it was disposed; ${remedy}`);
  }
}

/** The device went away. `code`: `device_lost`. */
export class DeviceLostError extends ConclaveError {
  constructor(message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super('device_lost', message, options);
  }
}

/** A buffer that the plan needs could not be had. `code`: `out_of_memory`. */
export class OutOfMemoryError extends ConclaveError {
  constructor(message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super('out_of_memory', message, options);
  }
}

/** A broken promise inside Conclave: please report it. `code`: `internal`. */
export class InternalError extends ConclaveError {
  constructor(message: string, options: { data?: ErrorData; cause?: unknown } = {}) {
    super('internal', `${message} (this is a bug in Conclave; please report it)`, options);
  }
}

/** An error as plain data, to cross a worker boundary, and back: {@link reviveError}. */
export interface ErrorRecord {
  readonly name: string;
  readonly code: string;
  readonly message: string;
  readonly data: ErrorData;
  readonly stack?: string;
}

export function recordError(error: unknown): ErrorRecord {
  if (error instanceof ConclaveError) {
    return { name: error.name, code: error.code, message: error.message, data: error.data, stack: error.stack };
  }
  const { name, message, stack } = error instanceof Error ? error : new Error(String(error));
  return { name, code: 'internal', message, data: {}, stack };
}

const classes: Readonly<Record<string, { prototype: ConclaveError }>> = {
  CorruptFileError,
  Refusal,
  SourceError,
  UsageError,
  TemplateError,
  NonFiniteError,
  DisposedError,
  DeviceLostError,
  OutOfMemoryError,
  InternalError,
};

/** The error that {@link recordError} wrote down, of the same class, with the far side's stack as its cause. */
export function reviveError(record: ErrorRecord): ConclaveError {
  const error = new ConclaveError(record.code, record.message, { data: record.data, cause: record.stack });
  const made = classes[record.name];
  if (made !== undefined) {
    Object.setPrototypeOf(error, made.prototype);
    if (error instanceof Refusal) {
      Object.defineProperty(error, 'reasons', { value: record.data.reasons ?? [], enumerable: true });
    }
  }
  error.name = record.name;
  return error;
}
