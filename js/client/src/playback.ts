/**
 * Where a viewer's video is, from samples of a player's position. No I/O.
 *
 * A position that is not known stands still for five seconds, then the video is `delayMs` behind the broker's
 * clock. A step back of over a second is a seek, a smaller one is jitter. A step forward is a seek when it is a
 * second more than playing at four times the speed, so that a fast or a sleeping tab seeks nowhere.
 */

export type Step = "none" | "back" | "forward";

const UNKNOWN_MS = 5_000;
const STEP_MS = 1_000;
const SPEED = 4;

/** What a player says: milliseconds since 1970, a date, or nothing. */
export type Position = number | Date | null | undefined;

export class Playback {
  /** What it shows, in milliseconds since 1970; negative infinity before it is known. */
  atMs = Number.NEGATIVE_INFINITY;
  /** Whether it follows the clock, because no player says where it is. */
  isFallback: boolean;
  #knownMs: number;

  constructor(
    readonly ask: (() => Position) | undefined,
    readonly delayMs: number,
    nowMs: number,
  ) {
    this.isFallback = !ask;
    this.#knownMs = nowMs;
  }

  /** Looks where it is, at the monotonic moment `nowMs` and at `serverMs` by the broker's clock. */
  look(nowMs: number, serverMs: number): Step {
    const position = this.#ask();
    if (position === undefined) {
      if (this.ask && nowMs - this.#knownMs < UNKNOWN_MS) return "none";
      this.isFallback = true;
      this.atMs = Math.max(this.atMs, serverMs - this.delayMs);
      return "none";
    }
    const lastMs = this.atMs;
    const elapsedMs = nowMs - this.#knownMs;
    const wasFallback = this.isFallback;
    this.#knownMs = nowMs;
    this.isFallback = false;
    if (position < lastMs - STEP_MS) {
      this.atMs = position;
      return "back";
    }
    this.atMs = Math.max(lastMs, position);
    const isJump = Number.isFinite(lastMs) && position > lastMs + SPEED * elapsedMs + STEP_MS;
    return isJump && !wasFallback ? "forward" : "none";
  }

  #ask(): number | undefined {
    try {
      const position = this.ask?.();
      const atMs = position instanceof Date ? position.getTime() : position;
      return Number.isFinite(atMs) ? (atMs as number) : undefined;
    } catch {
      return undefined; // a player that is not there yet
    }
  }
}
