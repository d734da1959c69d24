/**
 * One connection for all tabs: a client whose subscriptions and calls go through a `SharedWorker`.
 *
 * Where there is none, as in some mobile browsers, or it says nothing, as its script cannot be loaded, the page
 * connects by itself.
 */
import { Client, type ClientOptions } from "./client.js";
import type { Page } from "./core.js";
import { ConnectionLost } from "./errors.js";
import type { Member, Target } from "./feed.js";
import type { Carrier, State } from "./hub.js";
import { type ToPage, type ToWorker, unpackError } from "./port.js";
import { newId } from "./ids.js";
import type { Cursor, Raw } from "./tracker.js";

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

  constructor(
    readonly worker: SharedWorker,
    readonly page: Page,
    readonly options: SharedOptions,
  ) {
    worker.port.onmessage = (message) => this.#take(message.data);
    worker.onerror = () => this.#goAlone();
    addEventListener("pagehide", this.#hide);
    addEventListener("pageshow", this.#show);
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
    clearTimeout(this.#silence);
    this.#hide();
    removeEventListener("pagehide", this.#hide);
    removeEventListener("pageshow", this.#show);
    this.#hold.abort();
    this.#own?.close();
    for (const { member } of [...this.#members.values()]) member.fail();
    this.#setState("closed");
  }

  #goAlone(): void {
    if (this.#own) return;
    clearTimeout(this.#silence);
    this.#send({ op: "bye" });
    const own = this.page.open();
    this.#own = own;
    own.onState = () => {
      this.problem = own.problem;
      this.#setState(own.state);
    };
    const lost = new ConnectionLost("the SharedWorker does not answer");
    for (const { reject } of this.#calls.values()) reject(lost);
    for (const { target, member } of this.#members.values()) own.join(target, member);
    this.#members.clear();
  }

  readonly #hide = () => {
    this.#send({ op: "bye" });
    for (const { reject } of this.#calls.values()) reject(new ConnectionLost("the page was hidden"));
    this.#calls.clear();
  };

  /** Out of the browser's cache of pages: the worker has let go of everything. */
  readonly #show = (event: PageTransitionEvent) => {
    if (!event.persisted) return;
    this.#hello();
    for (const { id, target, member } of this.#members.values()) {
      member.lost();
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
    locks?.request(lock, hold);
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
    clearTimeout(this.#silence);
    if (this.#own) return;
    if (message.op === "state") {
      if (message.problem) this.problem = new ConnectionLost(message.problem);
      return this.#setState(message.state);
    }
    if (message.op === "token") {
      try {
        this.#send({ op: "token", token: await this.page.api.tokens.get() });
      } catch (error) {
        this.#send({ op: "token", error: String(error) });
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

  /** The worker has checked the order: what it tells is next. */
  #tell({ id, member }: Joined, message: Exclude<ToPage, { op: "state" | "token" | "reply" }>): void {
    const { tracker } = member;
    if (message.op === "tell") {
      if (tracker) tracker.cursor = cursorOf(message.params);
      member.tell(message.method, message.params);
    } else if (message.op === "opened") {
      if (tracker && message.cursor) tracker.cursor ??= message.cursor;
      member.isTold = true;
      member.opened();
    } else if (message.op === "lost") {
      member.isTold = false;
      member.lost();
    } else {
      this.#members.delete(id);
      member.fail(unpackError(message.error));
    }
  }
}

function cursorOf({ epoch, seq, id }: Raw): Cursor {
  return id ? { epoch, seq, id } : { epoch, seq };
}
