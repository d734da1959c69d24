/** Programs followed by Server-Sent Events, a stream each, where WebSocket is blocked. */
import type { Backoff } from "./backoff.js";
import type * as errors from "./errors.js";
import type { Feed, Member } from "./feed.js";
import type { readBody } from "./http.js";
import type { Lane } from "./lane.js";
import type { sleep } from "./sleep.js";
import { readStream } from "./stream.js";

/** What the core has already: given, and not imported, so that it stays one file. */
export interface Tools {
  Backoff: typeof Backoff;
  errors: Pick<typeof errors, "ApiError" | "ClientError" | "ConnectionFailed">;
  readBody: typeof readBody;
  sleep: typeof sleep;
}

/** Why a stream is ended to be opened anew: for a member that needs the past, for a new token, or for silence. */
const ANEW = "anew";

/** Follows by one stream after another, until a link has taken over or nobody follows. */
export async function follow(lane: Lane, feed: Feed, tools: Tools): Promise<void> {
  const { ApiError, ConnectionFailed } = tools.errors;
  const { maxStreams, timing } = lane.hub.config;
  if (feed.streaming) return feed.joinHere() ? undefined : feed.streaming.abort(ANEW);
  if (!feed.programId) return; // channels have no stream; they wait for a WebSocket
  if (lane.hub.streams >= maxStreams) {
    const most = `over Server-Sent Events ${maxStreams} programs can be followed`;
    return lane.fail(feed, new ConnectionFailed(`WebSocket is blocked, and ${most}`));
  }
  lane.hub.streams++;
  const backoff = new tools.Backoff(timing.baseMs, timing.capMs);
  try {
    while (feed.members.size && !lane.hub.isClosed && !lane.link) {
      const ending = new AbortController();
      feed.streaming = ending;
      let waitMs = 0;
      try {
        waitMs = await read(lane, feed, ending, tools);
        backoff.attempt = 0;
      } catch (error) {
        if (error instanceof ApiError && error.status < 429) return lane.fail(feed, error);
        lane.problem = error as Error;
        waitMs = (error as errors.ApiError).retryAfterMs ?? 0;
      }
      if (ending.signal.aborted && ending.signal.reason !== ANEW) return;
      feed.lose();
      if (!ending.signal.aborted) await tools.sleep(backoff.nextMs(waitMs), ending.signal);
    }
  } finally {
    feed.streaming = undefined;
    lane.hub.streams--;
    if (!feed.members.size) lane.drop(feed);
  }
}

/** Reads one stream to its end; returns how long the gateway asks to stay away. */
async function read(lane: Lane, feed: Feed, ending: AbortController, tools: Tools): Promise<number> {
  const { ClientError, ConnectionFailed } = tools.errors;
  const { api, timing } = lane.hub.config;
  const asked = feed.neediest() ?? ([...feed.members][0] as Member);
  const url = streamUrl(lane.known.url, feed.programId as string, asked);
  const token = await api.tokens.get();
  let waitMs = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  // A way that buffers shows nothing, not even the first message.
  const heard = (limitMs: number) => {
    clearTimeout(timer);
    timer = setTimeout(() => ending.abort(ANEW), limitMs);
  };
  const handlers: Record<string, (params: { afterMs?: number }) => void> = {
    subscribed: (params) => {
      feed.openStream(asked, params);
      lane.hub.update();
    },
    closed: ({ afterMs }) => {
      waitMs = Number(afterMs) || 0;
    },
    reconnect: () => {}, // the gateway says by `closed` when it leaves
    tokenExpiring: () => {
      // One whose end is known is renewed by the client's own time.
      if (!Number.isFinite(api.tokens.renewInMs()) && api.tokens.drop(token)) ending.abort(ANEW);
    },
  };
  heard(timing.openTimeoutMs);
  try {
    const headers: HeadersInit = token ? { Authorization: `Bearer ${token}` } : {};
    const reply = await api.fetch(url, { headers, signal: ending.signal, cache: "no-store" });
    if (!reply.ok) tools.readBody(reply, await reply.text(), url.origin);
    await readStream(
      reply,
      () => heard(SILENCE_MS),
      (method, params) => (handlers[method] ?? ((each) => feed.take(method, each)))(params),
    );
    return waitMs;
  } catch (error) {
    if (ending.signal.aborted) return waitMs;
    throw error instanceof ClientError ? error : new ConnectionFailed(`the stream broke off: ${error}`);
  } finally {
    clearTimeout(timer);
  }
}

const SILENCE_MS = 40_000; // a gateway sends something every 25 s

/** Where a program's stream is: beside the WebSocket of its gateway. */
function streamUrl(gateway: string, programId: string, { tracker }: Member): URL {
  const { cursor, history } = tracker ?? {};
  const url = new URL(
    `programs/${encodeURIComponent(programId)}/events/stream`,
    gateway.replace(/^ws/, "http"),
  );
  if (cursor)
    url.searchParams.set("since", [cursor.epoch, cursor.seq, ...(cursor.id ? [cursor.id] : [])].join(":"));
  else if (history) url.searchParams.set("history", String(history));
  return url;
}
