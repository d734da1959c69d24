/** What a page and its `SharedWorker` say to each other. */
import {
  ApiError,
  ClientError,
  ConnectionFailed,
  ConnectionLost,
  HistoryLost,
  ProgramDeleted,
  ProtocolError,
  Unsubscribed,
} from "./errors.js";
import type { Target } from "./feed.js";
import type { Timing } from "./config.js";
import type { State } from "./hub.js";
import type { Cursor } from "./cursor.js";
import type { Raw } from "./tracker.js";

export interface WorkerConfig {
  baseUrl: string;
  transport: "auto" | "websocket" | "sse";
  maxStreams: number;
  timing: Timing;
  hasToken: boolean;
}

/** From a page. `id` is the page's own for each member and each call. */
export type ToWorker =
  | { op: "hello"; config: WorkerConfig }
  /** The page holds a lock of this name as long as it lives. */
  | { op: "lock"; lock: string }
  | { op: "join"; id: number; target: Target; since?: Cursor | undefined; history: number }
  | { op: "leave"; id: number }
  | { op: "call"; id: number; method: string; params: Raw }
  | { op: "token"; token?: string | undefined; error?: Raw }
  /** Whatever was there may be gone, or there again. */
  | { op: "check" }
  /** Asks for `pong`. */
  | { op: "ping" }
  | { op: "bye" };

/** From the worker, to one member of a page. */
export type OfMember =
  | { op: "opened"; id: number; cursor?: Cursor | undefined }
  | { op: "lost"; id: number }
  | { op: "tell"; id: number; method: string; params: Raw }
  | { op: "fail"; id: number; error: Raw };

/** From the worker. */
export type ToPage =
  | OfMember
  | { op: "reply"; id: number; result?: Raw; error?: Raw }
  | { op: "state"; state: State; problem?: string | undefined }
  /** Asks for a token, another one than `instead`. */
  | { op: "token"; instead: string | undefined }
  /** The worker holds a lock of this name as long as it lives. */
  | { op: "life"; lock: string }
  | { op: "pong" };

/** An error as a message; its class comes back by its name. */
export function packError(error: Raw): Raw {
  return { ...error, name: error?.name, message: String(error?.message ?? error) };
}

const CLASSES = {
  ApiError,
  ConnectionFailed,
  ConnectionLost,
  HistoryLost,
  ProgramDeleted,
  ProtocolError,
  Unsubscribed,
};

export function unpackError(packed: Raw): Error {
  const kind = CLASSES[packed.name as keyof typeof CLASSES] ?? ClientError;
  const error = Object.create(kind.prototype);
  const stack = new Error(packed.message).stack;
  return Object.assign(error, packed, { stack });
}
