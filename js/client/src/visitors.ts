/** Who votes where a poll does not take any name: whom the customer has signed, or the broker has issued. */
import type { Api } from "./http.js";
import { type Find, keep, kept } from "./storage.js";
import type { Tokens } from "./token.js";

const RENEW_MS = 15 * 86_400_000; // half of what an issued visitor lasts

/** A visitor id, and until when it is accepted (ms). */
interface Issued {
  visitorId: string;
  expires: number;
}

/** A visitor id for a vote, and whether it was made for this vote. */
export interface Offered {
  visitorId: string;
  isNew: boolean;
}

/** Keeps one visitor. An issued one is stored, and renewed in time for the same visitor. */
export class Visitors {
  #known: Issued | undefined;
  #asking: Promise<Issued> | undefined;

  /**
   * @param key Under what an issued visitor is stored.
   * @param signed Where visitors come from that the customer signs; then none is asked of the broker.
   */
  constructor(
    readonly api: Pick<Api, "send">,
    readonly now: () => number,
    readonly find: Find,
    readonly key: string,
    readonly signed: Tokens | undefined,
  ) {}

  /** A visitor other than `refused`; undefined where there is none. One request at a time, tried once. */
  async get(refused?: string): Promise<Offered | undefined> {
    if (this.signed) {
      if (refused === this.signed.value) this.signed.drop(refused);
      const visitorId = await this.signed.get();
      return visitorId && visitorId !== refused ? { visitorId, isNew: refused !== undefined } : undefined;
    }
    // Another tab may have stored one meanwhile.
    const known = read(kept(this.find, this.key)) ?? this.#known;
    const leftMs = known ? known.expires - this.now() : 0;
    if (known && known.visitorId !== refused && leftMs > RENEW_MS) {
      return { visitorId: known.visitorId, isNew: false };
    }
    this.#asking ??= this.#ask(known).finally(() => {
      this.#asking = undefined;
    });
    try {
      return { visitorId: (await this.#asking).visitorId, isNew: true };
    } catch (error) {
      if (known && known.visitorId !== refused && leftMs > 0) {
        return { visitorId: known.visitorId, isNew: false };
      }
      throw error;
    }
  }

  async #ask(known: Issued | undefined): Promise<Issued> {
    const body = known ? { visitorId: known.visitorId } : {};
    const issued: Issued = (await this.api.send("POST", "/responses/visitor", { body, deadlineMs: 0 })).data;
    this.#known = issued;
    keep(this.find, this.key, JSON.stringify(issued));
    return issued;
  }
}

/** What was stored, if it is a visitor: a page may have written anything there. */
function read(text: string | undefined): Issued | undefined {
  try {
    const { visitorId, expires } = JSON.parse(text as string);
    return typeof visitorId === "string" && Number.isFinite(expires) ? { visitorId, expires } : undefined;
  } catch {
    return undefined;
  }
}
