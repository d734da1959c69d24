/**
 * The events of one program as they are now: those stored last, then what is pushed.
 *
 * First the position is read, then the events, then everything after the position is followed: what comes twice is
 * known by its id. Where the history is lost, replaced or erased all is read anew. A log-in that ends stops nothing:
 * the next one goes on at the same position.
 */
import { signal } from "@preact/signals";
import {
  type Change,
  type Cursor,
  HistoryLost,
  ProgramDeleted,
  type ProgramEvent,
  Unsubscribed,
} from "../../client/src/index.js";
import { ApiError } from "../../client/src/index.js";
import type { Connection } from "./connection.js";
import { currentToken } from "./session.js";

const PAGE = 1_000;
const OVERLAP = 10; // how much further back an older page is read that does not meet the events here; then ten times that
const MOST = 20_000; // events kept; those before are read again when they are asked for
const TRIM = 1_000;
const SAMPLES = 600;
const RETRY_MS = 2_000;

export type LogState = "loading" | "live" | "lost" | "ended";

export class EventLog {
  /** By their place in the program, ascending. */
  events: ProgramEvent[] = [];
  /** Changes with the events, at most once a frame. */
  readonly version = signal(0);
  readonly state = signal<LogState>("loading");
  readonly error = signal<unknown>(undefined);
  /** Whether the events were read once: until then nobody knows whether there are any. */
  readonly isRead = signal(false);
  /** How many were pushed since the start. */
  arrived = 0;
  /** When events came (ms) and how long they were on their way (ms), by the broker's clock; the newest last. */
  readonly latencies: [atMs: number, ms: number][] = [];
  readonly #control = new AbortController();
  #known = new Set<string>();
  #older = 0; // how many events are older than those here, when that was read last
  #frame = 0;

  constructor(
    readonly client: Connection,
    readonly programId: string,
  ) {
    void this.#run();
  }

  /** How many events there are with those that are not here. */
  get total(): number {
    return this.#older + this.events.length;
  }

  close(): void {
    this.#control.abort();
    cancelAnimationFrame(this.#frame);
  }

  /** Reads events that are older than those here. Throws what the broker refuses. */
  async readOlder(): Promise<void> {
    // Pages are counted from the newest, and without a WebSocket nobody says what came or went meanwhile: a page is
    // taken where it meets the events that are here, so that none between them is left out.
    const known = this.#known;
    let skip = Math.max(0, this.events.length - 1);
    for (let step = OVERLAP; ; step *= 10) {
      const { items: page, total } = await this.#page(skip);
      if (known !== this.#known) return; // the history is another one, and was read anew
      const oldest = this.events[0]?.seq ?? Number.POSITIVE_INFINITY;
      const isTooOld = skip > 0 && (page[0]?.seq ?? 0) < oldest;
      const isTooNew = page.length === PAGE && (page[PAGE - 1] as ProgramEvent).seq >= oldest;
      if (isTooOld) skip = Math.max(0, skip - step);
      else if (isTooNew) skip += PAGE - 1;
      else {
        const older = page.filter((event) => event.seq < oldest).reverse();
        for (const event of older) this.#known.add(event.id);
        this.events = [...older, ...this.events];
        this.#older = Math.max(0, total - skip - page.length);
        return this.#changed();
      }
    }
  }

  /** Takes an event that this page published: it is seen at once, also while there is no WebSocket. */
  take(event: ProgramEvent): void {
    this.#add(event);
  }

  async #run(): Promise<void> {
    const { signal } = this.#control;
    let since: Cursor | undefined;
    while (!signal.aborted) {
      try {
        since ??= await this.#read();
        const subscription = this.client.subscribe(this.programId, { since, changes: true, signal });
        subscription.addEventListener("live", () => (this.state.value = "live"));
        subscription.addEventListener("lost", () => (this.state.value = "lost"));
        for await (const change of subscription) {
          if (change.type === "historyReplaced" || change.type === "eventsDeleted") {
            since = undefined;
            break;
          }
          this.#apply(change);
          since = subscription.cursor;
        }
      } catch (error) {
        if (signal.aborted) return;
        this.state.value = "lost";
        if (error instanceof HistoryLost) since = undefined;
        else if (error instanceof Unsubscribed) await currentToken();
        else if (error instanceof ProgramDeleted || isFinal(error)) {
          this.error.value = error;
          this.state.value = "ended";
          return;
        } else await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  async #read(): Promise<Cursor> {
    const path = { programId: this.programId };
    const { epoch, seq } = await this.client.request("GET", "/programs/{programId}/lastUpdate", { path });
    const { items, total } = await this.#page(0);
    this.events = items.reverse();
    this.#older = total - items.length;
    this.#known = new Set(this.events.map((event) => event.id));
    this.isRead.value = true;
    this.#changed();
    return { epoch, seq };
  }

  #page(skip: number) {
    const query = { limit: PAGE, skip, sort: "seq", order: "desc" } as const;
    const path = { programId: this.programId };
    return this.client.request("GET", "/programs/{programId}/events/filter", { path, query });
  }

  #apply(change: Change): void {
    if (change.type === "event") this.#add(change.event);
    else if (change.type === "eventUpdated") {
      // The change has a place of its own; the event keeps that of its publishing.
      const { event } = change;
      const changed = (each: ProgramEvent) => ({ ...event, seq: each.seq });
      this.events = this.events.map((each) => (each.id === event.id ? changed(each) : each));
      this.#changed();
    } else if (change.type === "eventDeleted") {
      this.events = this.events.filter((each) => each.id !== change.id);
      this.#known.delete(change.id);
      this.#changed();
    }
  }

  #add(event: ProgramEvent): void {
    if (this.#known.has(event.id)) return;
    this.#known.add(event.id);
    // One that this page published may be here before those that are read again after a cut.
    let at = this.events.length;
    while (at > 0 && (this.events[at - 1] as ProgramEvent).seq > event.seq) at--;
    this.events.splice(at, 0, event);
    this.arrived++;
    const now = this.client.now();
    this.latencies.push([now, Math.max(0, now - Date.parse(event.createdTime))]);
    if (this.latencies.length > SAMPLES) this.latencies.splice(0, TRIM / 10);
    if (this.events.length > MOST) {
      for (const old of this.events.splice(0, TRIM)) this.#known.delete(old.id);
      this.#older += TRIM;
    }
    this.#changed();
  }

  #changed(): void {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.version.value++;
    });
  }
}

function isFinal(error: unknown): boolean {
  return error instanceof ApiError && error.status < 429 && error.status !== 401;
}
