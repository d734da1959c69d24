/**
 * What is followed: iterate it with `for await`, or listen to it as an `EventTarget`.
 *
 * Items wait for the iterator in a bounded buffer. Who listens and does not iterate has no buffer.
 */

import type { Raw } from "./tracker.js";

type Handler<T> = (event: CustomEvent<T>) => void;

/** `T` is handed out; `M` names the DOM events and what their `detail` is; `R` confirms the start. */
export abstract class Flow<T, M, R> extends EventTarget implements AsyncIterable<T> {
  /** Resolves once the broker has confirmed; rejects with what ended the flow before. */
  readonly ready: Promise<R>;
  #resolve!: (value: R) => void;
  #reject!: (error: unknown) => void;
  #queue: T[] = [];
  #head = 0;
  #notify: (() => void) | undefined;
  #isListening = false;
  #isIterating = false;
  #ended: { error?: unknown } | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #onAbort = () => this.close();

  constructor(signal?: AbortSignal) {
    super();
    this.ready = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.ready.catch(() => {});
    this.#signal = signal;
    signal?.addEventListener("abort", this.#onAbort);
  }

  /** Whether it is over. */
  get isClosed(): boolean {
    return !!this.#ended;
  }

  override addEventListener<K extends keyof M & string>(
    type: K,
    handler: Handler<M[K]> | null,
    options?: AddEventListenerOptions | boolean,
  ): void;
  override addEventListener(
    type: string,
    handler: EventListenerOrEventListenerObject | null,
    options?: AddEventListenerOptions | boolean,
  ): void;
  override addEventListener(type: string, handler: Raw, options?: AddEventListenerOptions | boolean): void {
    super.addEventListener(type, handler, options);
    if (/^(live|lost|end|state)$/.test(type)) return;
    this.#isListening = true;
    // What came before the first listener goes to it.
    if (!this.#isIterating) queueMicrotask(() => !this.#isIterating && this.#flush());
  }

  /** Ends it. The iterator hands out what waits and then ends without an error. */
  close(): void {
    this.finish();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    this.#isIterating = true;
    try {
      for (;;) {
        while (this.waiting && !this.isAborted) yield this.#shift();
        if (this.#ended) {
          if ("error" in this.#ended) throw this.#ended.error;
          return;
        }
        await new Promise<void>((resolve) => {
          this.#notify = resolve;
        });
      }
    } finally {
      this.close();
    }
  }

  /** How many items wait for the iterator. */
  protected get waiting(): number {
    return this.#queue.length - this.#head;
  }

  /** Hands an item out, now or when the iterator comes for it. */
  protected push(item: T): void {
    if (this.#ended) return;
    if (this.#isListening && !this.#isIterating) return this.handed(item);
    this.#queue.push(item);
    this.#notify?.();
  }

  protected get isAborted(): boolean {
    return !!this.#signal?.aborted;
  }

  /** Dispatches a DOM event of an item or of a state. */
  protected emit<K extends keyof M & string>(type: K, detail: M[K]): void {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** In a microtask: a flow that others follow already is confirmed in its constructor, before anybody can abort it. */
  protected confirm(value: R): void {
    queueMicrotask(() => this.#resolve(value));
  }

  /** Ends it, with an error or without; the first end counts. */
  protected finish(...error: unknown[]): void {
    if (this.#ended) return;
    this.#ended = error.length ? { error: error[0] } : {};
    this.#signal?.removeEventListener("abort", this.#onAbort);
    this.#reject(error[0] ?? this.#signal?.reason ?? new DOMException("it was closed", "AbortError"));
    this.#notify?.();
    this.ended();
    this.dispatchEvent(new CustomEvent("end", { detail: error[0] }));
  }

  /** An item is handed out now: note it, and dispatch its DOM event. */
  protected abstract handed(item: T): void;

  /** It is over: let go of what feeds it. */
  protected abstract ended(): void;

  /** The buffer has become empty. */
  protected drained(): void {}

  #shift(): T {
    const item = this.#queue[this.#head++] as T;
    if (this.#head === this.#queue.length) {
      this.#queue = [];
      this.#head = 0;
      this.drained();
    }
    this.handed(item);
    return item;
  }

  #flush(): void {
    while (this.waiting) this.#shift();
  }
}
