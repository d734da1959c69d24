import assert from "node:assert/strict";
import { test } from "node:test";
import { HistoryLost, ProgramDeleted, ProtocolError, Unsubscribed } from "../../src/errors.js";
import { Gap, Tracker } from "../../src/tracker.js";

const push = (seq: number, epoch = "a") => ({ programId: "p", epoch, seq, id: `${epoch}${seq}` });
const opened = (seq: number, events: unknown[] = [], more = {}) => ({
  ...push(seq),
  recovered: true,
  events,
  ...more,
});

test("a new subscription begins where the program stands", () => {
  const tracker = new Tracker("p", undefined, 0);
  assert.deepEqual(tracker.open(opened(41)), []);
  assert.deepEqual(tracker.cursor, { epoch: "a", seq: 41, id: "a41" });
});

test("history begins anywhere and goes on without a hole", () => {
  const tracker = new Tracker("p", undefined, 2);
  assert.equal(tracker.open(opened(41, [push(40), push(41)])).length, 2);
  assert.throws(() => new Tracker("p", undefined, 2).open(opened(41, [push(39), push(41)])), Gap);
});

test("recovery drops what was seen and ends at the head", () => {
  const tracker = new Tracker("p", { epoch: "a", seq: 40 }, 0);
  assert.deepEqual(tracker.open(opened(42, [push(40), push(41), push(42)])), [push(41), push(42)]);
  assert.throws(() => new Tracker("p", { epoch: "a", seq: 40 }, 0).open(opened(42, [push(41)])), Gap);
});

test("a lost history tells where the program stands and what was seen", () => {
  const tracker = new Tracker("p", { epoch: "a", seq: 40 }, 0);
  const lost = (() => {
    try {
      tracker.open({ ...push(7, "b"), recovered: false });
    } catch (error) {
      return error as HistoryLost;
    }
    return undefined;
  })();
  assert.ok(lost instanceof HistoryLost);
  assert.deepEqual(
    [lost.cursor, lost.seen],
    [
      { epoch: "b", seq: 7, id: "b7" },
      { epoch: "a", seq: 40 },
    ],
  );
});

test("pushes are taken once and in order", () => {
  const tracker = new Tracker("p", { epoch: "a", seq: 1 }, 0);
  assert.equal(tracker.take("event", push(2)), true);
  assert.equal(tracker.take("event", push(2)), false);
  assert.equal(tracker.take("eventDeleted", push(3)), true);
  assert.throws(() => tracker.take("event", push(5)), Gap);
  assert.throws(() => tracker.take("event", push(4, "b")), Gap);
  assert.deepEqual(tracker.cursor, { epoch: "a", seq: 3, id: "a3" });
});

test("a new epoch begins at its own place, and its repeat is dropped", () => {
  const tracker = new Tracker("p", { epoch: "a", seq: 9 }, 0);
  assert.equal(tracker.take("historyReplaced", { programId: "p", epoch: "b", seq: 3 }), true);
  assert.equal(tracker.take("historyReplaced", { programId: "p", epoch: "b", seq: 3 }), false);
  assert.equal(tracker.take("event", push(4, "b")), true);
});

test("what a newer broker adds is passed over", () => {
  const tracker = new Tracker("p", { epoch: "a", seq: 1 }, 0);
  assert.equal(tracker.take("eventAdorned", { programId: "p" }), false);
});

test("the end of a program and of the right to read it are errors of their own", () => {
  const tracker = new Tracker("p", undefined, 0);
  assert.throws(() => tracker.take("programDeleted", {}), ProgramDeleted);
  assert.throws(() => tracker.take("unsubscribed", { reason: "private" }), Unsubscribed);
});

test("a push without a position is what no broker sends", () => {
  const tracker = new Tracker("p", { epoch: "a", seq: 1 }, 0);
  for (const wrong of [
    {},
    { epoch: "a" },
    { epoch: "a", seq: -1 },
    { epoch: 1, seq: 2 },
    { epoch: "a", seq: 2.5 },
  ]) {
    assert.throws(() => tracker.take("event", wrong), ProtocolError);
  }
});
