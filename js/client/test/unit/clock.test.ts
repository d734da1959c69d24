import assert from "node:assert/strict";
import { test } from "node:test";
import { ServerClock } from "../../src/clock.js";

test("the quickest exchange counts, until the clocks are in doubt", () => {
  const clock = new ServerClock();
  const now = Math.ceil(performance.now());
  assert.equal(clock.errorMs, 0);
  clock.sample(now - 10, now, 5_000_000);
  clock.sample(now - 1000, now, 9_000_000);
  assert.ok(Math.abs(clock.now() - 5_000_005) < 1000);
  assert.equal(clock.errorMs, 5);
  clock.doubt();
  assert.equal(clock.errorMs, 5);
  clock.sample(now - 1000, now, 9_000_000);
  assert.equal(clock.errorMs, 500);
  assert.ok(Math.abs(clock.now() - 9_000_500) < 1000);
});

test("an answer without a time changes nothing", () => {
  const clock = new ServerClock();
  clock.sample(0, 1, Number.NaN);
  assert.equal(clock.isKnown, false);
});
