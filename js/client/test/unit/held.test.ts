import assert from "node:assert/strict";
import { test } from "node:test";
import { dueMs, Held } from "../../src/held.js";
import type { ProgramEvent } from "../../src/tracker.js";

const item = (due: number, seq: number) => ({ dueMs: due, event: { id: `e${seq}`, seq } as ProgramEvent });
const seqs = (held: Held, atMs: number) => held.take(atMs).map(({ event }) => event.seq);

test("events come out when they are due, by time and then by place", () => {
  const held = new Held();
  for (const [due, seq] of [
    [30, 1],
    [10, 5],
    [10, 2],
    [20, 3],
  ] as const)
    held.add(item(due, seq));
  assert.equal(held.nextMs, 10);
  assert.deepEqual(seqs(held, 9), []);
  assert.deepEqual(seqs(held, 20), [2, 5, 3]);
  assert.deepEqual(seqs(held, Number.POSITIVE_INFINITY), [1]);
  assert.equal(held.nextMs, Number.POSITIVE_INFINITY);
});

test("an order that many inserts make is that of a sort", () => {
  const items = Array.from({ length: 500 }, (_, seq) => item((seq * 7919) % 101, seq));
  const held = new Held();
  for (const each of items) held.add(each);
  const sorted = [...items].sort((one, other) => one.dueMs - other.dueMs || one.event.seq - other.event.seq);
  assert.deepEqual(
    seqs(held, 1000),
    sorted.map(({ event }) => event.seq),
  );
});

test("a new state of an event takes the place of the old", () => {
  const held = new Held();
  held.add(item(10, 1));
  held.add(item(30, 1));
  assert.deepEqual(seqs(held, 10), []);
  held.remove("e1");
  assert.equal(held.size, 0);
});

test("too much is let go of from the far end, and no moment is split", () => {
  const held = new Held();
  for (let seq = 0; seq < 10_001; seq++) held.add(item(Math.floor(seq / 8), seq));
  assert.equal(held.trim(), 625);
  assert.equal(held.size, 5000);
  assert.equal(held.trim(), Number.POSITIVE_INFINITY);
});

test("an event without a timecode is due when it happened, or was stored", () => {
  const event = {
    timecode: 3,
    timestamp: 2,
    createdTime: "1970-01-01T00:00:00.001Z",
  } as Partial<ProgramEvent>;
  assert.equal(dueMs(event as ProgramEvent), 3);
  delete event.timecode;
  assert.equal(dueMs(event as ProgramEvent), 2);
  delete event.timestamp;
  assert.equal(dueMs(event as ProgramEvent), 1);
});
