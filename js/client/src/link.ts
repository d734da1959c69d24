/** One open WebSocket that speaks JSON-RPC 2.0: calls out, answers and notifications in. */
import { ConnectionFailed, ConnectionLost, ProtocolError } from "./errors.js";
import { parseRpcError } from "./refusals.js";
import type { Raw } from "./tracker.js";

/** The part of the browser's `WebSocket` that is used; the class of the package `ws` has it too. */
export interface Socket {
  onopen: Raw;
  onmessage: Raw;
  onclose: Raw;
  onerror: Raw;
  send(text: string): void;
  close(code?: number, reason?: string): void;
}
export type SocketClass = new (url: string) => Socket;

const CALL_TIMEOUT_MS = 30_000; // a publish may be retried inside the broker for 10 s before it answers

interface Waiting {
  resolve: (result: Raw) => void;
  reject: (error: Raw) => void;
  /** Runs before the next message is read, unlike what awaits the promise. */
  take: ((result: Raw) => void) | undefined;
}

export class Link {
  /** Resolves with the reason once the connection is of no more use. */
  readonly ended: Promise<Error>;
  /** When the peer was last heard, on the scale of `performance.now()`; 0 before. */
  heardMs = 0;
  /** How often the peer must be heard; unknown until it says so. */
  aliveMs = Infinity;
  #end!: (error: Error) => void;
  #lost: Error | undefined;
  #number = 0;
  readonly #waiting = new Map<number, Waiting>();

  private constructor(
    readonly url: string,
    readonly socket: Socket,
    readonly onNotification: (link: Link, method: string, params: Raw) => void,
  ) {
    this.ended = new Promise((resolve) => {
      this.#end = resolve;
    });
    socket.onmessage = (message: { data: Raw }) => this.#read(message.data);
    socket.onerror = () => {};
    socket.onclose = (close: { code?: number; reason?: string }) =>
      this.lose(
        new ConnectionLost(`the connection ended with ${close.code} ${close.reason ?? ""}`.trimEnd()),
      );
  }

  /** Connects; rejects with `ConnectionFailed`. A browser does not say why a handshake failed. */
  static open(
    url: string,
    token: string | undefined,
    socketClass: SocketClass,
    timeoutMs: number,
    onNotification: (link: Link, method: string, params: Raw) => void,
  ): Promise<Link> {
    return new Promise((resolve, reject) => {
      // In batches: a browser spends more on a message than on what is in it.
      const target = new URL(url);
      for (const wish of ["batch", "alive"]) target.searchParams.set(wish, "true");
      if (token) target.searchParams.set("access_token", token);
      const socket = new socketClass(target.href);
      const fail = () => {
        clearTimeout(timer);
        socket.onopen = socket.onclose = null;
        socket.onerror = () => {};
        socket.close();
        reject(new ConnectionFailed(`no WebSocket to ${url}`));
      };
      const timer = setTimeout(fail, timeoutMs);
      socket.onclose = socket.onerror = fail;
      socket.onopen = () => {
        clearTimeout(timer);
        resolve(new Link(url, socket, onNotification));
      };
    });
  }

  /** How many calls wait for their answers. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /**
   * Calls an operation.
   *
   * @param take Runs with the result before the next message is read.
   * @throws ConnectionLost when no answer came: what was asked for may have been done.
   */
  call(method: string, params: Raw, timeoutMs = CALL_TIMEOUT_MS, take?: (result: Raw) => void): Promise<Raw> {
    const id = ++this.#number;
    const done = new Promise<Raw>((resolve, reject) => {
      if (this.#lost) return reject(this.#lost);
      this.#waiting.set(id, { resolve, reject, take });
      this.socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    });
    const late = () => this.#waiting.get(id)?.reject(new ConnectionLost(`no reply to ${method} in time`));
    const timer = setTimeout(late, timeoutMs);
    return done.finally(() => {
      clearTimeout(timer);
      this.#waiting.delete(id);
    });
  }

  /** Gives the connection up: every call that waits fails. Idempotent. */
  lose(error: Error): void {
    if (this.#lost) return;
    this.#lost = error;
    this.socket.onmessage = this.socket.onclose = null;
    this.socket.close();
    for (const each of this.#waiting.values()) each.reject(error);
    this.#end(error);
  }

  #read(text: Raw): void {
    this.heardMs = performance.now();
    try {
      const message = JSON.parse(text);
      for (const each of Array.isArray(message) ? message : [message]) this.#accept(each);
    } catch (error) {
      this.lose(error instanceof SyntaxError ? new ProtocolError("a reply is not JSON") : (error as Error));
    }
  }

  #accept(message: Raw): void {
    if (message.method) return this.onNotification(this, message.method, message.params ?? {});
    const waiting = this.#waiting.get(message.id);
    if (!waiting) return;
    if (message.error) return waiting.reject(parseRpcError(message.error));
    try {
      waiting.take?.(message.result);
      waiting.resolve(message.result);
    } catch (error) {
      waiting.reject(error);
    }
  }
}
