import assert from "node:assert/strict";
import { test } from "node:test";
import { Backoff } from "../../src/backoff.js";

test("delays are drawn below a ceiling that doubles up to the cap", () => {
  const backoff = new Backoff(100, 1000, () => 1);
  const delays = Array.from({ length: 6 }, () => backoff.nextMs());
  assert.deepEqual(delays, [100, 200, 400, 800, 1000, 1000]);
});

test("what the server asks for is a least, with jitter on top", () => {
  assert.equal(new Backoff(100, 1000, () => 0.5).nextMs(2000), 2050);
});

test("a thousand failures later the ceiling is still the cap", () => {
  const backoff = new Backoff(100, 1000, () => 1);
  backoff.attempt = 1000;
  assert.equal(backoff.nextMs(), 1000);
});
