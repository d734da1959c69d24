/** An access token by value, or by a function that is called for one that is still good. */
import type { ServerClock } from "./clock.js";

export type TokenSource = string | (() => string | undefined | Promise<string | undefined>);

const RENEW_BEFORE_MS = 60_000;
const RENEW_FRACTION = 0.2; // of the lifetime, for short-lived tokens

/**
 * A token without the line break that a file ends with.
 *
 * @throws TypeError for what no header can carry.
 */
export function readToken(given: string): string {
  const token = `${given}`.trim();
  if (/[^!-~]/.test(token))
    throw new TypeError("a token has a space, a line break or a letter beyond ASCII in it");
  return token;
}

/** Keeps one token. A token by value is used until it ends; a function is asked again before that. */
export class Tokens {
  #value: string | undefined;
  #renewAtMs = Infinity;
  #asking: Promise<string | undefined> | undefined;
  #hasGiven = false;
  /** What the function threw, if it has never given a token: then it is wrong, and not away for a while. */
  fault: unknown;

  /** @param read Checks what was given. */
  constructor(
    readonly source: TokenSource | undefined,
    readonly clock: ServerClock,
    readonly read = readToken,
  ) {
    if (typeof source === "string") this.#value = read(source);
  }

  /** The token that was given last. */
  get value(): string | undefined {
    return this.#value;
  }

  /** A token with some life left; undefined for an anonymous caller. Asks once at a time. */
  async get(): Promise<string | undefined> {
    if (typeof this.source !== "function" || (this.#value && this.renewInMs() > 0)) return this.#value;
    this.#asking ??= this.#ask(this.source).finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  /** Milliseconds until a new token is needed; infinite if none is available. */
  renewInMs(): number {
    return this.#renewAtMs - performance.now();
  }

  /** Drops a token that was refused or ends, unless it has been replaced. Returns whether a new one is available. */
  drop(token: string | undefined): boolean {
    if (typeof this.source !== "function" || !token) return false;
    if (this.#value === token) this.#value = undefined;
    return true;
  }

  async #ask(source: () => string | undefined | Promise<string | undefined>): Promise<string | undefined> {
    const askedMs = performance.now();
    let value: string | undefined;
    try {
      value = await source();
      if (value) value = this.read(value);
    } catch (error) {
      if (!this.#hasGiven) this.fault = error;
      throw error;
    }
    this.#hasGiven = true;
    const lifeMs = value ? lifetimeMs(value, this.clock) : Infinity;
    this.#value = value;
    this.#renewAtMs =
      (this.clock.isKnown ? performance.now() : askedMs) +
      lifeMs -
      Math.min(RENEW_BEFORE_MS, lifeMs * RENEW_FRACTION);
    return value;
  }
}

/**
 * How long a token (RFC 7519) is good; infinite for one that cannot be read, such as an API token. Its own times
 * are the server's: without the server's clock it counts as new.
 */
export function lifetimeMs(token: string, clock: ServerClock): number {
  try {
    const text = (token.split(".")[1] as string).replace(/-/g, "+").replace(/_/g, "/");
    const { iat, exp } = JSON.parse(atob(text));
    const lifeMs = clock.isKnown ? exp * 1000 - clock.now() : (exp - iat) * 1000;
    return Number.isFinite(lifeMs) ? Math.max(0, lifeMs) : Infinity;
  } catch {
    return Infinity;
  }
}
