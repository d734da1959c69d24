import assert from "node:assert/strict";
import { test } from "node:test";
import { ServerClock } from "../../src/clock.js";
import { lifetimeMs, Tokens } from "../../src/token.js";

const jwt = (claims: object) => `e30.${btoa(JSON.stringify(claims)).replace(/\+/g, "-").replace(/=/g, "")}.x`;

test("without the server's time a token is as old as its own times say", () => {
  assert.equal(lifetimeMs(jwt({ iat: 1000, exp: 1600 }), new ServerClock()), 600_000);
});

test("with the server's time a token has what is left of it", () => {
  const clock = new ServerClock();
  clock.sample(performance.now(), performance.now(), 1_500_000);
  const leftMs = lifetimeMs(jwt({ iat: 1000, exp: 1600 }), clock);
  assert.ok(leftMs > 99_000 && leftMs <= 100_000, String(leftMs));
  assert.equal(lifetimeMs(jwt({ iat: 1000, exp: 1400 }), clock), 0);
});

test("what is no such token has no end", () => {
  for (const text of ["", "secret", "a.b.c", "a.e30.c"]) {
    assert.equal(lifetimeMs(text, new ServerClock()), Number.POSITIVE_INFINITY);
  }
});

test("a function is asked once at a time, and again when its token was refused", async () => {
  let calls = 0;
  const tokens = new Tokens(async () => `token-${++calls}`, new ServerClock());
  assert.deepEqual(await Promise.all([tokens.get(), tokens.get()]), ["token-1", "token-1"]);
  assert.equal(await tokens.get(), "token-1");
  assert.equal(tokens.drop("token-1"), true);
  assert.equal(await tokens.get(), "token-2");
  tokens.drop("token-1");
  assert.equal(await tokens.get(), "token-2");
});

test("a function is asked again before its token ends", async () => {
  let calls = 0;
  const tokens = new Tokens(() => jwt({ iat: 0, exp: ++calls === 1 ? 0 : 600 }), new ServerClock());
  await tokens.get();
  await tokens.get();
  await tokens.get();
  assert.equal(calls, 2);
  assert.ok(tokens.renewInMs() > 500_000);
});

test("a token by value is used whatever becomes of it", async () => {
  const tokens = new Tokens("mine", new ServerClock());
  assert.equal(tokens.drop("mine"), false);
  assert.equal(await tokens.get(), "mine");
});
