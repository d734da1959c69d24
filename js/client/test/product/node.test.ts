/** The client in Node, against a real instance. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after, describe, test } from "node:test";
import { type WebSocket, WebSocketServer } from "ws";
import {
  ApiError,
  type Change,
  Client,
  HistoryLost,
  ProgramDeleted,
  ProtocolError,
  Unsubscribed,
} from "../../src/index.js";
import { sleep } from "../../src/sleep.js";
import { Relay } from "./relay.js";
import {
  askPoll as ask,
  makeProgram,
  openAdmin,
  publish,
  readNumbers,
  TIMING,
  URL_OF_BROKER,
  until,
} from "./world.js";

const admin = openAdmin();
after(() => admin.close());

const upTo = (count: number) => Array.from({ length: count }, (_, index) => index);

const askPoll = (programId: string, more?: object) => ask(admin, programId, more);

/** The rejection of a promise. */
async function failure(promise: Promise<unknown>): Promise<Error> {
  return promise.then(
    () => assert.fail("it went well"),
    (error) => error,
  );
}

// Those that wait for a token's end and that make much come first; the others run beside them.
describe("in Node", { concurrency: 5, timeout: 100_000 }, () => {
  test("each of several connections is signed in with a new token", async () => {
    const programId = await makeProgram(admin, { access: "private" });
    const others = await Promise.all(upTo(100).map(() => makeProgram(admin)));
    const client = openAdmin();
    const first = others.map((id) => client.subscribe(id));
    await Promise.all(first.map((each) => each.ready));
    const subscription = client.subscribe(programId);
    await subscription.ready;
    await sleep(22_000); // tokens of this instance live for twenty seconds
    await publish(admin, programId, 1);
    assert.deepEqual(await readNumbers(subscription, 0), [0]);
    assert.equal(subscription.reconnects, 0);
    client.close();
  });

  test("a process that was frozen until its token had ended recovers, or says what is lost", async (t) => {
    const { url } = await (await fetch(`${URL_OF_BROKER}/api/v1/connect`)).json();
    const relay = new Relay(new URL(url));
    await relay.open(t);
    const gateway = new URL(url);
    gateway.port = String(relay.port);
    const [kept, replaced] = [
      await makeProgram(admin, { access: "private" }),
      await makeProgram(admin, { access: "private" }),
    ];
    const sleeper = openSleeper({ GATEWAY: gateway.href, KEPT: kept, REPLACED: replaced });
    t.after(() => sleeper.end());
    await until(() => sleeper.told.filter((each) => each === "live").length === 2, "the subscriptions");
    for (const programId of [kept, replaced]) await publish(admin, programId, 1);
    await until(() => sleeper.told.length === 5, "the events");
    await until(() => relay.isAlive, "a sign of life");

    sleeper.freeze();
    const ended = sleep(21_000); // tokens of this instance live for twenty seconds
    relay.cut(); // no close and no reset gets through to it
    await publish(admin, kept, 2, 1);
    const path = { programId: replaced };
    const body = { events: [{ event: "Score#update", metadata: { number: 100 } }] };
    await admin.request("POST", "/programs/{programId}/events/import", { path, body } as any);
    await ended;
    sleeper.told.length = 0;
    sleeper.thaw();
    await until(
      () => sleeper.told.includes("kept 2") && sleeper.told.includes("missed 100"),
      "what happened",
    );
    await publish(admin, kept, 1, 3);
    await until(() => sleeper.told.includes("kept 3"), "what happens");
    const heard = sleeper.told.filter((each) => each !== "live");
    assert.deepEqual(heard.sort(), [
      "kept 1",
      "kept 2",
      "kept 3",
      "missed 100",
      "replaced HistoryLost",
      "token",
    ]);
  });

  for (const transport of ["websocket", "sse"] as const) {
    test(`a private subscription goes on when its token is revoked and another one is given: ${transport}`, async () => {
      const programId = await makeProgram(admin, { access: "private" });
      const made = await Promise.all(
        ["one", "two"].map((name) => admin.request("POST", "/users/me/tokens", { body: { name } })),
      );
      let calls = 0;
      const token = () => (made[Math.min(calls++, 1)] as { token: string }).token;
      const client = new Client(URL_OF_BROKER, { timing: TIMING, transport, token });
      const subscription = client.subscribe(programId);
      const lost = new Promise((resolve) => subscription.addEventListener("lost", resolve));
      await subscription.ready;
      await publish(admin, programId, 1);
      const revoke = (each?: { id: string }) =>
        admin.request("DELETE", "/users/me/tokens/{tokenId}", { path: { tokenId: each?.id ?? "" } });
      await revoke(made[0]);
      await lost;
      await publish(admin, programId, 1, 1);
      const items = subscription[Symbol.asyncIterator]();
      for (const number of [0, 1]) assert.deepEqual((await items.next()).value?.metadata, { number });
      assert.equal(calls, 2);
      await revoke(made[1]);
      const error = await failure(items.next());
      assert.ok(error instanceof Unsubscribed && error.reason === "token_revoked", String(error));
      client.close();
    });
  }

  test("a thousand subscriptions find connections, and each has its events", async () => {
    const client = new Client(URL_OF_BROKER, { timing: TIMING });
    const ids = await Promise.all(
      upTo(40).map(async () => {
        const some: string[] = [];
        for (let count = 0; count < 25; count++) some.push(await makeProgram(admin));
        return some;
      }),
    ).then((each) => each.flat());
    const subscriptions = ids.map((id) => client.subscribe(id));
    await Promise.all(subscriptions.map((each) => each.ready));
    for (const index of [0, 500, 999]) {
      await publish(admin, ids[index] as string, 2);
      assert.deepEqual(await readNumbers(subscriptions[index] as any, 1), [0, 1]);
    }
    client.close();
  });

  test("followers of one program share a connection, each from its own position", async () => {
    const programId = await makeProgram(admin);
    const made = await publish(admin, programId, 10);
    const client = new Client(URL_OF_BROKER, { timing: TIMING });
    const now = client.subscribe(programId);
    await now.ready;
    const at = made[3] as { epoch: string; seq: number };
    const some = client.subscribe(programId, { history: 3 });
    const most = client.subscribe(programId, { since: { epoch: at.epoch, seq: at.seq } });
    await Promise.all([some.ready, most.ready]);
    await publish(admin, programId, 5, 10);
    assert.deepEqual(await readNumbers(now, 14), [10, 11, 12, 13, 14]);
    assert.deepEqual(await readNumbers(some, 14), [7, 8, 9, 10, 11, 12, 13, 14]);
    assert.deepEqual(await readNumbers(most, 14), [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    client.close();
  });

  for (const transport of ["websocket", "sse"] as const) {
    test(`a cursor goes on in another client, and one of a lost history leads to REST: ${transport}`, () =>
      goOn(transport));
  }

  async function goOn(transport: "websocket" | "sse"): Promise<void> {
    const programId = await makeProgram(admin);
    await publish(admin, programId, 5);
    const client = new Client(URL_OF_BROKER, { timing: TIMING, transport });
    const first = client.subscribe(programId, { history: 5 });
    assert.deepEqual(await readNumbers(first, 2), [0, 1, 2]);
    const since = first.cursor;
    assert.deepEqual(await readNumbers(client.subscribe(programId, { since }), 4), [3, 4]);
    const body = {
      events: upTo(3).map((number) => ({ event: "Score#update", metadata: { number: 100 + number } })),
    };
    await admin.request("POST", "/programs/{programId}/events/import", { path: { programId }, body } as any);
    const lost = await failure(client.subscribe(programId, { since }).ready);
    assert.ok(lost instanceof HistoryLost, String(lost));
    await publish(admin, programId, 2, 103);
    const missed = await readNumbers(client.missed(lost), 102);
    const rest = await readNumbers(client.subscribe(programId, { since: lost.cursor }), 104);
    assert.deepEqual(
      [missed, rest],
      [
        [100, 101, 102],
        [103, 104],
      ],
    );
    client.close();
  }

  test("changes are told in their order", async () => {
    const programId = await makeProgram(admin);
    // A connection of its own, with the usual patience: one that is lost after the deletion, as on a busy machine,
    // finds another epoch, and that is lost history and no change.
    const own = openAdmin({ timing: {} });
    const subscription = own.subscribe(programId, { changes: true });
    await subscription.ready;
    const [event] = await publish(admin, programId, 1);
    const path = { programId, eventId: event?.id as string };
    await admin.request("PUT", "/programs/{programId}/events/{eventId}", {
      path,
      body: { event: "Score#fix" },
    } as any);
    await admin.request("DELETE", "/programs/{programId}/events/{eventId}", { path });
    await admin.request("DELETE", "/programs/{programId}/events", { path: { programId } });
    const changes: Change[] = [];
    for await (const change of subscription) if (changes.push(change) === 4) break;
    assert.deepEqual(
      changes.map(({ type }) => type),
      ["event", "eventUpdated", "eventDeleted", "eventsDeleted"],
    );
    own.close();
    await admin.request("DELETE", "/programs/{programId}", { path: { programId } });
  });

  test("a program that is deleted ends its subscriptions", async () => {
    const programId = await makeProgram(admin);
    const subscription = admin.subscribe(programId);
    await subscription.ready;
    await admin.request("DELETE", "/programs/{programId}", { path: { programId } });
    await assert.rejects(readNumbers(subscription, 0), ProgramDeleted);
    const refused = await failure(admin.subscribe(programId).ready);
    assert.ok(refused instanceof ApiError && refused.status === 404, String(refused));
  });

  test("an iterator that is slow has everything, and the buffer stays small", async () => {
    const programId = await makeProgram(admin);
    const subscription = admin.subscribe(programId, { buffer: 10 });
    await subscription.ready;
    await publish(admin, programId, 500);
    await publish(admin, programId, 500, 500);
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.deepEqual(await readNumbers(subscription, 999), upTo(1000));
  });

  test("a signal ends a loop without an error", async () => {
    const programId = await makeProgram(admin);
    const ending = new AbortController();
    const subscription = admin.subscribe(programId, { signal: ending.signal });
    await subscription.ready;
    setTimeout(() => ending.abort(), 50);
    assert.deepEqual(await readNumbers(subscription, 0), []);
  });

  test("an answer counts once however often it is sent, and so does an impression", async () => {
    const programId = await makeProgram(admin);
    const poll = await askPoll(programId);
    // Cut off again and again while it sends.
    const open = new Set<WebSocket>();
    const { WebSocket: Real } = await import("ws");
    class Frail extends Real {
      constructor(url: string) {
        super(url);
        open.add(this);
      }
      override send(text: any) {
        super.send(text);
        if (/respond|impression/.test(text) && open.size < 4) setTimeout(() => this.terminate(), 1);
      }
    }
    const client = new Client(URL_OF_BROKER, { timing: TIMING, WebSocket: Frail });
    await client.impression(programId, "winner", poll);
    await client.respond(programId, "winner", poll, 1);
    const again = await client.respond(programId, "winner", poll, 0);
    assert.deepEqual(again, { accepted: 0, duplicates: 1 });
    const path = { accountId: "demo", projectId: "undefined", programId };
    const report = await admin.request("GET", "/responses/{accountId}/{projectId}/{programId}/report", {
      path,
    });
    const [entry] = report.responses;
    assert.deepEqual([entry?.total, entry?.impressions.total, entry?.options[1]?.total], [1, 1, 1]);
    client.close();
  });

  test("a visitor is got where a poll requires one, and stays the same", async () => {
    const programId = await makeProgram(admin);
    const [first, second, free, signed] = await Promise.all([
      askPoll(programId, { visitors: "issued" }),
      askPoll(programId, { visitors: "issued" }),
      askPoll(programId),
      askPoll(programId, { visitors: "signed" }),
    ]);
    const asked: string[] = [];
    const counting: typeof fetch = (input, init) => {
      if (String(input).endsWith("/responses/visitor")) asked.push(String(init?.body));
      return fetch(input, init);
    };
    const client = new Client(URL_OF_BROKER, { timing: TIMING, fetch: counting });
    const accepted = { accepted: 1, duplicates: 0 };
    const duplicate = { accepted: 0, duplicates: 1 };
    assert.deepEqual(await client.impression(programId, "winner", first), accepted);
    assert.deepEqual(await client.respond(programId, "winner", first, 1), accepted);
    assert.deepEqual(await client.respond(programId, "winner", first, 0), duplicate);
    assert.deepEqual(await client.respond(programId, "winner", second, 1, { visitors: "issued" }), accepted);
    assert.deepEqual(await client.respond(programId, "winner", free, 1), accepted);
    assert.deepEqual(asked, ["{}"]);
    const own = await failure(client.respond(programId, "winner", first, 1, { visitorId: "me" }));
    assert.ok(own instanceof ApiError && own.status === 400, String(own));
    const unsigned = await failure(client.respond(programId, "winner", signed, 1));
    assert.ok(unsigned instanceof ApiError && unsigned.status === 400, String(unsigned));
    assert.ok(asked.length <= 2, String(asked));
    client.close();
  });

  test("live results come as they change", async () => {
    const programId = await makeProgram(admin);
    const poll = await askPoll(programId);
    const client = new Client(URL_OF_BROKER, { timing: TIMING, visitorId: "me" });
    const results = client.results(programId);
    const first = results.next();
    const answers: Promise<unknown>[] = [];
    const answering = setInterval(
      () => answers.push(client.respond(programId, "winner", poll, 1, { visitorId: String(Math.random()) })),
      300,
    );
    const { value } = await first;
    clearInterval(answering);
    // The results of the first may come before the last is acknowledged; closing the client would fail that one.
    await Promise.all(answers);
    assert.equal(value?.measureName, "winner");
    assert.ok((value?.results["1"] ?? 0) >= 1);
    client.close();
  });

  test("stored values are shared through their channel, and every operation can be called", async () => {
    const projectId = `project-${Date.now()}`;
    await admin.call("createProject", { id: projectId, name: projectId });
    const flow = admin.follow(`storage:${projectId}`);
    await flow.ready;
    const store = () => admin.call("storeValue", { projectId, id: "line-up", metadata: { home: ["Kim"] } });
    await store();
    for await (const { method, params } of flow) {
      if (method === "resumed") {
        await store(); // on a busy machine a link may be lost, and what it told with it
        continue;
      }
      assert.deepEqual([method, params.value.id], ["stored", "line-up"]);
      break;
    }
    const path = { projectId, itemId: "line-up" };
    assert.deepEqual((await admin.request("GET", "/storage/{projectId}/{itemId}", { path })).metadata, {
      home: ["Kim"],
    });
    const wrong = await failure(admin.call("createProject", { id: "not an id", name: "" }));
    assert.ok(wrong instanceof ApiError && wrong.fields.length > 0, String(wrong));
  });

  test("a server of another version is followed as far as it is understood", async () => {
    const { server, port, sockets } = await openOther();
    const fetch = async () =>
      new Response(JSON.stringify({ url: `ws://127.0.0.1:${port}/`, region: "north" }), {
        headers: { "Content-Type": "application/json" },
      });
    const client = new Client("http://demo.example.org", {
      fetch,
      timing: { ...TIMING, firstDeadlineMs: 3_000 },
    });
    const subscription = client.subscribe("final");
    assert.deepEqual(await subscription.ready, { epoch: "e", seq: 4 });
    const tell = (method: string, params: object) =>
      [...sockets].map((socket) => socket.send(JSON.stringify({ jsonrpc: "2.0", method, params })));
    tell("weather", { programId: "final", wind: 3 });
    tell("event", {
      programId: "final",
      epoch: "e",
      seq: 5,
      id: "x",
      metadata: { number: 5 },
      colour: "red",
    });
    assert.deepEqual(await readNumbers(subscription, 5), [5]);
    const odd = await failure(client.subscribe("odd").ready);
    assert.ok(odd instanceof ProtocolError, String(odd));
    client.close();
    server.close();
  });

  test("what is no broker is said to be none", async () => {
    const fetch = async () => new Response("<h1>Bad gateway</h1>", { status: 502 });
    const client = new Client("http://demo.example.org", {
      fetch,
      timing: { ...TIMING, firstDeadlineMs: 500 },
    });
    const failed = await failure(client.subscribe("final").ready);
    assert.match(failed.message, /something in front of .* answered 502/);
    client.close();
  });
});

/** A process of its own that follows two programs with tokens that it fetches, and prints what it is told. */
const SLEEPER = `
  const { Client } = await import(process.env.ONAIR_ROOT + "/dist/index.js");
  const { ONAIR_URL, ONAIR_PASSWORD: password, GATEWAY: url, KEPT, REPLACED } = process.env;
  const client = new Client(ONAIR_URL, {
    token: async () => {
      console.log("token");
      const body = new URLSearchParams({ grant_type: "password", client_id: "Test", username: "admin", password });
      return (await (await fetch(ONAIR_URL + "/api/v1/token", { method: "POST", body })).json()).access_token;
    },
    fetch: async (input, init) => {
      const reply = await fetch(input, init);
      if (!new URL(input).pathname.endsWith("/connect") || !reply.ok) return reply;
      return new Response(JSON.stringify({ url, servers: [] }), reply);
    },
  });
  for (const [name, programId] of [["kept", KEPT], ["replaced", REPLACED]]) {
    const subscription = client.subscribe(programId);
    subscription.addEventListener("live", () => console.log("live"));
    subscription.addEventListener("event", ({ detail }) => console.log(name, detail.metadata.number));
    subscription.addEventListener("end", async ({ detail }) => {
      console.log(name, detail.name);
      if (detail.name !== "HistoryLost") throw detail;
      for await (const event of client.missed(detail)) console.log("missed", event.metadata.number);
    });
  }
`;

function openSleeper(environment: Record<string, string>) {
  const command = ["--input-type=module", "--eval", SLEEPER];
  const child = spawn(process.execPath, command, {
    env: { ...process.env, ...environment },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const told: string[] = [];
  createInterface(child.stdout).on("line", (line) => told.push(line));
  return {
    told,
    freeze: () => child.kill("SIGSTOP"),
    thaw: () => child.kill("SIGCONT"),
    end: () => child.kill("SIGKILL"),
  };
}

/** A server that speaks JSON-RPC, knows nothing of time, and has fields and notifications of its own. */
async function openOther(): Promise<{ server: WebSocketServer; port: number; sockets: Set<WebSocket> }> {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  const sockets = new Set<WebSocket>();
  server.on("connection", (socket) => {
    sockets.add(socket);
    socket.on("message", (text) => {
      const { id, method, params } = JSON.parse(String(text));
      const result =
        params.programId === "odd"
          ? { is: "odd" }
          : { programId: params.programId, epoch: "e", seq: 4, mood: "good" };
      const error = { code: -32601, message: "Method not found" };
      socket.send(
        JSON.stringify({ jsonrpc: "2.0", id, ...(method === "subscribe" ? { result } : { error }) }),
      );
    });
  });
  await until(() => server.address(), "the server");
  return { server, port: (server.address() as { port: number }).port, sockets };
}
