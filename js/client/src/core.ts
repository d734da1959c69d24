import { ServerClock } from "./clock.js";
import { Api, type Sending } from "./http.js";
import { TIMING, type Timing } from "./config.js";
import { type Carrier, Hub, type State } from "./hub.js";
import type { SocketClass } from "./link.js";
import type {
  MethodOf,
  OperationName,
  OperationOf,
  operations,
  Params,
  paths,
  RequestOptions,
  Result,
} from "./operations.js";
import { ChannelFlow, type FollowOptions, type SubscribeOptions, Subscription } from "./subscription.js";
import { type TokenSource, Tokens } from "./token.js";
import type { Change, ProgramEvent, Raw } from "./tracker.js";

export interface ClientOptions {
  /** An access token, an API token, or a function that is called for one that is still good. */
  token?: TokenSource | undefined;
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

export class Core extends EventTarget {
  /** @internal */
  readonly api: Api;
  readonly #clock = new ServerClock();
  /** @internal */
  readonly carrier: Carrier;
  /** @internal */
  readonly timing: Timing;

  /** Keeps the configuration; nothing is sent yet. `baseUrl` is such as `https://demo.example.org`. */
  constructor(baseUrl: string, options: ClientOptions = {}) {
    super();
    const url = new URL(baseUrl);
    // `demo.localhost:8000` is the URL of a scheme of that name.
    if (!/^https?:/.test(url.href))
      throw new TypeError(`a broker's URL begins with http:// or https://: ${baseUrl}`);
    this.timing = { ...TIMING, ...options.timing };
    // Called as a function of nobody: `fetch` must not have another `this` than the page.
    const fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
    this.api = new Api(`${url.origin}/api/v1`, new Tokens(options.token, this.#clock), fetch, 90_000);
    const page = { api: this.api, clock: this.#clock, timing: this.timing };
    const open = () =>
      new Hub({
        ...page,
        transport: options.transport ?? "auto",
        maxStreams: options.maxStreams ?? 5,
        socketClass: () => findSocketClass(options.WebSocket),
      });
    this.carrier = options.carrier ? options.carrier({ ...page, open }) : open();
    this.carrier.onState = () => this.dispatchEvent(new CustomEvent("state", { detail: this.state }));
  }

  /** The connection's: `idle`, `connecting`, `open`, `fallback` or `closed`. The event `state` says that it changed. */
  get state(): State {
    return this.carrier.state;
  }

  /** Milliseconds since 1970-01-01T00:00:00Z by the broker's clock, once there has been a connection. */
  now(): number {
    return this.#clock.now();
  }

  /** Follows a program: in order, nothing twice, over any number of connections. */
  subscribe(programId: string, options: SubscribeOptions & { changes: true }): Subscription<Change>;
  subscribe(programId: string, options?: SubscribeOptions): Subscription<ProgramEvent>;
  subscribe(programId: string, options: SubscribeOptions = {}): Subscription<Raw> {
    return new Subscription(this.carrier, programId, options, this.timing.firstDeadlineMs);
  }

  /** The notifications of a channel: `programs`, `project:<id>`, `storage:<projectId>`, `responses:<programId>`. */
  follow(channel: string, options: FollowOptions = {}): ChannelFlow {
    return new ChannelFlow(this.carrier, channel, options, this.timing.firstDeadlineMs);
  }

  /** Any operation over the socket. It is not made again when the connection is lost before the answer. */
  call<K extends OperationName>(
    name: K,
    params: Params<operations[K]>,
    options: FollowOptions = {},
  ): Promise<Result<operations[K]>> {
    return this.carrier.call(name, params, options.signal);
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
    this.carrier.close();
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
