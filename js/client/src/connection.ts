/**
 * One WebSocket after another, and the feeds that go over it.
 *
 * A loop connects, serves until the connection ends, waits and begins again, while anybody follows or calls. Where
 * a gateway can be asked for and its WebSocket cannot be opened, streams stand in (`streams.ts`, which is loaded
 * then), and the loop goes on trying at a slower pace.
 */
import { Backoff } from "./backoff.js";
import type { HubState } from "./config.js";
import { ApiError, ConnectionFailed, ConnectionLost, ProtocolError } from "./errors.js";
import { Feed, keyOf, type Member, type Target } from "./feed.js";
import { isWorthAnother } from "./http.js";
import { Link } from "./link.js";
import { sleep } from "./sleep.js";
import type { Raw } from "./tracker.js";

const CAPACITY = 100; // the broker's usual limit; a lower one shows by 429
const STABLE_MS = 10_000; // a connection that lived this long was a good one: the delays begin anew
const TRIES_BEFORE_STREAMS = 2;
const SOON_MS = 5_000;
const ASK_AGAIN_MS = 1_000; // a function that gives no token is not asked at every tick
const LINGER_MS = 5_000; // a connection that carries nothing any more is kept this long

export class Connection {
  readonly feeds = new Map<string, Feed>();
  link: Link | undefined;
  isFallback = false;
  problem: Error | undefined;
  #capacity = CAPACITY;
  #waiting = 0;
  #isRunning = false;
  #probing: Link | undefined;
  #isRenewing = false;
  #revokedMs = -Infinity;
  #openedMs = 0;
  #lastUsedMs = 0;
  #blocked = 0;
  #avoid: string | undefined;
  /** The token that the connection is signed in with. */
  #signed: string | undefined;
  known: Raw;

  #moving: ReturnType<typeof setTimeout> | undefined;
  #linkWaiters: ((link?: Link) => void)[] = [];
  #wake = new AbortController();
  readonly #backoff: Backoff;

  constructor(readonly hub: HubState) {
    this.#backoff = new Backoff(hub.config.timing.baseMs, hub.config.timing.capMs);
  }

  get hasRoom(): boolean {
    return this.feeds.size < this.#capacity;
  }

  get isWanted(): boolean {
    return !this.hub.isClosed && (this.feeds.size > 0 || this.#waiting > 0);
  }

  join(key: string, target: Target, member: Member): void {
    let feed = this.feeds.get(key);
    if (!feed) {
      feed = new Feed(target, (each) => this.#gap(each));
      this.feeds.set(key, feed);
    }
    member.isTold = false;
    feed.members.add(member);
    if (this.link) this.#pump(feed, this.link);
    else if (feed.isOn && feed.joinHere()) return;
    else if (this.isFallback) this.#stream(feed);
    this.#ensure();
  }

  leave(key: string, member: Member): void {
    const feed = this.feeds.get(key);
    if (!feed?.members.delete(member)) return;
    member.isTold = false;
    if (!feed.members.size) this.drop(feed);
  }

  async linkFor(signal?: AbortSignal): Promise<Link> {
    this.#lastUsedMs = performance.now();
    if (this.link) return this.link;
    if (this.isFallback) throw new ConnectionFailed("WebSocket is blocked; call over HTTP");
    this.#waiting++;
    this.#ensure();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const link = await new Promise<Link | undefined>((resolve) => {
      const giveUp = () => resolve(undefined);
      this.#linkWaiters.push(resolve);
      timer = setTimeout(giveUp, this.hub.config.timing.firstDeadlineMs);
      signal?.addEventListener("abort", giveUp);
    });
    clearTimeout(timer);
    this.#waiting--;
    signal?.throwIfAborted();
    if (!link) throw this.problem ?? new ConnectionFailed("no gateway was reached");
    return link;
  }

  close(): void {
    this.#failAll();
    this.link?.lose(new ConnectionFailed("the client is closed"));
    this.#wake.abort();
  }

  /** Tries at once where it waits; asks an open connection whether it lives. */
  check(): void {
    if (this.link) this.#probe(this.link);
    else this.#wake.abort();
  }

