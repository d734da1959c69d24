/** The built modules, which take what they share from each other by name; the gateway is scripted. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { inspect } from "node:util";
import type * as Index from "../../src/index.js";

const load = (name: string) => import(new URL(`../../../dist/${name}.js`, import.meta.url).href);

test("an error is of the same class in every module", async () => {
  const [index, core] = await Promise.all([load("index"), load("core")]);
  for (const name of Object.keys(index)) if (name !== "Client") assert.equal(index[name], core[name], name);
  const { openShared } = await load("shared");
  assert.equal(typeof openShared, "function");
});

test("an error that nobody caught is printed under its name", async () => {
  const { ApiError, ConnectionLost, HistoryLost } = (await load("index")) as typeof Index;
  const cursor = { epoch: "e", seq: 1 };
  const printed = [
    new ApiError(404, "not_found", "no"),
    new ConnectionLost("gone"),
    new HistoryLost("p", cursor, cursor),
  ].map((error) => inspect(error).split(/[:\n]/)[0]);
  assert.deepEqual(printed, ["ApiError", "ConnectionLost", "HistoryLost"]);
  assert.equal(String(new ApiError(404, "not_found", "no")), "ApiError: no");
});

test(
  "a gateway of an older version, which cannot be asked to show life, is followed by a stream",
  { timeout: 30_000 },
  async (t) => {
    const { Client } = (await load("index")) as typeof Index;
    const asked: (string | null)[] = [];
    const server = createServer((request, reply) => {
      const url = new URL(request.url as string, "http://x");
      if (url.pathname.endsWith("/connect")) {
        reply.setHeader("Content-Type", "application/json");
        const { port } = server.address() as AddressInfo;
        return reply.end(JSON.stringify({ url: `ws://127.0.0.1:${port}/api/v1/ws`, streamUrl: "there" }));
      }
      asked.push(url.searchParams.get("alive"));
      if (asked.at(-1)) {
        const errors = [{ field: "alive", message: "is unknown" }];
        const error = {
          error: "invalid_request",
          error_description: "alive: is unknown",
          status: 400,
          errors,
        };
        return reply.writeHead(400, { "Content-Type": "application/json" }).end(JSON.stringify(error));
      }
      reply.writeHead(200, { "Content-Type": "text/event-stream" });
      const events = [
        ["subscribed", { programId: "p", epoch: "e", seq: 0, recovered: true }],
        ["event", { programId: "p", epoch: "e", seq: 1, id: "i", event: "Score#update", metadata: {} }],
      ] as const;
      for (const [method, params] of events) {
        reply.write(`event: ${method}\ndata: ${JSON.stringify(params)}\n\n`);
      }
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    const client = new Client(`http://127.0.0.1:${port}`, {
      transport: "sse",
      timing: { baseMs: 20, capMs: 50 },
    });
    t.after(() => {
      client.close();
      server.close();
      server.closeAllConnections();
    });
    const events = client.subscribe("p")[Symbol.asyncIterator]();
    assert.equal((await events.next()).value?.seq, 1);
    assert.deepEqual(asked, ["true", null]);
  },
);
