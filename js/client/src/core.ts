/** What every page needs of the client: following, answering and calling. */
import { Backoff } from "./backoff.js";
import { ServerClock } from "./clock.js";
import type { ApiError, ConnectionFailed, HistoryLost } from "./errors.js";
import { Api, isWorthAnother, type Sending } from "./http.js";
import { type Carrier, Hub, type State, TIMING, type Timing } from "./hub.js";
import type { SocketClass } from "./link.js";
import type {
  components,
  MethodOf,
  OperationName,
  OperationOf,
  operations,
  Params,
  paths,
  RequestOptions,
  Result,
} from "./operations.js";
import { sleep } from "./sleep.js";
import { keptId, newId } from "./storage.js";
import { ChannelFlow, type FollowOptions, type SubscribeOptions, Subscription } from "./subscription.js";
import { type TokenSource, Tokens } from "./token.js";
import type { Change, ProgramEvent, Raw } from "./tracker.js";

export type Counted = components["schemas"]["Counted"];

export interface ClientOptions {
  /** An access token, an API token, or a function that is called for one that is still good. */
  token?: TokenSource | undefined;
  /** As calls on answers name it; the first label of the host when absent. */
  account?: string;
  /** Who answers polls; kept in `localStorage` when absent. */
  visitorId?: string;
  /** The class of the package `ws`, where there is no global one and it cannot be imported. */
  WebSocket?: unknown;
  fetch?: typeof globalThis.fetch;
  /** `auto` falls back to Server-Sent Events while WebSocket is blocked. */
  transport?: "auto" | "websocket" | "sse";
  /** Programs that are followed by Server-Sent Events at a time (5). */
  maxStreams?: number;
  timing?: Partial<Timing>;
  /** Carries subscriptions elsewhere: see `onair-broker/shared`. */
  carrier?: (page: Page) => Carrier;
}

/** What a client has to connect with; `open` makes connections of its own. */
export interface Page {
  api: Api;
  clock: ServerClock;
  timing: Timing;
  open(): Carrier;
}

/** What may come with an answer or an impression. */
export interface AnswerOptions extends FollowOptions {
  visitorId?: string;
  sessionId?: string;
  /** The program's project; needed where WebSocket is blocked and the program has one. */
  projectId?: string;
}

export class Core extends EventTarget {
  /** Who answers polls in this browser. */
  readonly visitorId: string;
  readonly sessionId: string;
  readonly account: string;
  /** @internal */
  readonly api: Api;
  readonly #clock = new ServerClock();
  readonly #carrier: Carrier;
  readonly #timing: Timing;
  readonly #answers = new Map<string, Promise<unknown>>();

