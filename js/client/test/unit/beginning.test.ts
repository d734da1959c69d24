import assert from "node:assert/strict";
import { test } from "node:test";
import { type Beginning, chooseBeginning, noteBeginning, servesAll } from "../../src/beginning.js";
import { Tracker } from "../../src/tracker.js";

const fresh = (history = 0) => new Tracker("p", undefined, history);
const at = (seq: number, epoch = "a") => new Tracker("p", { epoch, seq }, 0);

/**
 * Opens streams of a program of `head` pushes, of which it has those after `oldest`, until one serves all; what was
 * asked for, and who has lost history.
 */
function open(trackers: Tracker[], head: number, oldest = 0) {
  const [asked, lost]: [Beginning[], Tracker[]] = [[], []];
  for (let rest = trackers; asked.length < 9; ) {
    const beginning = chooseBeginning(rest);
    asked.push(beginning);
    const isRecovered = !beginning.since || (beginning.since.epoch === "a" && beginning.since.seq >= oldest);
    const seq = isRecovered ? (beginning.since?.seq ?? head - Math.min(head, beginning.history)) : head;
    const isLost = noteBeginning(rest, beginning, { epoch: "a", seq }, isRecovered);
    lost.push(...isLost);
    rest = rest.filter((each) => !isLost.has(each));
    if (servesAll(rest, { epoch: "a", seq })) return { asked, lost };
  }
  return assert.fail("no stream served all");
}

test("one who is new begins where the program stands, and one who comes back where it was", () => {
  const [newcomer, returned] = [fresh(), at(3)];
  assert.deepEqual(open([newcomer], 5).asked, [{ history: 0 }]);
  assert.equal(newcomer.cursor?.seq, 5);
  assert.deepEqual(open([returned], 5).asked, [{ since: { epoch: "a", seq: 3 }, history: 0 }]);
});

test("who joins with history gets it beside one who has a position, in either order", () => {
  for (const trackers of [
    [at(5), fresh(3)],
    [fresh(3), at(5)],
  ]) {
    assert.deepEqual(open(trackers, 5).asked, [{ history: 3 }]);
    assert.deepEqual(trackers.map(({ cursor }) => cursor?.seq).sort(), [2, 5]);
  }
});

test("an older position than the history's is gone on from after it", () => {
  const trackers = [at(1), fresh(3)];
  const { asked } = open(trackers, 5);
  assert.deepEqual(asked, [{ history: 3 }, { since: { epoch: "a", seq: 1 }, history: 0 }]);
  assert.deepEqual(
    trackers.map(({ cursor }) => cursor?.seq),
    [1, 2],
  );
});

test("each has the history that it asked for, and the last stream serves all", () => {
  const trackers = [fresh(4), fresh(0), fresh(2), fresh(4)];
  assert.deepEqual(
    open(trackers, 9).asked.map(({ history }) => history),
    [0, 2, 4],
  );
  assert.deepEqual(
    trackers.map(({ cursor }) => cursor?.seq),
    [5, 9, 7, 5],
  );
});

test("a history longer than the program begins at its beginning", () => {
  const tracker = fresh(100);
  open([tracker], 3);
  assert.equal(tracker.cursor?.seq, 0);
});

test("only those lose history whose position is gone", () => {
  const [gone, kept, foreign] = [at(1), at(4), at(9, "b")];
  const { asked, lost } = open([gone, kept, foreign], 5, 3);
  assert.deepEqual(lost, [gone, foreign]);
  assert.deepEqual(
    asked.map(({ since }) => since?.seq),
    [1, 4],
  );
});
