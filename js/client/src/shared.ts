/**
 * One connection for all tabs: a client whose subscriptions and calls go through a `SharedWorker`.
 *
 * Where there is none, as in some mobile browsers, or it says nothing, as its script cannot be loaded, the page
 * connects by itself. So it does when the worker ends: browsers end one that uses too much memory, and tell no page.
 * The worker holds a lock for as long as it lives, which a page gets after that. Where there are no locks, and for a
 * worker that hangs, a page asks one that has been silent whether it lives.
 */
import { Client, type ClientOptions } from "./client.js";
import type { Page } from "./core.js";
import { ConnectionLost } from "./errors.js";
import type { Member, Target } from "./feed.js";
import type { Carrier, State } from "./hub.js";
import { type OfMember, packError, type ToPage, type ToWorker, unpackError } from "./port.js";
import { newId } from "./ids.js";
import type { Cursor } from "./cursor.js";
import type { Raw } from "./tracker.js";

export interface SharedOptions extends ClientOptions {
  /** Tabs with the same name share; give each user of the origin another one. */
  name?: string;
}

/** A client that shares its connection through the worker at `workerUrl`, `dist/worker.js` of this package. */
export function openShared(workerUrl: string | URL, baseUrl: string, options: SharedOptions = {}): Client {
  let worker: SharedWorker;
  try {
    worker = new SharedWorker(workerUrl, { name: `onair ${new URL(baseUrl).origin} ${options.name ?? ""}` });
  } catch {
    return new Client(baseUrl, options);
  }
  return new Client(baseUrl, {
    ...options,
    carrier: (page) => new PortCarrier(worker, page, options),
  });
}

/** So many questions without an answer: a page that was frozen asks once more before it reads what has come. */
const MOST_UNANSWERED = 2;
/** When a connection may be gone, or there again; a worker has only the first of the events itself. */
const CHECKED_AT = ["online", "pageshow", "visibilitychange"];

interface Joined {
  id: number;
  target: Target;
  member: Member;
}

class PortCarrier implements Carrier {
  state: State = "idle";
  problem: Error | undefined;
  onState: () => void = () => {};
  #number = 0;
  readonly #members = new Map<number, Joined>();
  readonly #calls = new Map<number, { resolve: (result: Raw) => void; reject: (error: Error) => void }>();
  readonly #hold = new AbortController();

  /** The page's own connections, once the worker has turned out to be of no use. */
  #own: Carrier | undefined;
  /** Browsers do not always report a script that cannot be loaded. */
  readonly #silence: ReturnType<typeof setTimeout>;
  #watch: ReturnType<typeof setInterval> | undefined;
  #heardMs = 0;
  #unanswered = 0;
  /** The lock that the worker holds. */
  #life: string | undefined;

