/**
 * Delays with full jitter: uniform between nothing and a ceiling that doubles, because clients that lose one
 * server together must not come back together.
 */
export class Backoff {
  attempt = 0;

  constructor(
    readonly baseMs: number,
    readonly capMs: number,
    readonly draw: () => number = Math.random,
  ) {}

  /** Milliseconds to wait before the next try, and not less than `leastMs`. */
  nextMs(leastMs = 0): number {
    const ceiling = Math.min(this.capMs, this.baseMs * 2 ** Math.min(this.attempt++, 32));
    // What the server asks for is a least; everybody coming at exactly that moment is what it wants to avoid.
    return leastMs + ceiling * this.draw();
  }
}
