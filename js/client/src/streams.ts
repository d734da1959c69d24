/** Programs followed by Server-Sent Events, a stream each, where WebSocket is blocked. */
import { Backoff } from "./backoff.js";
import { type Beginning, chooseBeginning, noteBeginning, servesAll } from "./beginning.js";
import type { HubState } from "./config.js";
import { ApiError, ClientError, ConnectionFailed, HistoryLost, Unsubscribed } from "./errors.js";
import type { Feed } from "./feed.js";
import { readBody } from "./http.js";
import { sleep } from "./sleep.js";
import { readStream } from "./stream.js";
import { position, type Raw, type Tracker } from "./tracker.js";

/** A connection whose WebSocket does not open, as the streams in its place see it. */
export interface Blocked {
  readonly hub: HubState;
  /** The WebSocket, once there is one: it takes over. */
  readonly link: unknown;
  /** What `GET /connect` answered last. */
  readonly known: Raw;
  problem: Error | undefined;
  fail(feed: Feed, error: Error): void;
  drop(feed: Feed): void;
}

/** Why a stream is ended to be opened anew: for a member that needs the past, or for a new token. */
const ANEW = "anew";
/** Why it is after a delay: what it delivers has a hole. */
const GAP = "gap";
/** Why it is at once, elsewhere where there is another gateway: nothing came for too long. */
const SILENT = "silent";

const SILENCE_MS = 40_000; // a gateway sends something every 25 s, and one that shows life far more often
const LATE_MS = 250; // where the page itself was held up, what has arrived meanwhile is read first

/** Follows by one stream after another, until a link has taken over or nobody follows. */
export async function follow(connection: Blocked, feed: Feed): Promise<void> {
  const { api, maxStreams, timing } = connection.hub.config;
  const { tokens } = api;
  if (feed.streaming) {
    // Whoever joins while it is being opened is looked after then.
    if (feed.isOn && !feed.joinHere()) feed.streaming.abort(ANEW);
    return;
  }
  if (!feed.programId) return; // channels have no stream; they wait for a WebSocket
  if (connection.hub.streams >= maxStreams) {
    const most = `over Server-Sent Events ${maxStreams} programs can be followed`;
    return connection.fail(feed, new ConnectionFailed(`WebSocket is blocked, and ${most}`));
  }
  connection.hub.streams++;
  const backoff = new Backoff(timing.baseMs, timing.capMs);
  const asking: Asking = { isAlive: true };
  let isRenewed = false;
  try {
    while (feed.members.size && !connection.hub.isClosed && !connection.link) {
      const ending = new AbortController();
      feed.streaming = ending;
      let waitMs = 0;
      try {
        waitMs = await read(connection, feed, ending, asking);
        if (ending.signal.reason !== GAP) backoff.attempt = 0;
        isRenewed = false;
      } catch (error) {
        if (
          asking.isAlive &&
          error instanceof ApiError &&
          error.fields.some(({ field }) => field === "alive")
        ) {
          // An older gateway does not know that it may be asked to show life.
          asking.isAlive = false;
          continue;
        }
        if (error instanceof ApiError && error.status < 429) {
          // A token may be refused before its time: another one is tried, once.
          const { revoked } = asking;
          if (revoked || isRenewed || error.code !== "invalid_token" || !tokens.drop(tokens.value)) {
            return connection.fail(feed, (error.status === 401 && revoked) || error);
          }
          isRenewed = true;
        }
        asking.avoid = asking.gateway;
        connection.problem = error as Error;
        waitMs = (error as ApiError).retryAfterMs ?? 0;
      }
      const { aborted, reason } = ending.signal;
      if (aborted && ![ANEW, GAP, SILENT].includes(reason)) return;
      feed.lose();
      if (reason === SILENT) asking.avoid = asking.gateway;
      if (reason === ANEW || reason === SILENT) continue;
      const pausing = new AbortController();
      feed.streaming = pausing;
      await sleep(backoff.nextMs(waitMs), pausing.signal);
    }
  } finally {
    feed.streaming = undefined;
    connection.hub.streams--;
    if (!feed.members.size) connection.drop(feed);
  }
}

