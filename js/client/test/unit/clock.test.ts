import assert from "node:assert/strict";
import { test } from "node:test";
import { ServerClock } from "../../src/clock.js";

test("the quickest exchange counts, until the clocks are in doubt", () => {
  const clock = new ServerClock();
  const now = performance.now();
  clock.sample(now - 10, now, 5_000_000);
  clock.sample(now - 1000, now, 9_000_000);
  assert.ok(Math.abs(clock.now() - 5_000_005) < 1000);
  clock.doubt();
  clock.sample(now - 1000, now, 9_000_000);
  assert.ok(Math.abs(clock.now() - 9_000_500) < 1000);
});

test("an answer without a time changes nothing", () => {
  const clock = new ServerClock();
  clock.sample(0, 1, Number.NaN);
  assert.equal(clock.isKnown, false);
});
