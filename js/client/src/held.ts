/** The events that the video has not reached, in the order of their release. No I/O. */
import type { ProgramEvent } from "./tracker.js";

/** When an event is to be shown: its timecode, or what a server has that sends none. */
export function dueMs(event: ProgramEvent): number {
  const { timecode, timestamp, createdTime } = event;
  return Number.isInteger(timecode)
    ? timecode
    : Number.isInteger(timestamp)
      ? timestamp
      : Date.parse(createdTime);
}

export interface Item {
  event: ProgramEvent;
  dueMs: number;
}

const MOST = 10_000; // a viewer pauses for hours
const KEPT = 5_000;

const isBefore = (one: Item, other: Item) =>
  one.dueMs < other.dueMs || (one.dueMs === other.dueMs && one.event.seq < other.event.seq);

export class Held {
  #items: Item[] = [];
  readonly #ids = new Set<string>();

  get size(): number {
    return this.#items.length;
  }

  /** When the first is due; infinite when there is none. */
  get nextMs(): number {
    return this.#items[0]?.dueMs ?? Number.POSITIVE_INFINITY;
  }

  has(id: string): boolean {
    return this.#ids.has(id);
  }

  /** Holds an event in its place, instead of an earlier state of it. */
  add(item: Item): void {
    this.remove(item.event.id);
    let low = 0;
    for (let high = this.#items.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (isBefore(this.#items[middle] as Item, item)) low = middle + 1;
      else high = middle;
    }
    this.#items.splice(low, 0, item);
    this.#ids.add(item.event.id);
  }

  remove(id: string): void {
    if (this.#ids.delete(id)) this.#items = this.#items.filter(({ event }) => event.id !== id);
  }

  clear(): void {
    this.#items = [];
    this.#ids.clear();
  }

  /** Takes out what is due at `atMs`, in order. */
  take(atMs: number): Item[] {
    let count = 0;
    while (count < this.#items.length && (this.#items[count] as Item).dueMs <= atMs) count++;
    const taken = this.#items.splice(0, count);
    for (const { event } of taken) this.#ids.delete(event.id);
    return taken;
  }

  /** Lets go of what is furthest ahead when there is too much; returns when the first of it is due. */
  trim(): number {
    if (this.#items.length <= MOST) return Number.POSITIVE_INFINITY;
    // One moment is never split: reading it again would double what was kept of it.
    const horizonMs = (this.#items[KEPT] as Item).dueMs;
    const count = this.#items.findIndex((item) => item.dueMs === horizonMs);
    for (const { event } of this.#items.splice(count)) this.#ids.delete(event.id);
    return horizonMs;
  }
}