  /** Keeps the configuration; nothing is sent yet. `baseUrl` is such as `https://demo.example.org`. */
  constructor(baseUrl: string, options: ClientOptions = {}) {
    super();
    const url = new URL(baseUrl);
    this.#timing = { ...TIMING, ...options.timing };
    // Called as a function of nobody: `fetch` must not have another `this` than the page.
    const fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
    this.api = new Api(`${url.origin}/api/v1`, new Tokens(options.token, this.#clock), fetch, 90_000);
    const label = /^([a-z0-9-]+)\.(?!.*\d$)/.exec(url.hostname)?.[1];
    this.account = options.account ?? label ?? "demo";
    this.visitorId = options.visitorId ?? keptId(() => globalThis.localStorage, "onair-visitor");
    this.sessionId = keptId(() => globalThis.sessionStorage, "onair-session");
    const page = { api: this.api, clock: this.#clock, timing: this.#timing };
    const open = () =>
      new Hub({
        ...page,
        transport: options.transport ?? "auto",
        maxStreams: options.maxStreams ?? 5,
        socketClass: () => findSocketClass(options.WebSocket),
      });
    this.#carrier = options.carrier ? options.carrier({ ...page, open }) : open();
    this.#carrier.onState = () => this.dispatchEvent(new CustomEvent("state", { detail: this.state }));
  }

  /** The connection's: `idle`, `connecting`, `open`, `fallback` or `closed`. The event `state` says that it changed. */
  get state(): State {
    return this.#carrier.state;
  }

  /** Milliseconds since 1970-01-01T00:00:00Z by the broker's clock, once there has been a connection. */
  now(): number {
    return this.#clock.now();
  }

  /** Follows a program: in order, nothing twice, over any number of connections. */
  subscribe(programId: string, options: SubscribeOptions & { changes: true }): Subscription<Change>;
  subscribe(programId: string, options?: SubscribeOptions): Subscription<ProgramEvent>;
  subscribe(programId: string, options: SubscribeOptions = {}): Subscription<Raw> {
    return new Subscription(this.#carrier, programId, options, this.#timing.firstDeadlineMs);
  }

  /** The notifications of a channel: `programs`, `project:<id>`, `storage:<projectId>`, `responses:<programId>`. */
  follow(channel: string, options: FollowOptions = {}): ChannelFlow {
    return new ChannelFlow(this.#carrier, channel, options, this.#timing.firstDeadlineMs);
  }

  /** All stored events of a program, in the order of their timecodes. */
  async *events(
    programId: string,
    range: { from?: number; to?: number } & FollowOptions = {},
    cache: RequestCache = "default",
  ): AsyncGenerator<ProgramEvent> {
    const { signal, ...query } = range;
    let cursor: string | null | undefined;
    do {
      const sending = { path: { programId }, query: { ...query, limit: 1000, cursor }, signal, cache };
      const page = await this.api.send("GET", "/programs/{programId}/events", sending);
      yield* page.data as ProgramEvent[];
      const next = /<([^>]*)>;\s*rel="?next/.exec(page.headers.get("Link") ?? "")?.[1];
      cursor = next && new URL(next, this.api.baseUrl).searchParams.get("cursor");
    } while (cursor);
  }

  /** What a subscription that ended with `HistoryLost` has not handed out: all events, where the history is another. */
  async *missed(lost: HistoryLost, options: FollowOptions = {}): AsyncGenerator<ProgramEvent> {
    const { cursor, seen } = lost;
    for await (const event of this.events(lost.programId, options)) {
      const isSeen = event.epoch === seen?.epoch && event.seq <= seen.seq;
      // What came after the loss comes again to who subscribes from there.
      const isNews = event.epoch === cursor.epoch && event.seq > cursor.seq;
      if (!isSeen && !isNews) yield event;
    }
  }

  /**
   * Answers a poll; resolves once the answer is durable. It is tried until the broker has decided, and counts once.
   * Answers to one poll go in the order of the calls.
   */
  respond(
    programId: string,
    measureName: string,
    contextId: string,
    measureValue: number | number[],
    options: AnswerOptions = {},
  ): Promise<Counted> {
    const entry = {
      programId,
      measureName,
      contextId,
      measureValue,
      visitorId: options.visitorId ?? this.visitorId,
    };
    const key = JSON.stringify([programId, measureName, contextId, entry.visitorId]);
    const before = this.#answers.get(key) ?? Promise.resolve();
    const done = before.catch(() => {}).then(() => this.#deliver("respond", entry, options));
    this.#answers.set(key, done);
    const forget = () => this.#answers.get(key) === done && this.#answers.delete(key);
    done.then(forget, forget);
    return done;
  }

  /** Says that a poll was shown; tried until the broker has counted it, once. */
  impression(
    programId: string,
    measureName: string,
    contextId: string,
    options: AnswerOptions = {},
  ): Promise<Counted> {
    const { visitorId = this.visitorId, sessionId = this.sessionId } = options;
    const entry = { programId, measureName, contextId, visitorId, sessionId, idempotencyKey: newId() };
    return this.#deliver("impression", entry, options);
  }

  /** Any operation over the socket. It is not made again when the connection is lost before the answer. */
  call<K extends OperationName>(
    name: K,
    params: Params<operations[K]>,
    options: FollowOptions = {},
  ): Promise<Result<operations[K]>> {
    return this.#carrier.call(name, params, options.signal);
  }

  /** Any operation over HTTP; tried again where that is safe, changes under one idempotency key. */
  async request<P extends keyof paths & string, M extends MethodOf<P>>(
    method: M,
    path: P,
    ...options: Record<never, never> extends RequestOptions<OperationOf<P, M>>
      ? [RequestOptions<OperationOf<P, M>>?]
      : [RequestOptions<OperationOf<P, M>>]
  ): Promise<Result<OperationOf<P, M>>> {
    return (await this.api.send(method, path, options[0] as Sending)).data;
  }

  /** Ends all subscriptions and connections. */
  close(): void {
    this.#carrier.close();
  }

  async #deliver(name: "respond" | "impression", entry: Raw, options: AnswerOptions): Promise<Counted> {
    const backoff = new Backoff(this.#timing.baseMs, this.#timing.capMs);
    for (;;) {
      try {
        if (this.state !== "fallback") return await this.#carrier.call(name, entry, options.signal);
        const { programId, idempotencyKey, ...rest } = entry;
        const path = { accountId: this.account, projectId: options.projectId ?? "undefined", programId };
        const body = { [name === "respond" ? "responses" : "impressions"]: [rest] };
        const sending = { path, body, idempotencyKey, signal: options.signal };
        return (await this.api.send("POST", "/responses/{accountId}/{projectId}/{programId}", sending)).data;
      } catch (error) {
        options.signal?.throwIfAborted();
        if (this.state === "closed" || !isWorthAnother(error)) throw error;
        await sleep(
          backoff.nextMs((error as ApiError | (ConnectionFailed & { retryAfterMs?: number })).retryAfterMs),
          options.signal,
        );
      }
    }
  }
}

/** The class for sockets: the one given, the global one, or that of the optional package `ws`. */
async function findSocketClass(given: unknown): Promise<SocketClass> {
  const found = given ?? globalThis.WebSocket;
  if (found) return found as SocketClass;
  // A name that bundlers cannot see: they would look for the package.
  const name = "ws";
  return (await import(/* @vite-ignore */ /* webpackIgnore: true */ name)).WebSocket;
}
