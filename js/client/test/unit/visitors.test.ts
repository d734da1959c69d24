import assert from "node:assert/strict";
import { test } from "node:test";
import { ServerClock } from "../../src/clock.js";
import { ApiError, Client } from "../../src/index.js";
import type { Store } from "../../src/storage.js";
import { Tokens } from "../../src/token.js";
import { Visitors } from "../../src/visitors.js";

const DAY_MS = 86_400_000;

/** A broker that hands out numbered visitors for thirty days, and notes what it was asked. */
function openBroker() {
  const asked: unknown[] = [];
  let failure: Error | undefined;
  return {
    asked,
    fail: (error: Error | undefined) => {
      failure = error;
    },
    send: async (_method: string, path: string, { body }: { body?: unknown } = {}) => {
      assert.equal(path, "/responses/visitor");
      asked.push(body);
      if (failure) throw failure;
      const data = { visitorId: `visitor ${asked.length}`, expires: 30 * DAY_MS };
      return { data, headers: new Headers() };
    },
  };
}

function openStore(): Store {
  const texts = new Map<string, string>();
  return {
    getItem: (key) => texts.get(key) ?? null,
    setItem: (key, text) => texts.set(key, text),
  };
}

const denied = () => {
  throw new DOMException("denied", "SecurityError");
};

test("one visitor is asked for by all at a time, and stored for the next page", async () => {
  const [broker, store] = [openBroker(), openStore()];
  const visitors = new Visitors(
    broker,
    () => 0,
    () => store,
    "key",
    undefined,
  );
  const both = await Promise.all([visitors.get(), visitors.get()]);
  assert.deepEqual(
    both.map((offered) => offered?.visitorId),
    ["visitor 1", "visitor 1"],
  );
  const next = new Visitors(
    broker,
    () => 0,
    () => store,
    "key",
    undefined,
  );
  assert.deepEqual(await next.get(), { visitorId: "visitor 1", isNew: false });
  assert.deepEqual(broker.asked, [{}]);
});

test("without storage a visitor lasts as long as the page", async () => {
  const full = { getItem: () => null, setItem: denied };
  for (const find of [denied, () => undefined, () => full]) {
    const broker = openBroker();
    const visitors = new Visitors(broker, () => 0, find, "key", undefined);
    await visitors.get();
    assert.deepEqual(await visitors.get(), { visitorId: "visitor 1", isNew: false });
  }
});

test("what is no visitor in storage is replaced", async () => {
  for (const text of ["", "null", "{", "[]", '{"visitorId":1,"expires":1}', '{"visitorId":"x"}']) {
    const [broker, store] = [openBroker(), openStore()];
    store.setItem("key", text);
    const visitors = new Visitors(
      broker,
      () => 0,
      () => store,
      "key",
      undefined,
    );
    assert.equal((await visitors.get())?.visitorId, "visitor 1");
    assert.deepEqual(broker.asked, [{}]);
  }
});

test("a visitor is renewed in time, and used on where that fails", async () => {
  const broker = openBroker();
  let nowMs = 0;
  const visitors = new Visitors(broker, () => nowMs, denied, "key", undefined);
  await visitors.get();
  nowMs = 16 * DAY_MS;
  broker.fail(new ApiError(429, "slow_down", ""));
  assert.deepEqual(await visitors.get(), { visitorId: "visitor 1", isNew: false });
  nowMs = 31 * DAY_MS;
  await assert.rejects(visitors.get(), ApiError);
  broker.fail(undefined);
  assert.deepEqual(await visitors.get(), { visitorId: "visitor 4", isNew: true });
  assert.deepEqual(broker.asked.slice(1), Array(3).fill({ visitorId: "visitor 1" }));
});

test("a visitor that was refused is replaced", async () => {
  const broker = openBroker();
  const visitors = new Visitors(broker, () => 0, denied, "key", undefined);
  await visitors.get();
  assert.deepEqual(await visitors.get("visitor 1"), { visitorId: "visitor 2", isNew: true });
});

test("a signed visitor by value has no other, one by a function has", async () => {
  const broker = openBroker();
  const open = (signed: Tokens) => new Visitors(broker, () => 0, denied, "key", signed);
  const one = open(new Tokens("mine", new ServerClock(), String));
  assert.deepEqual(await one.get("name"), { visitorId: "mine", isNew: true });
  assert.equal(await one.get("mine"), undefined);
  let calls = 0;
  const more = open(new Tokens(() => `signed ${++calls}`, new ServerClock(), String));
  assert.deepEqual(await more.get(), { visitorId: "signed 1", isNew: false });
  assert.deepEqual(await more.get("signed 1"), { visitorId: "signed 2", isNew: true });
  assert.deepEqual(broker.asked, []);
});

test("a vote that is refused for its visitor is sent again with one that the customer has signed", async () => {
  const sent: string[] = [];
  const carrier = {
    state: "open",
    call: async (_name: string, { visitorId }: { visitorId: string }) => {
      sent.push(visitorId);
      if (visitorId === "signed 2") return { accepted: 1, duplicates: 0 };
      throw new ApiError(400, "invalid_request", "", [{ field: "visitorId", message: "must be signed" }]);
    },
  };
  let calls = 0;
  const options = { visitorId: "me", carrier: () => carrier as never, timing: { baseMs: 1, capMs: 1 } };
  const client = new Client("http://demo.example.org", { ...options, visitor: () => `signed ${++calls}` });
  await client.respond("final", "winner", "poll", 1, { visitors: "signed" });
  assert.deepEqual(sent.splice(0), ["signed 1", "signed 2"]);
  await client.respond("final", "winner", "other", 1);
  assert.deepEqual(sent.splice(0), ["me", "signed 2"]);
  await client.respond("final", "winner", "other", 1);
  assert.deepEqual(sent.splice(0), ["signed 2"]);
  const wrong = new Client("http://demo.example.org", { ...options, visitor: "no" });
  await assert.rejects(wrong.respond("final", "winner", "poll", 1), ApiError);
  assert.deepEqual(sent.splice(0), ["me", "no"]);
});
