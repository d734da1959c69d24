/** What the connections of a client, and the streams in their place, share: times, limits, and their hub. */
import type { ServerClock } from "./clock.js";
import type { Feed } from "./feed.js";
import type { Api } from "./http.js";
import type { SocketClass } from "./link.js";

/** How a client comes back. Milliseconds throughout. */
export interface Timing {
  /** Ceiling of the first delay between two tries to connect, and of the longest. */
  baseMs: number;
  capMs: number;
  /** How long opening a WebSocket or the head of a stream may take. */
  openTimeoutMs: number;
  /** After how much silence a connection is asked whether it lives, and how long it may take to answer. */
  idleMs: number;
  answerMs: number;
  /** Ceiling of the delay between tries to leave Server-Sent Events. */
  upgradeMs: number;
  /** How long the first connection of a subscription may take before it fails. */
  firstDeadlineMs: number;
}

export const TIMING: Timing = {
  baseMs: 250,
  capMs: 15_000,
  openTimeoutMs: 10_000,
  idleMs: 30_000,
  answerMs: 8_000,
  upgradeMs: 60_000,
  firstDeadlineMs: 30_000,
};

export interface HubConfig {
  api: Api;
  clock: ServerClock;
  timing: Timing;
  socketClass: () => Promise<SocketClass>;
  transport: "auto" | "websocket" | "sse";
  /** Most streams at a time: browsers give one host six connections of HTTP/1.1. */
  maxStreams: number;
}

/** A hub as its connections see it. */
export interface HubState {
  readonly config: HubConfig;
  readonly isClosed: boolean;
  /** How many streams are open. */
  streams: number;
  /** Finds a connection for a feed of which its own has too many. */
  move(feed: Feed): void;
  /** Tells of a new state where there is one. */
  update(): void;
}
