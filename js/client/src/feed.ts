/**
 * Everything that follows one program or channel through one connection.
 *
 * The broker delivers a program once to a connection, however many members follow it here, and each has a
 * position of its own. So a member that must recover makes the feed subscribe anew from there, and the trackers
 * of the others drop what they had. `pump` goes on until every member is live: it asks from the oldest position
 * first, which serves all newer ones.
 */
import type { ApiError } from "./errors.js";
import type { Link } from "./link.js";
import type { Cursor } from "./cursor.js";
import { Gap, isSame, position, type Raw, type Tracker } from "./tracker.js";

/** One who follows. */
export interface Member {
  /** Absent where a channel is followed, which has no history. */
  readonly tracker?: Tracker;
  /** Whether it is told what comes on the present connection. */
  isTold: boolean;
  /** It is live from here on. */
  opened(): void;
  /** The connection is gone; it will be live again. */
  lost(): void;
  /** Something for it, already checked by its tracker. */
  tell(method: string, params: Raw): void;
  /** It is over: by an error, or because the client was closed. */
  fail(error?: Error): void;
}

export type Target = { programId: string } | { channel: string };

/** Names a target among all. */
export const keyOf = (target: Target) =>
  "programId" in target ? `p${target.programId}` : `c${target.channel}`;

export class Feed {
  readonly members = new Set<Member>();
  /** Ends the stream that stands in for the WebSocket; undefined while there is none. */
  streaming: AbortController | undefined;
  /** Whether the present link or stream delivers. */
  isOn = false;
  #position: Cursor | undefined;
  #link: Link | undefined;
  #pumping: Link | undefined;

  constructor(
    readonly target: Target,
    readonly onGap: (feed: Feed) => void,
  ) {}

  get programId(): string | undefined {
    return "programId" in this.target ? this.target.programId : undefined;
  }

  /** Whether any member waits to become live. */
  get isWaiting(): boolean {
    return [...this.members].some((member) => !member.isTold);
  }

  /** No connection delivers any more. */
  lose(): void {
    this.isOn = false;
    this.#link = this.#position = undefined;
    for (const member of this.members) {
      if (member.isTold) {
        member.isTold = false;
        member.lost();
      }
    }
  }

  /**
   * Makes every member live on `link`.
   *
   * @param token Signs the connection in anew.
   * @throws what `Link.call` rejects with where another try may help; where none does the members have failed.
   */
  async pump(link: Link, token?: string): Promise<void> {
    if (this.#pumping === link) return;
    this.#pumping = link;
    try {
      while (this.members.size && this.isWaiting) await this.#subscribe(link, token);
    } finally {
      if (this.#pumping === link) this.#pumping = undefined;
    }
  }

  /** Opens the members that need nothing of the past; whether none is left. */
  joinHere(): boolean {
    const at = this.#position;
    for (const member of this.members) {
      const tracker = member.tracker;
      if (!this.isOn || member.isTold) continue;
      if (tracker && (!at || (tracker.cursor ? !isSame(tracker.cursor, at) : tracker.history > 0))) continue;
      if (tracker) tracker.cursor ??= { ...(at as Cursor) };
      open(member);
    }
    return !this.isWaiting;
  }

  /** The member whose needs come first: the oldest position of an epoch, else the longest history. */
  #neediest(): Member | undefined {
    let first: Member | undefined;
    for (const member of this.members) {
      if (member.isTold) continue;
      const [one, other] = [member.tracker?.cursor, first?.tracker?.cursor];
      const isOlder = one && (!other || (one.epoch === other.epoch && one.seq < other.seq));
      const isLonger = !one && !other && (member.tracker?.history ?? 0) > (first?.tracker?.history ?? 0);
      if (!first || isOlder || isLonger) first = member;
    }
    return first;
  }

  /** A notification of `link`, or of the stream when `link` is undefined. */
  take(method: string, params: Raw, link?: Link): void {
    if (link !== this.#link) return;
    for (const member of this.members) if (member.isTold) this.#tell(member, method, params);
    if (this.#position && params.epoch && params.seq >= 0) this.#position = position(params);
  }

  /** The broker has ended it, whoever is live. */
  endBy(params: Raw): void {
    for (const member of [...this.members]) this.#tell(member, "unsubscribed", params);
  }

  /** A stream delivers what comes after `head`, which nobody's position is before. */
  openStream(head: Cursor): void {
    this.#link = undefined;
    this.isOn = true;
    this.#position = head;
    // A copy, as one who is told may let others join.
    for (const member of [...this.members]) if (!member.isTold) open(member);
  }

  /** Ends one member. */
  end(member: Member, error?: Error): void {
    this.members.delete(member);
    member.isTold = false;
    member.fail(error);
  }

  async #subscribe(link: Link, token?: string): Promise<void> {
    if (this.#link === link && this.joinHere()) return;
    const asked = this.#neediest() as Member;
    const { cursor, history = 0 } = asked.tracker ?? {};
    const params: Raw = { ...this.target };
    if (cursor) params.since = cursor;
    else if (history) params.history = history;
    if (token) params.access_token = token;
    if (this.#link === link && this.isOn) link.call("unsubscribe", this.target).catch(() => {});
    try {
      await link.call("subscribe", params, undefined, (result) => this.#opened(asked, result, link));
    } catch (error) {
      const { status } = error as ApiError; // absent where the broker did not answer
      if (!(status < 429) || status === 401) throw error;
      for (const member of [...this.members]) this.end(member, error as Error);
    }
  }

  #opened(asked: Member, result: Raw, link: Link): void {
    this.#link = link;
    this.isOn = true;
    if (!this.programId) {
      for (const member of this.members) if (!member.isTold) open(member);
      return;
    }
    const head = position(result);
    this.#position = head;
    for (const member of [...this.members]) {
      const tracker = member.tracker as Tracker;
      try {
        if (member === asked) {
          // The caller is told what it missed before it is told that it is live.
          for (const { method = "event", ...params } of tracker.open(result)) member.tell(method, params);
          open(member);
        } else if (tracker.cursor) {
          for (const { method = "event", ...params } of result.events ?? []) {
            if (tracker.take(method, params)) member.tell(method, params);
          }
          const isHere = isSame(tracker.cursor, head);
          if (isHere && !member.isTold) open(member);
          member.isTold = isHere;
        }
      } catch (error) {
        if (error instanceof Gap && member !== asked) member.isTold = false;
        else this.end(member, error as Error);
      }
    }
  }

  #tell(member: Member, method: string, params: Raw): void {
    try {
      if (!member.tracker) member.tell(method, params);
      else if (member.tracker.take(method, params)) member.tell(method, params);
    } catch (error) {
      if (error instanceof Gap) this.onGap(this);
      else this.end(member, error as Error);
    }
  }
}

function open(member: Member): void {
  member.isTold = true;
  member.opened();
}
