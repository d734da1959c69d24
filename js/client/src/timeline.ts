/**
 * Events in time with a viewer's video: each is handed out when the video has reached its `timecode`.
 *
 * What is not due is held. `horizon` bounds what is known: everything due before it has been read or told;
 * infinite, all later events come by the subscription. A start, a seek back and a new history read by REST from
 * whole minutes to whole minutes, so that shared caches can answer; what lies ahead is read minute by minute as
 * the video comes near. Without a player the events come `delayMs` after they were published, and a producer's
 * wrong clock holds none of them back.
 */
import type { Cursor } from "./cursor.js";
import { HistoryLost } from "./errors.js";
import { Flow } from "./flow.js";
import { dueMs, Held } from "./held.js";
import { Playback, type Position } from "./playback.js";
import type { FollowOptions, SubscribeOptions, Subscription } from "./subscription.js";
import type { Change, ProgramEvent } from "./tracker.js";

/** Why the events go on at another place. */
export interface Seek {
  /** By the viewer; because the history was replaced or deleted; or because events were missed. */
  reason: "back" | "forward" | "replaced" | "lost";
  /** Where the video is now, in milliseconds since 1970. */
  positionMs: number;
}

export interface TimelineOptions extends FollowOptions {
  /** The moment that the viewer's video shows, such as `() => hls.playingDate`; nothing where it is not known. */
  position?: (() => Position) | undefined;
  /** How far the video is behind the clock while there is no position. */
  delayMs?: number | undefined;
  /** How much of what lies before the video is handed out at the start and after a seek; `Infinity` for all. */
  lookbackMs?: number | undefined;
  /** Called, and awaited, before anything of the new place is handed out. */
  onSeek?: ((seek: Seek) => void | Promise<void>) | undefined;
}

/** What a timeline reads from: a client. */
export interface TimelineSource {
  now(): number;
  subscribe(programId: string, options: SubscribeOptions & { changes: true }): Subscription<Change>;
  events(
    programId: string,
    range: { from?: number; to?: number } & FollowOptions,
    cache: RequestCache,
  ): AsyncIterable<ProgramEvent>;
}

export interface TimelineEvents {
  event: ProgramEvent;
  end: unknown;
}

const SAMPLE_MS = 100;
const MINUTE_MS = 60_000;
const AHEAD_MS = 10_000; // the next minute is read this long before the video reaches it
const MOST_CHANGED = 10_000;

const floorMs = (ms: number) => Math.floor(ms / MINUTE_MS) * MINUTE_MS;

export class Timeline extends Flow<ProgramEvent, TimelineEvents, void> {
  readonly #playback: Playback;
  readonly #held = new Held();
  /** What notifications said of ids: it counts over what a read brings, which may be older. */
  readonly #changed = new Map<string, ProgramEvent | undefined>();
  #released = new Set<string>();
  #horizonMs = Infinity;
  /** Nothing is handed out while the events of a new place are being read. */
  #loading: AbortController | undefined;
  #isReading = false;
  #isReady = false;
  #sampler: ReturnType<typeof setInterval> | undefined;
  #subscription: Subscription<Change> | undefined;

  /** @internal Made by `Client.timeline`. */
  constructor(
    readonly client: TimelineSource,
    readonly programId: string,
    readonly options: TimelineOptions,
  ) {
    super(options.signal);
    this.#playback = new Playback(options.position, options.delayMs ?? 0, performance.now());
    if (this.isAborted) this.close();
    else this.#follow();
  }

  protected handed(event: ProgramEvent): void {
    this.emit("event", event);
  }

  protected ended(): void {
    clearInterval(this.#sampler);
    this.#loading?.abort();
    this.#subscription?.close();
  }

  async #follow(since?: Cursor): Promise<void> {
    this.#subscription = this.client.subscribe(this.programId, { changes: true, since });
    this.#subscription.ready.then(
      () => this.#begin(),
      () => {},
    );
    try {
      for await (const change of this.#subscription) this.#take(change);
      this.finish();
    } catch (error) {
      if (!(error instanceof HistoryLost)) return this.finish(error);
      // Followed before it is read, so that nothing is between the two.
      this.#follow(error.cursor);
      this.#move("lost");
    }
  }

  #begin(): void {
    if (this.#isReady || this.isClosed) return;
    this.#isReady = true;
    this.confirm();
    const { position, delayMs, lookbackMs } = this.options;
    this.#sampler = setInterval(() => this.#look(), SAMPLE_MS);
    this.#look();
    if (position || delayMs || lookbackMs) this.#load();
  }

