/**
 * Where a stream of Server-Sent Events is to begin. No I/O.
 *
 * A stream delivers to all who follow a program, from one place on, and only the broker knows where a history of
 * so many pushes begins. So who has no position gets one first, by asking for its history, and the shortest first:
 * a longer one begins earlier and serves those before it as well. When all have positions the oldest serves all,
 * and trackers drop what they have.
 */
import type { Cursor } from "./cursor.js";
import type { Tracker } from "./tracker.js";

/** What a stream is asked for: what comes after a position, or the last so many pushes and what comes after them. */
export interface Beginning {
  since?: Cursor;
  history: number;
}

/** What the next stream is asked for. */
export function chooseBeginning(trackers: Iterable<Tracker>): Beginning {
  let shortest: number | undefined;
  let since: Cursor | undefined;
  for (const { cursor, history } of trackers) {
    if (!cursor) shortest = Math.min(shortest ?? history, history);
    else if (!since || (cursor.epoch === since.epoch && cursor.seq < since.seq)) since = cursor;
  }
  return shortest === undefined && since ? { since, history: 0 } : { history: shortest ?? 0 };
}

/** Notes that the stream which was asked for `asked` begins after `head`; returns those whose history is lost. */
export function noteBeginning(
  trackers: Iterable<Tracker>,
  asked: Beginning,
  head: Cursor,
  isRecovered: boolean,
): Set<Tracker> {
  const lost = new Set<Tracker>();
  for (const tracker of trackers) {
    if (!asked.since && tracker.history === asked.history) tracker.cursor ??= { ...head };
    const { cursor } = tracker;
    const isAsked = cursor && cursor.epoch === asked.since?.epoch && cursor.seq === asked.since.seq;
    if (cursor && (cursor.epoch !== head.epoch || (isAsked && !isRecovered))) lost.add(tracker);
  }
  return lost;
}

/** Whether a stream that begins after `head` serves all of them. */
export function servesAll(trackers: Iterable<Tracker>, head: Cursor): boolean {
  return [...trackers].every(({ cursor }) => cursor && cursor.epoch === head.epoch && cursor.seq >= head.seq);
}