  constructor(
    readonly worker: SharedWorker,
    readonly page: Page,
    readonly options: SharedOptions,
  ) {
    worker.port.onmessage = (message) => this.#take(message.data);
    worker.onerror = () => this.#goAlone();
    addEventListener("pagehide", this.#hide);
    addEventListener("pageshow", this.#show);
    for (const name of CHECKED_AT) addEventListener(name, this.#check);
    this.#hello();
    this.#silence = setTimeout(() => this.#goAlone(), page.timing.openTimeoutMs);
  }

  join(target: Target, member: Member): void {
    if (this.#own) return this.#own.join(target, member);
    const id = ++this.#number;
    this.#members.set(id, { id, target, member });
    this.#joinAs(id, target, member);
  }

  leave(target: Target, member: Member): void {
    if (this.#own) return this.#own.leave(target, member);
    for (const [id, joined] of this.#members) {
      if (joined.member !== member) continue;
      this.#members.delete(id);
      this.#send({ op: "leave", id });
    }
  }

  call(method: string, params: Raw, signal?: AbortSignal): Promise<Raw> {
    if (this.#own) return this.#own.call(method, params, signal);
    const id = ++this.#number;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      signal?.addEventListener("abort", () => reject(signal.reason));
      this.#calls.set(id, { resolve, reject });
      this.#send({ op: "call", id, method, params });
    });
  }

  close(): void {
    this.#hide();
    this.#unlisten();
    this.#own?.close();
    for (const { member } of [...this.#members.values()]) member.fail();
    this.#setState("closed");
  }

  #unlisten(): void {
    clearTimeout(this.#silence);
    clearInterval(this.#watch);
    removeEventListener("pagehide", this.#hide);
    removeEventListener("pageshow", this.#show);
    for (const name of CHECKED_AT) removeEventListener(name, this.#check);
    this.#hold.abort();
  }

  #goAlone(): void {
    if (this.#own || this.state === "closed") return;
    this.#unlisten();
    this.#send({ op: "bye" });
    const own = this.page.open();
    this.#own = own;
    own.onState = () => {
      this.problem = own.problem;
      this.#setState(own.state);
    };
    this.#failCalls("the SharedWorker does not answer");
    const all = [...this.#members.values()];
    this.#members.clear();
    for (const { target, member } of all) {
      lose(member);
      own.join(target, member);
    }
  }

  #failCalls(why: string): void {
    for (const { reject } of this.#calls.values()) reject(new ConnectionLost(why));
    this.#calls.clear();
  }

  readonly #check = () => this.#send({ op: "check" });

  /** Asks a worker that has been silent whether it lives. */
  #ask(): void {
    if (performance.now() - this.#heardMs < this.page.timing.idleMs) return;
    if (this.#unanswered >= MOST_UNANSWERED) return this.#goAlone();
    this.#unanswered++;
    this.#send({ op: "ping" });
  }

  readonly #hide = () => {
    this.#send({ op: "bye" });
    this.#failCalls("the page was hidden");
  };

  /** Out of the browser's cache of pages: the worker has let go of everything. */
  readonly #show = (event: PageTransitionEvent) => {
    if (!event.persisted) return;
    this.#hello();
    for (const { id, target, member } of this.#members.values()) {
      lose(member);
      this.#joinAs(id, target, member);
    }
  };

  #hello(): void {
    const { transport = "auto", maxStreams = 5, token } = this.options;
    const baseUrl = new URL(this.page.api.baseUrl).origin;
    const config = {
      baseUrl,
      transport,
      maxStreams,
      timing: this.page.timing,
      hasToken: token !== undefined,
    };
    this.#send({ op: "hello", config });
    const lock = `onair ${newId()}`;
    // Held until the page is gone; the worker learns of it once it is held, or it would get it at once.
    const hold = () => {
      this.#send({ op: "lock", lock });
      return new Promise<void>((resolve) => this.#hold.signal.addEventListener("abort", () => resolve()));
    };
    const locks: LockManager | undefined = navigator.locks; // none outside of secure contexts
    locks?.request(lock, { signal: this.#hold.signal }, hold).catch(() => {});
    const asked = performance.now();
    this.call("servertime", {}).then(
      ({ serverTime }) => this.page.clock.sample(asked, performance.now(), serverTime),
      () => {},
    );
  }

  #joinAs(id: number, target: Target, { tracker }: Member): void {
    this.#send({ op: "join", id, target, since: tracker?.cursor, history: tracker?.history ?? 0 });
  }

  #send(message: ToWorker): void {
    this.worker.port.postMessage(message);
  }

  #setState(state: State): void {
    if (this.state === state) return;
    this.state = state;
    this.onState();
  }

  async #take(message: ToPage): Promise<void> {
    if (this.#own || this.state === "closed") return;
    clearTimeout(this.#silence);
    this.#heardMs = performance.now();
    this.#unanswered = 0;
    this.#watch ??= setInterval(() => this.#ask(), this.page.timing.answerMs);
    if (message.op === "pong") return;
    if (message.op === "life") return this.#guard(message.lock);
    if (message.op === "state") {
      if (message.problem) this.problem = new ConnectionLost(message.problem);
      return this.#setState(message.state);
    }
    if (message.op === "token") {
      try {
        const { tokens } = this.page.api;
        // The one that the worker had was refused, or ends.
        tokens.drop(message.instead);
        this.#send({ op: "token", token: await tokens.get() });
      } catch (error) {
        this.#send({ op: "token", error: packError(error) });
      }
      return;
    }
    if (message.op === "reply") {
      const call = this.#calls.get(message.id);
      this.#calls.delete(message.id);
      if (message.error) call?.reject(unpackError(message.error));
      else call?.resolve(message.result);
      return;
    }
    const joined = this.#members.get(message.id);
    if (joined) this.#tell(joined, message);
  }

  /** Waits for the lock of the worker, which the browser gives away once the worker has ended. */
  #guard(lock: string): void {
    if (this.#life === lock) return;
    this.#life = lock;
    navigator.locks.request(lock, { signal: this.#hold.signal }, () => this.#goAlone()).catch(() => {});
  }

  /** The worker has checked the order: what it tells is next. */
  #tell({ id, member }: Joined, message: OfMember): void {
    const { tracker } = member;
    if (message.op === "tell") {
      if (tracker) tracker.cursor = cursorOf(message.params);
      member.tell(message.method, message.params);
    } else if (message.op === "opened") {
      if (tracker && message.cursor) tracker.cursor ??= message.cursor;
      member.isTold = true;
      member.opened();
    } else if (message.op === "lost") {
      lose(member);
    } else {
      this.#members.delete(id);
      member.fail(unpackError(message.error));
    }
  }
}

function lose(member: Member): void {
  if (!member.isTold) return;
  member.isTold = false;
  member.lost();
}

function cursorOf({ epoch, seq, id }: Raw): Cursor {
  return id ? { epoch, seq, id } : { epoch, seq };
}
