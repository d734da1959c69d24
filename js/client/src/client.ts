/** The client of one account's broker. */
import { Backoff } from "./backoff.js";
import { Core, type ClientOptions as CoreOptions } from "./core.js";
import { ApiError, type ConnectionFailed, type HistoryLost } from "./errors.js";
import { isWorthAnother } from "./http.js";
import type { components } from "./operations.js";
import { newId } from "./ids.js";
import { sleep } from "./sleep.js";
import { keptId } from "./storage.js";
import type { FollowOptions } from "./subscription.js";
import { Timeline, type TimelineOptions } from "./timeline.js";
import { type TokenSource, Tokens } from "./token.js";
import type { ProgramEvent, Raw } from "./tracker.js";
import { Visitors } from "./visitors.js";

export interface ClientOptions extends CoreOptions {
  /** As calls on answers name it; the first label of the host when absent. */
  account?: string;
  /** Who answers polls; kept in `localStorage` when absent. */
  visitorId?: string;
  /** For polls that require signed visitors: what your server has signed, or a function that is called for it. */
  visitor?: TokenSource;
}

export type Counted = components["schemas"]["Counted"];
export type LiveResults = components["schemas"]["LiveResults"];

/** What may come with an answer or an impression. */
export interface AnswerOptions extends FollowOptions {
  /** Sent as it is, whatever the poll requires. */
  visitorId?: string;
  /** What the poll requires, as the metadata of its event has it; saves a refused request. */
  visitors?: "any" | "issued" | "signed";
  sessionId?: string;
  /** The program's project; needed where WebSocket is blocked and the program has one. */
  projectId?: string;
}

export class Client extends Core {
  /** Who answers polls in this browser. */
  readonly visitorId: string;
  readonly sessionId: string;
  /** The account as calls on answers name it. */
  readonly account: string;
  readonly #answers = new Map<string, Promise<unknown>>();
  readonly #visitors: Visitors;
  /** Contexts that have refused a name. */
  readonly #required = new Set<string>();

  /** Keeps the configuration; nothing is sent yet. `baseUrl` is such as `https://demo.example.org`. */
  constructor(baseUrl: string, options: ClientOptions = {}) {
    super(baseUrl, options);
    const label = /^([a-z0-9-]+)\.(?!.*\d$)/.exec(new URL(baseUrl).hostname)?.[1];
    this.account = options.account ?? label ?? "demo";
    this.visitorId = options.visitorId ?? keptId(() => globalThis.localStorage, "onair-visitor");
    this.sessionId = keptId(() => globalThis.sessionStorage, "onair-session");
    const signed =
      options.visitor === undefined ? undefined : new Tokens(options.visitor, this.api.tokens.clock, String);
    const key = `onair-issued ${this.account}`;
    const now = () => this.now();
    this.#visitors = new Visitors(this.api, now, () => globalThis.localStorage, key, signed);
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

  /** Events in time with a viewer's video. */
  timeline(programId: string, options: TimelineOptions = {}): Timeline {
    return new Timeline(this, programId, options);
  }

  /**
   * The URL of an image made of `source`, for an element or a request; sends nothing. Options are such as
   * `w=400,h=400,fit=face,f=webp`; `f=json` describes the source.
   */
  imageUrl(source: string, options = "-"): string {
    const wanted = encodeURIComponent(options).replace(/%(?:3D|2C|3A)/g, decodeURIComponent);
    const path = `/api/v2/imgproxy/${this.account}/${wanted}?url=${encodeURIComponent(source)}`;
    return new URL(path, this.api.baseUrl).href;
  }

  /** Live results of a program as they change, each measure at most once a second; after a pause those known. */
  async *results(programId: string, options: FollowOptions = {}): AsyncGenerator<LiveResults> {
    const known = new Map<string, LiveResults>();
    for await (const { method, params } of this.follow(`responses:${programId}`, options)) {
      if (method === "results") {
        for (const result of params.results as LiveResults[]) {
          known.set(`${result.measureName} ${result.contextId}`, result);
          yield result;
        }
      } else if (method === "resumed") {
        for (const { measureName, contextId } of [...known.values()]) {
          const path = { accountId: this.account, responseName: measureName };
          const query = { programId, ...(contextId && { contextId }) };
          // Caches on the way may have what was told before the pause.
          const headers = { "Cache-Control": "no-cache" };
          yield await this.request("GET", "/responses/{accountId}/{responseName}/results", {
            path,
            query,
            headers,
          });
        }
      }
    }
  }

  /**
   * Answers a poll; resolves once the answer is durable. It is tried until the broker has decided, and counts once.
   * Where the poll closes before a lost try is repeated, it throws a 409, and the answer may have been counted.
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

  async #deliver(name: "respond" | "impression", entry: Raw, options: AnswerOptions): Promise<Counted> {
    const backoff = new Backoff(this.timing.baseMs, this.timing.capMs);
    const { contextId } = entry;
    const isRequired = this.#required.has(contextId) || (options.visitors ?? "any") !== "any";
    let isWanted = options.visitorId === undefined && isRequired;
    let refused: string | undefined;
    let refusal: unknown;
    // A name, then the visitor that was stored, then one that is new.
    let triesLeft = options.visitorId === undefined ? 2 : 0;
    for (;;) {
      try {
        if (isWanted) {
          const offered = await this.#visitors.get(refused);
          isWanted = false;
          if (offered) entry.visitorId = offered.visitorId;
          if (!offered || offered.isNew) triesLeft = 0;
          if (!offered && refusal) throw refusal;
        }
        if (this.state !== "fallback") return await this.carrier.call(name, entry, options.signal);
        const { programId, idempotencyKey, ...rest } = entry;
        const path = { accountId: this.account, projectId: options.projectId ?? "undefined", programId };
        const body = { [name === "respond" ? "responses" : "impressions"]: [rest] };
        const sending = { path, body, idempotencyKey, signal: options.signal };
        return (await this.api.send("POST", "/responses/{accountId}/{projectId}/{programId}", sending)).data;
      } catch (error) {
        options.signal?.throwIfAborted();
        if (triesLeft > 0 && isOfVisitor(error)) {
          triesLeft--;
          refusal = error;
          refused = entry.visitorId;
          isWanted = true;
          this.#required.add(contextId);
          // Nothing was counted under the one before, and another body needs another.
          if (entry.idempotencyKey) entry.idempotencyKey = newId();
          continue;
        }
        if (this.state === "closed" || !isWorthAnother(error)) throw error;
        await sleep(
          backoff.nextMs((error as ApiError | (ConnectionFailed & { retryAfterMs?: number })).retryAfterMs),
          options.signal,
        );
      }
    }
  }
}

/** Whether a poll does not take the visitor. */
function isOfVisitor(error: unknown): boolean {
  return error instanceof ApiError && error.fields.some(({ field }) => /(^|\.)visitorId$/.test(field));
}