  #look(): void {
    const wasFallback = this.#playback.isFallback;
    const step = this.#playback.look(performance.now(), this.client.now());
    // What is held is due by another rule now.
    if (this.#playback.isFallback !== wasFallback) {
      for (const { event } of this.#held.take(Infinity)) this.#hold(event);
    }
    if (step !== "none") this.#move(step);
    else if (!this.#loading) {
      this.#release();
      if (this.#playback.atMs + AHEAD_MS >= this.#horizonMs) this.#readNext();
    }
  }

  /** Goes on at another place. */
  async #move(reason: Seek["reason"]): Promise<void> {
    const { atMs } = this.#playback;
    const isKnown = reason === "forward" && atMs < this.#horizonMs && !this.#loading;
    const pause = new AbortController();
    this.#loading?.abort();
    this.#loading = pause;
    if (reason !== "forward") this.#released = new Set();
    if (reason === "replaced") this.#changed.clear();
    if (!isKnown) this.#held.clear();
    try {
      await this.options.onSeek?.({ reason, positionMs: atMs });
    } catch (error) {
      return this.finish(error);
    }
    if (this.#loading !== pause) return;
    this.#loading = undefined;
    if (!isKnown) return this.#load(reason === "replaced");
    this.#held.take(atMs - (this.options.lookbackMs ?? 0) - 1);
    this.#release();
  }

  /** Reads what lies around the video. */
  async #load(isNew = false): Promise<void> {
    const loading = new AbortController();
    this.#loading?.abort();
    this.#loading = loading;
    const lookbackMs = this.options.lookbackMs ?? 0;
    // A player that has not begun: there is nothing to be in time with.
    while (!Number.isFinite(this.#playback.atMs) && !this.isClosed) {
      await new Promise((resolve) => setTimeout(resolve, SAMPLE_MS));
      if (this.#loading !== loading) return;
    }
    const { atMs } = this.#playback;
    const endMs = floorMs(atMs) + MINUTE_MS;
    const isLive = endMs > this.client.now();
    this.#horizonMs = isLive ? Infinity : endMs;
    const fromMs = Number.isFinite(lookbackMs) ? Math.max(0, floorMs(atMs - lookbackMs)) : undefined;
    await this.#read(fromMs, isLive ? undefined : endMs - 1, loading.signal, isNew);
    if (this.#loading !== loading) return;
    this.#loading = undefined;
    this.#held.take(atMs - lookbackMs - 1);
    this.#release();
  }

  /** Reads the next minute. */
  async #readNext(): Promise<void> {
    if (this.#isReading) return;
    this.#isReading = true;
    const fromMs = this.#horizonMs;
    const endMs = floorMs(fromMs) + MINUTE_MS;
    const isLive = endMs > this.client.now();
    const signal = new AbortController().signal;
    try {
      await this.#read(fromMs, isLive ? undefined : endMs - 1, signal, false);
      if (this.#horizonMs === fromMs) this.#horizonMs = isLive ? Infinity : endMs;
    } finally {
      this.#isReading = false;
    }
  }

  async #read(
    from: number | undefined,
    to: number | undefined,
    signal: AbortSignal,
    isNew: boolean,
  ): Promise<void> {
    try {
      const range = { ...(from !== undefined && { from }), ...(to !== undefined && { to }), signal };
      for await (const event of this.client.events(this.programId, range, isNew ? "reload" : "default")) {
        if (signal.aborted) return;
        const known = this.#changed.has(event.id) ? this.#changed.get(event.id) : event;
        if (known) this.#hold(known);
      }
    } catch (error) {
      if (!signal.aborted) this.finish(error);
    }
  }

  #take(change: Change): void {
    if (change.type === "event") {
      const { event } = change;
      if (this.#due(event) >= this.#horizonMs) return;
      this.#hold(event);
    } else if (change.type === "eventUpdated") {
      const { event } = change;
      this.#note(event.id, event);
      const dueMs = this.#due(event);
      if (this.#held.has(event.id) || (dueMs > this.#playback.atMs && dueMs < this.#horizonMs))
        this.#hold(event);
    } else if (change.type === "eventDeleted") {
      this.#note(change.id, undefined);
      this.#held.remove(change.id);
    } else if (this.#isReady) this.#move("replaced");
    if (!this.#loading) this.#release();
  }

  #note(id: string, state: ProgramEvent | undefined): void {
    this.#changed.delete(id);
    this.#changed.set(id, state);
    if (this.#changed.size > MOST_CHANGED) this.#changed.delete(this.#changed.keys().next().value as string);
  }

  #hold(event: ProgramEvent): void {
    if (this.#released.has(event.id)) return;
    this.#held.add({ event, dueMs: this.#due(event) });
    this.#horizonMs = Math.min(this.#horizonMs, this.#held.trim());
  }

  /** When an event is to be shown; without a player not later than `delayMs` after it was published. */
  #due(event: ProgramEvent): number {
    const due = dueMs(event);
    return this.#playback.isFallback ? Math.min(due, Date.parse(event.createdTime) || due) : due;
  }

  #release(): void {
    const isAtOnce = this.#playback.isFallback && !this.options.delayMs;
    for (const { event } of this.#held.take(isAtOnce ? Infinity : this.#playback.atMs)) {
      this.#released.add(event.id);
      if (this.#released.size > MOST_CHANGED)
        this.#released.delete(this.#released.values().next().value as string);
      this.push(event);
    }
  }
}
