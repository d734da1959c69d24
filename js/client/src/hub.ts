/**
 * The connections of one client: which feeds go over which, and how they come back.
 *
 * A connection is one WebSocket after another, each with as many feeds as the broker lets it have. A lost
 * WebSocket, a gateway that shuts down (`reconnect`, 1012), a slow consumer's close (4008) and a hole in the
 * sequence are all one case: wait with full jitter, ask `GET /connect` for a gateway, subscribe with the cursors.
 * Where a gateway can be asked for and its WebSocket cannot be opened, programs are followed by Server-Sent
 * Events, a stream each, until a WebSocket opens.
 */
import type { HubConfig, HubState } from "./config.js";
import { Connection } from "./connection.js";
import { ClientError } from "./errors.js";
import { type Feed, keyOf, type Member, type Target } from "./feed.js";
import type { Raw } from "./tracker.js";

export type State = "idle" | "connecting" | "open" | "fallback" | "closed";

/** What carries subscriptions and calls: a `Hub` in the page, or a port to the one of a `SharedWorker`. */
export interface Carrier {
  readonly state: State;
  /** Why there is no connection, where that is known. */
  readonly problem: Error | undefined;
  onState: () => void;
  join(target: Target, member: Member): void;
  leave(target: Target, member: Member): void;
  call(method: string, params: Raw, signal?: AbortSignal): Promise<Raw>;
  close(): void;
}

const TICK_MS = 250; // how late a silent gateway is noticed; tokens that live for ten seconds are renewed two before

export class Hub implements Carrier, HubState {
  onState: () => void = () => {};
  isClosed = false;
  streams = 0;
  readonly #connections: Connection[] = [];
  #state: State = "idle";
  #tickAt = [Date.now(), performance.now()];
  readonly #ticker: ReturnType<typeof setInterval>;
  readonly #unlisten: () => void;

  constructor(readonly config: HubConfig) {
    this.#ticker = setInterval(() => this.#tick(), TICK_MS);
    (this.#ticker as Raw).unref?.();
    const target = globalThis as Raw;
    const check = () => this.check();
    const names = ["online", "pageshow", "visibilitychange"];
    for (const name of names) target.addEventListener?.(name, check);
    this.#unlisten = () => {
      for (const name of names) target.removeEventListener?.(name, check);
    };
  }

  get state(): State {
    return this.#state;
  }

  get problem(): Error | undefined {
    return this.#connections.find((connection) => connection.problem)?.problem;
  }

  join(target: Target, member: Member): void {
    if (this.isClosed) return member.fail(new ClientError("the client is closed"));
    const key = keyOf(target);
    const connection =
      this.#connections.find((each) => each.feeds.has(key)) ??
      this.#connections.find((each) => each.hasRoom) ??
      this.#addConnection();
    connection.join(key, target, member);
  }

  leave(target: Target, member: Member): void {
    for (const connection of this.#connections) connection.leave(keyOf(target), member);
  }

  /** Calls an operation once a connection is there. It is not made again after the connection is lost. */
  async call(method: string, params: Raw, signal?: AbortSignal): Promise<Raw> {
    signal?.throwIfAborted();
    if (this.isClosed) throw new ClientError("the client is closed");
    const link = await (this.#connections[0] ?? this.#addConnection()).linkFor(signal);
    return link.call(method, params);
  }

  close(): void {
    this.isClosed = true;
    clearInterval(this.#ticker);
    this.#unlisten();
    for (const connection of this.#connections) connection.close();
    this.update();
  }

  /** Whatever was there may be gone: the machine slept, the network changed, the page comes out of a cache. */
  check(): void {
    this.config.clock.doubt();
    for (const connection of this.#connections) connection.check();
  }

  /** Finds a connection for a feed of which its own has too many. */
  move(feed: Feed): void {
    for (const member of feed.members) this.join(feed.target, member);
  }

  /** Tells of a new state where there is one. */
  update(): void {
    const connection = this.#connections[0];
    const wanted = connection?.isWanted ? (connection.isFallback ? "fallback" : "connecting") : "idle";
    const state = this.isClosed ? "closed" : connection?.link ? "open" : wanted;
    if (state === this.#state) return;
    this.#state = state;
    this.onState();
  }

  #addConnection(): Connection {
    const connection = new Connection(this);
    this.#connections.push(connection);
    return connection;
  }

  #tick(): void {
    // A timer that is this late, by either clock, was stopped with the machine or the page.
    const now = [Date.now(), performance.now()];
    const isLate = now.some((each, index) => Math.abs(each - (this.#tickAt[index] as number)) > 20_000);
    this.#tickAt = now;
    if (isLate) this.check();
    for (const connection of this.#connections) connection.tick();
  }
}
