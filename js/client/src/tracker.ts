/**
 * A subscription's memory: which notification comes next, which is a repeat, which means a hole. No I/O.
 *
 * A program's pushes carry `epoch` and `seq`, counted without a gap. The tracker keeps the position of the last
 * push handed out with its id, its cursor, and takes what comes in:
 *
 * - the next `seq` of the epoch is handed out and moves the cursor;
 * - a `seq` at or below the cursor has been handed out before and is dropped;
 * - anything else is a hole (`Gap`): the connection is given up, and the next one recovers from the cursor;
 * - `historyReplaced` and `eventsDeleted` begin a new epoch at their own `seq`; of the current epoch they are
 *   repeats, unless their `seq` is beyond the cursor: the pushes between are lost.
 */
import type { Cursor } from "./cursor.js";
import { HistoryLost, ProgramDeleted, ProtocolError, Unsubscribed } from "./errors.js";
import type { components } from "./schema.js";

/** A stored event. `timestamp` and `timecode` are milliseconds since 1970-01-01T00:00:00Z. */
export type ProgramEvent = components["schemas"]["Event"];

/** What a subscription with `changes` yields. */
export type Change =
  | { type: "event"; event: ProgramEvent }
  /** `event` is the new state; its `seq` is the change's place, not its own. */
  | { type: "eventUpdated"; event: ProgramEvent }
  | { type: "eventDeleted"; id: string; seq: number; epoch: string; programId: string }
  /** All events are gone; `epoch` is the new one. */
  | { type: "eventsDeleted"; deleted: number; seq: number; epoch: string; programId: string }
  /** An import replaced the events, or the broker has lost some: read them by REST. */
  | { type: "historyReplaced"; seq: number; epoch: string; programId: string };

export type Raw = any;

/** A push is missing between the cursor and the one that came. */
export class Gap extends ProtocolError {}

/** Follows one program over any number of connections. */
export class Tracker {
  /**
   * @param cursor The position to go on from.
   * @param history Without a cursor: begin with the last so many pushes.
   */
  constructor(
    readonly programId: string,
    public cursor: Cursor | undefined,
    readonly history: number,
  ) {}

  /** Takes the answer to the `subscribe` that asked from this cursor; returns the pushes that were missed. */
  open(result: Raw): Raw[] {
    const head = position(result);
    if (this.cursor && result.recovered === false) throw new HistoryLost(this.programId, head, this.cursor);
    const items: Raw[] = result.events ?? [];
    if (!this.cursor && items.length) {
      const first = position(items[0]);
      this.cursor = { epoch: first.epoch, seq: Math.max(0, first.seq - 1) };
    }
    const missed = items.filter((item) => this.take(item.method ?? "event", item));
    this.cursor ??= head;
    if (!isSame(this.cursor, head)) throw new Gap("recovery left a gap");
    if (head.id) this.cursor.id ??= head.id;
    return missed;
  }

  /** Takes a notification; whether it is to be handed out, and is no repeat nor another matter. */
  take(method: string, params: Raw): boolean {
    const { cursor, programId } = this;
    if (method === "programDeleted") throw new ProgramDeleted(programId);
    if (method === "unsubscribed") throw new Unsubscribed(programId, String(params.reason ?? ""));
    const isReset = method === "eventsDeleted" || method === "historyReplaced";
    if (!isReset && !/^event(Updated|Deleted)?$/.test(method)) return false;
    const at = position(params);
    const isCurrent = cursor && at.epoch === cursor.epoch;
    if (isCurrent && at.seq <= cursor.seq) return false;
    if (!isReset && !(isCurrent && at.seq === cursor.seq + 1)) {
      throw new Gap(`${at.epoch}:${at.seq} came after ${cursor?.epoch}:${cursor?.seq}`);
    }
    this.cursor = at;
    return true;
  }
}

/** The position that a push or an answer to `subscribe` carries. */
export function position(params: Raw): Cursor {
  const { epoch, seq, id } = params ?? {};
  if (typeof epoch !== "string" || !Number.isSafeInteger(seq) || seq < 0) {
    throw new ProtocolError("the broker sent a push without epoch and seq");
  }
  return id ? { epoch, seq, id } : { epoch, seq };
}

/** Whether two positions are the same; ids apart. */
export function isSame(one: Cursor, other: Cursor): boolean {
  return one.epoch === other.epoch && one.seq === other.seq;
}
