/**
 * Changes that were sent and not answered: they may have been made.
 *
 * The same change sent again carries the key of the first, so that the broker makes it once. A key is forgotten with
 * the answer, and when the user gives the change up. It outlives a reload as drafts do.
 */
import { ApiError } from "../../client/src/index.js";
import { newId } from "../../client/src/ids.js";
import type { Sending } from "../../client/src/http.js";
import { draftOf } from "./drafts.js";
import { login } from "./session.js";

export interface Sent {
  key: string;
  /** Milliseconds since 1970 by this machine's clock. */
  sinceMs: number;
}

/** Nobody answered, or not in a way that says what became of the change; `cause` is what happened instead. */
export class Unconfirmed extends Error {}

const MOST = 100;
/** The broker's; a key that is older is another change there. */
const LIFETIME_MS = 24 * 3_600_000;
/** Answers that say nothing of earlier tries under the same key. */
const OPEN = [401, 408, 429];

/** Makes a change under one key until it is answered. Throws `Unconfirmed` where it is not. */
export async function once<T>(change: string, send: (key: string) => Promise<T>): Promise<T> {
  const sent = sentBefore(change) ?? { key: newId(), sinceMs: Date.now() };
  keep(change, sent);
  try {
    const answer = await send(sent.key);
    forget(change);
    return answer;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status >= 500 || OPEN.includes(error.status))
      throw new Unconfirmed("The change was not confirmed", { cause: error });
    forget(change);
    throw error;
  }
}

/** The change as it was sent first, while it is under way and while nobody knows what became of it. */
export function sentBefore(change: string): Sent | undefined {
  const sent = all().value?.[change];
  return sent && Date.now() - sent.sinceMs < LIFETIME_MS ? sent : undefined;
}

/** The outcome is known, or no longer of interest. */
export function forget(change: string): void {
  const others = Object.entries(all().peek() ?? {}).filter(([each]) => each !== change);
  all().value = others.length ? Object.fromEntries(others) : undefined;
}

/** The name of a change: the same for the same request. */
export function nameOf(
  method: string,
  path: string,
  { path: values, query, body, headers }: Sending,
): string {
  return `${method} ${path} ${hash(JSON.stringify([values, query, body, headers?.["If-Match"]]))}`;
}

function keep(change: string, sent: Sent): void {
  const newest = Object.entries(all().peek() ?? {}).slice(1 - MOST);
  all().value = { ...Object.fromEntries(newest), [change]: sent };
}

function all() {
  return draftOf<Record<string, Sent>>(login.value?.userId ?? "", "unconfirmed");
}

/** 53 bits of a text (cyrb53): what is sent may be large. The broker refuses a key that comes with another request. */
function hash(text: string): string {
  let [one, two] = [0xdeadbeef, 0x41c6ce57];
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index);
    one = Math.imul(one ^ code, 2654435761);
    two = Math.imul(two ^ code, 1597334677);
  }
  one = Math.imul(one ^ (one >>> 16), 2246822507) ^ Math.imul(two ^ (two >>> 13), 3266489909);
  two = Math.imul(two ^ (two >>> 16), 2246822507) ^ Math.imul(one ^ (one >>> 13), 3266489909);
  return (4294967296 * (2097151 & two) + (one >>> 0)).toString(36);
}
