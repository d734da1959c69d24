/** What a program or a channel tells, over any number of connections. */
import { ApiError, ConnectionFailed, ProgramDeleted } from "./errors.js";
import type { Target } from "./feed.js";
import { Flow } from "./flow.js";
import type { Carrier } from "./hub.js";
import type { Cursor } from "./cursor.js";
import { type Change, type ProgramEvent, position, type Raw, Tracker } from "./tracker.js";

export interface FollowOptions {
  /** Ends it. */
  signal?: AbortSignal | undefined;
}

export interface SubscribeOptions extends FollowOptions {
  /** Go on after this position; ends with `HistoryLost` when that is too long ago. */
  since?: Cursor | undefined;
  /** Without `since`: begin with the last so many pushes. */
  history?: number | undefined;
  /** Also hand out what was updated, deleted or replaced. */
  changes?: boolean | undefined;
  /** How many items may wait for the iterator (10,000); those beyond stay with the broker until it has caught up. */
  buffer?: number | undefined;
}

/** The DOM events of a flow and what their `detail` is. */
export interface FlowEvents {
  /** The broker delivers, at first or again. */
  live: undefined;
  /** The connection was lost; it comes back by itself. */
  lost: undefined;
  /** It is over; with the error, if by one. */
  end: unknown;
}

/** The DOM events of a subscription; the changes need `changes: true`. */
export interface SubscriptionEvents extends FlowEvents {
  event: ProgramEvent;
  eventUpdated: ProgramEvent;
  eventDeleted: Extract<Change, { type: "eventDeleted" }>;
  eventsDeleted: Extract<Change, { type: "eventsDeleted" }>;
  historyReplaced: Extract<Change, { type: "historyReplaced" }>;
}

/** A flow that a carrier feeds. It is a `Member`, which its declaration, without what is internal, could not be. */
abstract class Followed<T, M extends FlowEvents, R> extends Flow<T, M, R> {
  /** @internal */
  isTold = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly carrier: Carrier,
    readonly target: Target,
    signal: AbortSignal | undefined,
  ) {
    super(signal);
  }

  /** @internal */
  opened(): void {
    clearTimeout(this.#timer);
    this.emit("live", undefined as M["live"]);
  }

  /** @internal */
  lost(): void {
    this.emit("lost", undefined as M["lost"]);
  }

  /** @internal */
  fail(error?: Error): void {
    if (error) this.finish(error);
    else this.finish();
  }

  /** @internal */
  abstract tell(method: string, params: Raw): void;

  /** Begins; the first connection may take so long. */
  protected begin(deadlineMs: number): void {
    if (this.isAborted) return this.close();
    this.#timer = setTimeout(() => {
      const cause = this.carrier.problem;
      const why = cause ? `: ${cause.message}` : "";
      this.finish(new ConnectionFailed(`no answer in ${deadlineMs / 1000} s${why}`, { cause }));
    }, deadlineMs);
    this.carrier.join(this.target, this);
  }

  protected ended(): void {
    clearTimeout(this.#timer);
    this.carrier.leave(this.target, this);
  }
}

/** The events of one program, in order, each once. */
export class Subscription<T = ProgramEvent> extends Followed<T, SubscriptionEvents, Cursor> {
  /** The position of the last item handed out; give it as `since` to go on after a reload. */
  cursor: Cursor | undefined;
  /** How often the client has reconnected. */
  reconnects = -1;
  /** @internal */
  readonly tracker: Tracker;
  readonly #buffer: number;
  readonly #changes: boolean;
  #isPaused = false;

  /** @internal Made by `Client.subscribe`. */
  constructor(carrier: Carrier, programId: string, options: SubscribeOptions, deadlineMs: number) {
    super(carrier, { programId }, options.signal);
    const { since } = options;
    this.cursor = since && { ...since };
    this.tracker = new Tracker(programId, since && { ...since }, options.history ?? 0);
    this.#buffer = options.buffer ?? 10_000;
    this.#changes = !!options.changes;
    this.begin(deadlineMs);
  }

  get programId(): string {
    return this.tracker.programId;
  }

  /** @internal */
  override opened(): void {
    this.reconnects++;
    this.#passed(this.tracker.cursor as Cursor);
    this.confirm(this.tracker.cursor as Cursor);
    super.opened();
  }

  /** @internal */
  override fail(error?: Error): void {
    // What was there at first has been deleted while there was no connection.
    const isGone = error instanceof ApiError && error.status === 404 && this.reconnects >= 0;
    super.fail(isGone ? new ProgramDeleted(this.programId) : error);
  }

  /** @internal */
  tell(method: string, params: Raw): void {
    if (this.#changes) {
      const isEvent = method === "event" || method === "eventUpdated";
      this.push((isEvent ? { type: method, event: params } : { ...params, type: method }) as T);
    } else if (method === "event") this.push(params);
    else this.#passed(position(params));
    if (this.waiting < this.#buffer || this.#isPaused) return;
    this.#isPaused = true;
    this.carrier.leave(this.target, this);
  }

  protected handed(item: Raw): void {
    const { type = "event", event = item } = this.#changes ? item : {};
    this.cursor = position(event);
    this.emit(type, event);
  }

  protected override drained(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    if (!this.isClosed) this.carrier.join(this.target, this);
  }

  /** Everything up to here is known, once what waits has been handed out. */
  #passed(at: Cursor): void {
    if (!this.waiting) this.cursor = at;
  }
}

/** A notification of a channel. `resumed`, which the client makes too: some may have been missed before it. */
export interface Notification {
  method: string;
  params: Raw;
}

/** The notifications of a channel, which has no history. */
export class ChannelFlow extends Followed<Notification, FlowEvents & { notification: Notification }, void> {
  #isResumed = false;

  /** @internal Made by `Client.follow`. */
  constructor(carrier: Carrier, channel: string, options: FollowOptions, deadlineMs: number) {
    super(carrier, { channel }, options.signal);
    this.begin(deadlineMs);
  }

  /** @internal */
  override opened(): void {
    this.confirm();
    super.opened();
    if (this.#isResumed) this.push({ method: "resumed", params: {} });
    this.#isResumed = true;
  }

  /** @internal */
  tell(method: string, params: Raw): void {
    // Who does not read what is told has no use for all of it, and there is nowhere to read it later.
    if (this.waiting >= 10_000)
      return this.finish(new ConnectionFailed("10,000 notifications were not read"));
    this.push({ method, params });
  }

  protected handed(item: Notification): void {
    this.emit("notification", item);
  }
}
