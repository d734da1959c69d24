/** That the client waits as long as the broker asks it to; the broker is scripted, and long waits end at once. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { WebSocketServer } from "ws";
import { Client } from "../../src/index.js";

const LONG_MS = 60_000; // longer than any wait of the client's own

/** Notes the waits of a minute and more, and ends them at once. */
function shortenWaits(t: TestContext): number[] {
  const waits: number[] = [];
  const real = globalThis.setTimeout;
  t.mock.method(globalThis, "setTimeout", (done: () => void, ms = 0) => {
    if (ms < LONG_MS) return real(done, ms);
    waits.push(ms);
    return real(done, 0);
  });
  return waits;
}

/** A broker whose requests are answered in turn, the last answer again and again, and whose gateway takes all. */
async function open(t: TestContext, ...answers: ((reply: ServerResponse, gateway: string) => void)[]) {
  let asked = 0;
  const keys: unknown[] = [];
  const server = createServer((request, reply) => {
    keys.push(request.headers["idempotency-key"]);
    const { port } = server.address() as AddressInfo;
    answers[Math.min(asked++, answers.length - 1)]?.(reply, `ws://127.0.0.1:${port}/api/v1/ws`);
  });
  const gateway = new WebSocketServer({ server });
  gateway.on("connection", (socket) =>
    socket.on("message", (text) => {
      const { id } = JSON.parse(String(text));
      const result = { programId: "p", epoch: "e", seq: 0, recovered: true, events: [] };
      socket.send(JSON.stringify({ jsonrpc: "2.0", id, result }));
    }),
  );
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const client = new Client(`http://127.0.0.1:${port}`, { timing: { baseMs: 10, capMs: 10 } });
  t.after(() => {
    client.close();
    for (const each of gateway.clients) each.terminate();
    server.close();
    server.closeAllConnections();
  });
  return { client, asked: () => asked, keys };
}

const name = (retryAfterMs: number) => (reply: ServerResponse, url: string) =>
  reply.end(JSON.stringify({ url, servers: [], retryAfterMs }));

const refuse =
  (status: number, seconds: number, error = "unavailable") =>
  (reply: ServerResponse) => {
    reply.writeHead(status, { "Retry-After": seconds, "Content-Type": "application/json" });
    reply.end(JSON.stringify({ error, error_description: "later", status }));
  };

test("what /connect asks to wait is waited before the connection is opened", async (t) => {
  const waits = shortenWaits(t);
  const { client } = await open(t, name(61_234));
  await client.subscribe("p").ready;
  assert.deepEqual(waits, [61_234]);
});

test("a busy API is asked again after its Retry-After, with jitter on top", async (t) => {
  const waits = shortenWaits(t);
  const { client, asked } = await open(t, refuse(503, 70), name(0));
  await client.subscribe("p").ready;
  assert.equal(waits.length, 1);
  assert.ok(waits[0]! >= 70_000 && waits[0]! <= 70_010, String(waits));
  assert.equal(asked(), 2);
});

test("a refused request is sent again after its Retry-After, with jitter on top", async (t) => {
  const waits = shortenWaits(t);
  const { client, asked } = await open(t, refuse(429, 65), (reply) => reply.end('{"version":"1"}'));
  assert.deepEqual(await client.request("GET", "/version"), { version: "1" });
  assert.equal(waits.length, 1);
  assert.ok(waits[0]! >= 65_000 && waits[0]! <= 65_100, String(waits));
  assert.equal(asked(), 2);
});

test("a change that maintenance refuses is sent again after its Retry-After, under its key", async (t) => {
  const waits = shortenWaits(t);
  const { client, asked, keys } = await open(t, refuse(503, 65, "maintenance"), (reply) => reply.end("{}"));
  await client.request("POST", "/projects", { body: { id: "p", name: "P" } });
  assert.equal(waits.length, 1);
  assert.ok(waits[0]! >= 65_000 && waits[0]! <= 65_100, String(waits));
  assert.equal(asked(), 2);
  assert.ok(keys[0]);
  assert.equal(keys[0], keys[1]);
});
