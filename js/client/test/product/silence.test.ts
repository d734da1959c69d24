/** What a client does about a link that carries nothing more and ends no connection, before a real gateway. */
import assert from "node:assert/strict";
import { describe, test, type TestContext } from "node:test";
import { Client, type ClientOptions, ProgramDeleted } from "../../src/index.js";
import { Relay } from "./relay.js";
import { logIn, makeProgram, openAdmin, publish, TIMING, URL_OF_BROKER, until } from "./world.js";

// Less than the 30 and 40 s after which a client looks without signs of life.
const PATIENCE = { timeout: 25_000 };

/** A client that gets to the gateway by relays only, and counts what it asks for. */
async function open(t: TestContext, relays: number, options: ClientOptions = {}) {
  const reply = await fetch(`${URL_OF_BROKER}/api/v1/connect`);
  const gateway = new URL((await reply.json()).url);
  const by = Array.from({ length: relays }, () => new Relay(gateway));
  for (const each of by) await each.open(t);
  const urls = by.map(({ port }) => gateway.href.replace(/:\d+/, `:${port}`));
  const relayed: typeof fetch = async (input, init) => {
    const got = await fetch(input, init);
    if (new URL(String(input)).pathname !== "/api/v1/connect") return got;
    const told = { url: urls[0], servers: urls.map((url) => ({ url })), retryAfterMs: 0, streamUrl: "there" };
    return new Response(JSON.stringify(told), got);
  };
  // No call of its own finds out that the connection is dead.
  const timing = { ...TIMING, idleMs: 600_000, answerMs: 600_000, upgradeMs: 600_000 };
  const client = new Client(URL_OF_BROKER, { timing, fetch: relayed, ...options });
  const admin = openAdmin();
  t.after(() => {
    client.close();
    admin.close();
  });
  return { by: by as [Relay, ...Relay[]], client, admin };
}

/** Every event of a program once and in order, although the way to the gateway is cut between them. */
async function followAcross(t: TestContext, options: ClientOptions, relays: number): Promise<void> {
  const { by, client, admin } = await open(t, relays, options);
  const programId = await makeProgram(admin);
  const subscription = client.subscribe(programId);
  const events = subscription[Symbol.asyncIterator]();
  const next = async () => (await events.next()).value?.metadata.number;
  await subscription.ready;
  await publish(admin, programId, 2);
  assert.deepEqual([await next(), await next()], [0, 1]);
  const [first] = by;
  await until(() => first.isAlive, "a sign of life");
  if (relays > 1) first.cutForGood();
  else first.cut();
  await publish(admin, programId, 3, 2);
  assert.deepEqual([await next(), await next(), await next()], [2, 3, 4]);
}

describe("over a link that is cut", { concurrency: 5, ...PATIENCE }, () => {
  for (const transport of ["websocket", "sse"] as const) {
    test(`a program that was deleted meanwhile ends its subscription: ${transport}`, async (t) => {
      const { by, client, admin } = await open(t, 1, { transport, token: () => logIn() });
      const programId = await makeProgram(admin);
      const subscription = client.subscribe(programId);
      await subscription.ready;
      await until(() => by[0].isAlive, "a sign of life");
      by[0].cut(); // it subscribes anew, and whoever has a token is told that there is no such program
      await admin.request("DELETE", "/programs/{programId}", { path: { programId } });
      await assert.rejects(subscription[Symbol.asyncIterator]().next(), ProgramDeleted);
    });
  }

  test("a WebSocket over a cut link is left, and nothing is lost or doubled", (t) =>
    followAcross(t, { transport: "websocket" }, 1));

  test("a WebSocket to a gateway that has vanished is left for another gateway", (t) =>
    followAcross(t, { transport: "websocket" }, 2));

  test("a stream over a cut link is left, and nothing is lost or doubled", (t) =>
    followAcross(t, { transport: "sse" }, 1));

  test("a stream of a gateway that has vanished is left for another gateway", (t) =>
    followAcross(
      t,
      { transport: "sse", timing: { ...TIMING, upgradeMs: 600_000, openTimeoutMs: 3_000 } },
      2,
    ));

  test("a channel over a cut link goes on over another one, and says so", async (t) => {
    const { by, client, admin } = await open(t, 1);
    const programId = await makeProgram(admin);
    const metadata = { title: "Who wins?", measureName: "winner", options: ["Home", "Away"] };
    const path = { programId };
    const body = { event: "Poll#show", metadata };
    const poll = (await admin.request("POST", "/programs/{programId}/events", { path, body })) as {
      id: string;
    };
    const channel = client.follow(`responses:${programId}`);
    await channel.ready;
    await until(() => by[0].isAlive, "a sign of life");
    by[0].cut();
    const heard: string[] = [];
    for await (const { method } of channel) {
      heard.push(method);
      if (method === "results") break;
      await admin.respond(programId, "winner", poll.id, 1);
    }
    assert.deepEqual(heard, ["resumed", "results"]);
  });
});
