/** The broker's clock, as far as exchanges of `servertime` tell it; a page's own clock may be wrong by days. */
export class ServerClock {
  #offsetMs: number | undefined;
  #bestMs = Infinity;
  #errorMs = 0;

  /** Whether the broker has told its time. */
  get isKnown(): boolean {
    return this.#offsetMs !== undefined;
  }

  /** Milliseconds since 1970-01-01T00:00:00Z by the broker's clock; by the own one until it is known. */
  now(): number {
    return this.#offsetMs === undefined ? Date.now() : performance.now() + this.#offsetMs;
  }

  /** By how much `now` may be wrong: half the exchange, as nobody knows how long each way took. 0 until it is known. */
  get errorMs(): number {
    return this.#errorMs;
  }

  /** Takes an exchange: asked and answered on the scale of `performance.now()`. The quickest one counts. */
  sample(askedMs: number, answeredMs: number, serverTime: number): void {
    const tripMs = answeredMs - askedMs;
    if (!Number.isFinite(serverTime) || tripMs > this.#bestMs) return;
    this.#bestMs = tripMs;
    this.#errorMs = tripMs / 2;
    this.#offsetMs = serverTime - (askedMs + answeredMs) / 2;
  }

  /** The next exchange counts whatever its quality: the machine may have slept, and its clocks with it. */
  doubt(): void {
    this.#bestMs = Infinity;
  }
}