  tick(): void {
    const { link } = this;
    const { tokens } = this.hub.config.api;
    const isSpent = tokens.renewInMs() <= 0;
    if (!link) {
      for (const feed of isSpent ? this.feeds.values() : []) feed.streaming?.abort("anew");
      return;
    }
    const now = performance.now();
    if (!this.isWanted && !link.waiting && now - this.#lastUsedMs > LINGER_MS) {
      return link.lose(new ConnectionFailed("not used any more"));
    }
    if (isSpent || tokens.value !== this.#signed) this.#renew(link);
    const silentMs = now - Math.max(link.heardMs, this.#openedMs);
    if (silentMs >= this.hub.config.timing.idleMs) this.#probe(link);
    // Two signs of life are missing.
    if (silentMs > 2 * link.aliveMs) this.#replace(link, true);
  }

  #ensure(): void {
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#run().finally(() => {
      this.#isRunning = false;
      this.hub.update();
      if (this.isWanted) this.#ensure();
    });
  }

  async #run(): Promise<void> {
    const { timing } = this.hub.config;
    while (this.isWanted) {
      this.hub.update();
      let leastMs = 0;
      try {
        await this.#serve(await this.#open());
      } catch (error) {
        this.problem = error as Error;
        leastMs = (error as ApiError).retryAfterMs ?? 0;
        const isFault = error === this.hub.config.api.tokens.fault && !isWorthAnother(error);
        if (isFault || (error as ApiError).status < 429 || (error as ConnectionFailed).isFinal)
          this.#failAll(error as Error, (error as ApiError).status === 401);
      }
      if (!this.isWanted) return;
      this.hub.update();
      const isStreaming = [...this.feeds.values()].some((feed) => feed.isOn);
      const waitMs = isStreaming
        ? timing.upgradeMs * (0.5 + Math.random() / 2)
        : this.#backoff.nextMs(leastMs);
      this.#wake = new AbortController();
      await sleep(waitMs, this.#wake.signal);
    }
  }

  /** Finds a gateway and connects to it, or makes streams stand in for it. */
  async #open(askMs = 2_000): Promise<Link> {
    const { api, timing, transport, socketClass } = this.hub.config;
    await this.#findGateway(askMs);
    const url = this.#choose();
    const token = await api.tokens.get();
    try {
      if (transport === "sse") throw new ConnectionFailed("WebSocket is disabled");
      const link = await Link.open(url, token, await socketClass(), timing.openTimeoutMs, this.#notified);
      // Some proxies let a handshake pass and nothing after it; meanwhile the streams go on.
      if (this.isFallback) await link.call("servertime", {}, timing.answerMs);
      this.#signed = token;
      return link;
    } catch (error) {
      this.#avoid = url;
      this.#fallBack(++this.#blocked);
      throw error;
    }
  }

  /** Asks for gateways; while the API is away or slow, those that were known before have to do. */
  async #findGateway(askMs: number): Promise<void> {
    const programId = [...this.feeds.values()].find((feed) => feed.programId)?.programId;
    const timeoutMs = this.known ? askMs : this.hub.config.timing.openTimeoutMs;
    const sending = { query: { programId }, deadlineMs: 0, timeoutMs };
    try {
      this.known = (await this.hub.config.api.send("GET", "/connect", sending)).data;
      if (typeof this.known?.url !== "string") throw new ProtocolError("the broker named no gateway");
      if (this.known.retryAfterMs > 0) await sleep(this.known.retryAfterMs, this.#wake.signal);
    } catch (error) {
      if ((error as ApiError).status <= 429 || typeof this.known?.url !== "string") throw error;
    }
  }

  #choose(): string {
    const urls: string[] = [this.known.url, ...(this.known.servers ?? []).map((each: Raw) => each.url)];
    return urls.find((url) => url !== this.#avoid) ?? this.known.url;
  }

  /** Uses a connection until it ends. */
  async #serve(link: Link): Promise<void> {
    for (let next: Link | undefined = link; next; ) {
      link = next;
      this.#adopt(link);
      const problem = await link.ended;
      clearTimeout(this.#moving);
      next = this.link === link ? undefined : this.link;
      if (next) continue;
      this.link = undefined;
      for (const feed of this.feeds.values()) {
        if (feed.streaming) feed.streaming.abort("anew");
        else feed.lose();
      }
      if (performance.now() - this.#openedMs >= STABLE_MS) this.#backoff.attempt = 0;
      if (!link.heardMs) this.#fallBack(++this.#blocked);
      throw problem;
    }
  }

  #adopt(link: Link): void {
    this.link = link;
    this.isFallback = false;
    this.#openedMs = this.#lastUsedMs = performance.now();
    this.#avoid = undefined;
    for (const resolve of this.#linkWaiters.splice(0)) resolve(link);
    this.#probe(link);
    for (const feed of this.feeds.values()) {
      if (!feed.streaming) feed.lose();
      this.#pump(feed, link);
    }
    this.hub.update();
  }

  #pump(feed: Feed, link: Link): void {
    // What a stream delivers goes on until the link has taken over: trackers drop what comes twice.
    for (const member of feed.streaming ? feed.members : []) member.isTold = false;
    feed.pump(link).then(
      () => {
        if (!feed.isWaiting) feed.streaming?.abort();
        if (!feed.members.size) this.drop(feed);
      },
      (error) => this.#refused(feed, link, error),
    );
  }

  async #refused(feed: Feed, link: Link, error: Error): Promise<void> {
    if (this.link !== link || this.feeds.get(keyOf(feed.target)) !== feed) return;
    const others = [...this.feeds.values()].filter((each) => each !== feed && each.isOn).length;
    const { status, retryAfterMs } = error as ApiError; // absent where the broker did not answer
    if (status === 429 && others) {
      // Full: the broker gives one connection fewer than this.
      this.#capacity = Math.min(this.#capacity, others);
      this.feeds.delete(keyOf(feed.target));
      return this.hub.move(feed);
    }
    if (!status || status === 401) {
      // The connection's token has ended, and a new one is available; otherwise this caller may not read the program.
      // Without a status, anything but a lost connection is what no broker answers.
      const isLost = status ? this.hub.config.api.tokens.renewInMs() <= 0 : error instanceof ConnectionFailed;
      return isLost ? link.lose(error) : this.fail(feed, error);
    }
    await sleep(this.#backoff.nextMs(retryAfterMs));
    if (this.link === link) this.#pump(feed, link);
  }

  readonly #notified = (link: Link, method: string, params: Raw): void => {
    this.#blocked = 0;
    if (method === "alive") link.aliveMs = params.everyMs;
    if (method === "tokenExpiring") return this.#expiring(link);
    if (method === "reconnect") {
      clearTimeout(this.#moving);
      this.#moving = setTimeout(() => this.#replace(link), Number(params.afterMs) || 0);
      return;
    }
    const key = params.channel ? `c${params.channel}` : `p${params.programId}`;
    const feed = this.feeds.get(key);
    if (feed?.isOn && this.link === link && method === "unsubscribed" && this.#isRenewable(params)) {
      this.#resume(feed, link, params);
      return;
    }
    feed?.take(method, params, link);
    if (feed && !feed.members.size) this.drop(feed);
  };

  /** Connects elsewhere while the gateway that leaves, or is silent, may still serve. */
  async #replace(link: Link, isSilent = false): Promise<void> {
    if (this.link !== link || this.#avoid === link.url) return;
    this.#avoid = link.url;
    const { heardMs } = link;
    // Who hears nothing does not wait for an API that may be gone as well.
    const next = await this.#open(isSilent ? 500 : undefined).catch(() => undefined);
    // Calls that wait get their answers where they were made.
    for (let tries = 0; !isSilent && next && link.waiting && tries < 50; tries++) await sleep(100);
    if (this.link === link) {
      if (isSilent ? link.heardMs === heardMs : next) {
        this.link = next ?? link;
        return link.lose(new ConnectionLost("the gateway is gone"));
      }
      this.#avoid = undefined;
    }
    // It has ended meanwhile, or serves until it does, or was only late.
    next?.lose(new ConnectionFailed("not used any more"));
  }

  /** A token whose end is known is renewed by the client's own time, which is right for short-lived ones too. */
  #expiring(link: Link): void {
    const leftMs = this.hub.config.api.tokens.renewInMs();
    // A hidden page's timers are late; this notification is not.
    if (leftMs < SOON_MS || leftMs === Infinity) this.#renew(link);
  }

  /** Signs an open connection in with a new token: who subscribes with a token of its own is. */
  async #renew(link: Link): Promise<void> {
    const { tokens } = this.hub.config.api;
    const feed = [...this.feeds.values()].find((each) => each.isOn);
    if (typeof tokens.source !== "function" || this.#isRenewing) return;
    this.#isRenewing = true;
    try {
      // Another connection may have asked for a new one already.
      if (tokens.renewInMs() > 0 && tokens.value === this.#signed) tokens.drop(this.#signed);
      const token = await tokens.get();
      this.#signed = token;
      if (!feed) link.lose(new ConnectionFailed("its token has ended"));
      else if (token) await link.call("subscribe", { ...feed.target, access_token: token });
    } catch (error) {
      this.#signed = undefined;
      // Tried again soon; else the connection goes on without a name, and the broker says what ends by that.
      this.problem = error as Error;
      await sleep(ASK_AGAIN_MS);
    } finally {
      this.#isRenewing = false;
    }
  }

  /** Whether a subscription ended for want of a token, and another one can be asked for. */
  #isRenewable(params: Raw): boolean {
    return typeof this.hub.config.api.tokens.source === "function" && /^token_/.test(params.reason);
  }

  /** Follows on with another token, once: when that is refused too, the broker's word stands. */
  async #resume(feed: Feed, link: Link, params: Raw): Promise<void> {
    const { tokens } = this.hub.config.api;
    feed.lose();
    const now = performance.now();
    // All private feeds end at the same time, and one new token serves them all.
    if (now - this.#revokedMs > STABLE_MS) tokens.drop(this.#signed);
    this.#revokedMs = now;
    this.#isRenewing = true;
    try {
      this.#signed = await tokens.get();
    } catch (error) {
      // Connects anew, and asks again until there is one.
      return link.lose(new ConnectionLost(`there is no other token: ${error}`));
    } finally {
      this.#isRenewing = false;
    }
    if (this.link !== link) return;
    try {
      if (this.#signed) await feed.pump(link, this.#signed);
      else feed.endBy(params);
    } catch (error) {
      if ((error as ApiError).status === 401) feed.endBy(params);
      else await this.#refused(feed, link, error as Error);
    }
    if (!feed.members.size) this.drop(feed);
  }

  /** Asks for the time, which tells whether the connection lives. */
  async #probe(link: Link): Promise<void> {
    if (this.#probing === link) return;
    this.#probing = link;
    const askedMs = performance.now();
    try {
      const told = await link.call("servertime", {}, this.hub.config.timing.answerMs);
      this.#blocked = 0;
      this.hub.config.clock.sample(askedMs, performance.now(), told?.serverTime);
    } catch (error) {
      // Any answer shows life, also that of a server that does not know the call.
      if (error instanceof ConnectionFailed) link.lose(error);
    } finally {
      if (this.#probing === link) this.#probing = undefined;
    }
  }

  #gap(feed: Feed): void {
    if (this.link) this.link.lose(new ConnectionFailed("a push is missing"));
    else feed.streaming?.abort("gap");
  }

  drop(feed: Feed): void {
    const key = keyOf(feed.target);
    if (this.feeds.get(key) !== feed) return;
    this.feeds.delete(key);
    feed.streaming?.abort();
    this.#lastUsedMs = performance.now();
    this.link?.call("unsubscribe", feed.target).catch(() => {});
  }

  fail(feed: Feed, error?: Error): void {
    for (const member of [...feed.members]) feed.end(member, error);
    this.drop(feed);
  }

  /** With `sparesStreams` those that have a stream go on: it learns by itself that its token is refused. */
  #failAll(error?: Error, sparesStreams = false): void {
    const feeds = [...this.feeds.values()].filter((feed) => !sparesStreams || !feed.streaming);
    for (const feed of feeds) this.fail(feed, error);
    for (const resolve of this.#linkWaiters.splice(0)) resolve();
  }

  // -- Server-Sent Events

  #fallBack(tries: number): void {
    const { transport } = this.hub.config;
    if (transport === "websocket" || (transport === "auto" && tries < TRIES_BEFORE_STREAMS)) return;
    // A broker that names no stream has none.
    if (typeof this.known.streamUrl !== "string") return;
    this.isFallback = true;
    for (const feed of this.feeds.values()) this.#stream(feed);
  }

  /** Follows by a stream until a link has taken over or nobody follows. */
  async #stream(feed: Feed): Promise<void> {
    try {
      const { follow } = await import("./streams.js");
      if (this.feeds.get(keyOf(feed.target)) === feed) await follow(this, feed);
    } catch (error) {
      // Its code could not be loaded: tried again when the next WebSocket fails.
      this.problem = error as Error;
    }
  }
}