/** What is kept from one stream of a feed to the next. */
interface Asking {
  /** Whether the gateway is asked to show life. */
  isAlive: boolean;
  /** The gateway that was asked last. */
  gateway?: string;
  /** The one that failed last: another one is asked where there is one. */
  avoid?: string | undefined;
  /** Why the last stream ended, if by its token; another one is tried once. */
  revoked?: Unsubscribed | undefined;
}

/** Reads one stream to its end; returns how long the gateway asks to stay away. */
async function read(
  connection: Blocked,
  feed: Feed,
  ending: AbortController,
  asking: Asking,
): Promise<number> {
  const { api, timing } = connection.hub.config;
  const programId = feed.programId as string;
  const token = await api.tokens.get();
  const asked = chooseBeginning(trackersOf(feed));
  const { url: first, servers = [] } = connection.known;
  const gateways: string[] = [first, ...servers.map((each: Raw) => each.url)];
  asking.gateway = gateways.find((each) => each !== asking.avoid) ?? first;
  const url = streamUrl(asking.gateway as string, programId, asked);
  if (asking.isAlive) url.searchParams.set("alive", "true");
  let waitMs = 0;
  let silenceMs = SILENCE_MS;
  let timer: ReturnType<typeof setTimeout> | undefined;
  // A way that buffers shows nothing, not even the first message.
  const heard = (limitMs = silenceMs) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = setTimeout(() => ending.abort(SILENT), LATE_MS);
    }, limitMs);
  };
  const handlers: Record<string, (params: Raw) => void> = {
    subscribed: (params) => {
      if (connection.link) return; // it takes over
      const head = position(params);
      const lost = noteBeginning(trackersOf(feed), asked, head, params.recovered !== false);
      for (const member of [...feed.members]) {
        const tracker = member.tracker as Tracker;
        if (lost.has(tracker)) feed.end(member, new HistoryLost(programId, head, tracker.cursor));
      }
      if (!servesAll(trackersOf(feed), head)) return ending.abort(ANEW);
      asking.revoked = undefined;
      feed.openStream(head);
      connection.hub.update();
    },
    alive: ({ everyMs }) => {
      // Two signs of life may be missing.
      if (everyMs > 0) silenceMs = 2 * everyMs;
      heard();
    },
    closed: ({ afterMs }) => {
      waitMs = Number(afterMs) || 0;
    },
    unsubscribed: (params) => {
      if (!/^token_/.test(params.reason) || !api.tokens.drop(token)) return feed.take("unsubscribed", params);
      asking.revoked = new Unsubscribed(programId, params.reason);
      ending.abort(ANEW);
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
    if (!reply.ok) readBody(reply, await reply.text(), url.origin);
    await readStream(
      reply,
      () => heard(),
      (method, params) => {
        (handlers[method] ?? ((each) => feed.take(method, each)))(params);
        if (!feed.members.size) ending.abort();
      },
    );
    return waitMs;
  } catch (error) {
    if (ending.signal.aborted) return waitMs;
    throw error instanceof ClientError ? error : new ConnectionFailed(`stream interrupted: ${error}`);
  } finally {
    clearTimeout(timer);
  }
}

/** Those who follow by streams follow programs, and have trackers. */
const trackersOf = (feed: Feed) => [...feed.members].map(({ tracker }) => tracker as Tracker);

/** Where a program's stream is: beside the WebSocket of its gateway. */
function streamUrl(gateway: string, programId: string, { since, history }: Beginning): URL {
  const url = new URL(
    `programs/${encodeURIComponent(programId)}/events/stream`,
    gateway.replace(/^ws/, "http"),
  );
  if (since)
    url.searchParams.set("since", [since.epoch, since.seq, ...(since.id ? [since.id] : [])].join(":"));
  else if (history) url.searchParams.set("history", String(history));
  return url;
}
