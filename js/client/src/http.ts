/**
 * Calls by HTTP: signed, tried again where that is safe, typed errors out.
 *
 * A failure is clear when it is certain that nothing was done (429, 503 `unavailable` or `maintenance`), else open.
 * Open ones are repeated only for calls that can be repeated without harm: reads, and changes under an idempotency
 * key, which the broker makes once. What has no body of the broker's, such as the page of a proxy, is no answer: open too.
 * Before the first reply a name that does not exist is a mistake, and is not looked up again; after it the network is away.
 */
import { Backoff } from "./backoff.js";
import { ApiError, ConnectionFailed, ProtocolError } from "./errors.js";
import { newId } from "./ids.js";
import { parseApiError, retryAfterMs } from "./refusals.js";
import { sleep } from "./sleep.js";
import type { Tokens } from "./token.js";
import type { Raw } from "./tracker.js";

/** What one request may carry. */
export interface Sending {
  path?: Record<string, Raw> | undefined;
  query?: Record<string, Raw> | undefined;
  body?: Raw;
  headers?: Record<string, string>;
  /** The same for every try; a change gets one by itself. */
  idempotencyKey?: string;
  /** No try begins later than this after the first; 0 tries once. */
  deadlineMs?: number;
  timeoutMs?: number;
  signal?: AbortSignal | undefined;
  cache?: RequestCache;
}

export interface Received {
  data: Raw;
  headers: Headers;
}

/** Why Node has not even connected: a name that does not exist, and a port that `fetch` never uses. */
const IN_VAIN = /ENOTFOUND|bad port/;

export class Api {
  /** Whether there has been any reply. */
  #isReached = false;

  constructor(
    readonly baseUrl: string,
    readonly tokens: Tokens,
    readonly fetch: typeof globalThis.fetch,
    readonly deadlineMs: number,
  ) {}

  /** Makes a call. What was sent may still take effect after an abort. */
  async send(method: string, path: string, sending: Sending = {}): Promise<Received> {
    const isRead = method === "GET";
    const key = sending.idempotencyKey ?? (isRead ? undefined : newId());
    const deadline = performance.now() + (sending.deadlineMs ?? this.deadlineMs);
    const backoff = new Backoff(100, 5000);
    const url = this.url(path, sending);
    let isRenewed = false;
    for (;;) {
      const token = await this.tokens.get();
      let failure: Raw;
      try {
        return await this.#try(method, url, sending, token, key);
      } catch (error) {
        failure = error;
      }
      sending.signal?.throwIfAborted();
      if (failure.code === "invalid_token" && !isRenewed && this.tokens.drop(token)) {
        isRenewed = true;
        continue;
      }
      const waitMs = backoff.nextMs(failure.retryAfterMs);
      if (!isWorthAnother(failure) || performance.now() + waitMs >= deadline) throw failure;
      await sleep(waitMs, sending.signal);
    }
  }

  /** A full URL below the API's base, its placeholders filled in. Throws TypeError for one without a value. */
  url(path: string, sending: Sending = {}): string {
    const filled = path.replace(/\{(\w+)\}/g, (_, name) => {
      const value = sending.path?.[name];
      if (value == null) throw new TypeError(`the path parameter ${name} of ${path} is missing`);
      return encodeURIComponent(String(value));
    });
    const query = Object.entries(sending.query ?? {}).filter(([, value]) => value != null);
    const text = new URLSearchParams(query.map(([name, value]) => [name, String(value)])).toString();
    return this.baseUrl + filled + (text && `?${text}`);
  }

  async #try(method: string, url: string, sending: Sending, token?: string, key?: string): Promise<Received> {
    const { body, signal } = sending;
    const headers: Record<string, string> = { ...sending.headers };
    if (token) headers.Authorization = `Bearer ${token}`;
    if (key) headers["Idempotency-Key"] = key;
    if (body !== undefined) headers["Content-Type"] ??= "application/json";
    const give = new AbortController();
    const giveUp = () => give.abort();
    const timer = setTimeout(giveUp, sending.timeoutMs ?? 15_000);
    signal?.addEventListener("abort", giveUp);
    const init: RequestInit = { method, headers, signal: give.signal };
    if (sending.cache) init.cache = sending.cache;
    if (body !== undefined) init.body = typeof body === "string" ? body : JSON.stringify(body);
    let reply: Response;
    let text: string;
    try {
      reply = await this.fetch(url, init);
      this.#isReached = true;
      text = await reply.text();
    } catch (error) {
      signal?.throwIfAborted();
      const { cause } = error as Raw; // Node's `fetch` says there what went wrong; browsers do not say it
      const why = cause ? `: ${cause.message || cause.code}` : "";
      const failed = new ConnectionFailed(`no reply from ${this.baseUrl}: ${error}${why}`, { cause: error });
      if (!this.#isReached && IN_VAIN.test(why)) failed.isFinal = true;
      throw failed;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", giveUp);
    }
    return { data: readBody(reply, text, this.baseUrl), headers: reply.headers };
  }
}

/** Whether the same call may go well another time, and may be made another time. */
export function isWorthAnother(error: Raw): boolean {
  return error instanceof ApiError
    ? [429, 502, 503, 504].includes(error.status)
    : error instanceof ConnectionFailed && !error.isFinal;
}

/** The parsed body of a reply; undefined for an empty one and for text that is not JSON. Throws for an error. */
export function readBody(reply: Response, text: string, url: string): Raw {
  let data: Raw;
  try {
    data = text ? JSON.parse(text) : undefined;
  } catch {
    if (reply.ok && reply.headers.get("Content-Type")?.startsWith("application/json")) {
      throw new ProtocolError("a reply is not JSON");
    }
    data = text;
  }
  if (reply.ok) return data;
  const error = parseApiError(reply.status, data, reply.headers);
  if (error) throw error;
  const failed = new ConnectionFailed(`something in front of ${url} answered ${reply.status}`);
  throw Object.assign(failed, { retryAfterMs: retryAfterMs(reply.headers) });
}
