/** What a client does when its token is refused or cannot be had; the broker is scripted. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { type WebSocket, WebSocketServer } from "ws";
import { ApiError, Client, type ClientOptions, Unsubscribed } from "../../src/index.js";

const REVOKED = { reason: "token_revoked" };

/** A broker whose programs are private, but for `public`, and that knows which tokens are good. */
class Broker {
  readonly good = new Set<string>();
  /** Every token that came with a handshake, a stream or a subscription. */
  readonly seen: string[] = [];
  readonly sockets: WebSocket[] = [];
  /** Where each subscription began: its program, and the `seq` of its `since`. */
  readonly began: [string, number | undefined][] = [];
  readonly streams: ServerResponse[] = [];
  #seq = 0;
  readonly #http = createServer((request, reply) => this.#answer(request, reply));
  readonly #ws = new WebSocketServer({ noServer: true });

  async open(t: TestContext, options: ClientOptions): Promise<Client> {
    this.#http.on("upgrade", (request, socket, head) => {
      this.#ws.handleUpgrade(request, socket, head, (made) => this.#serve(made, request));
    });
    this.#http.listen(0, "127.0.0.1");
    await once(this.#http, "listening");
    const timing = { baseMs: 20, capMs: 50 };
    const client = new Client(`http://127.0.0.1:${this.#port}`, { timing, ...options });
    t.after(() => {
      client.close();
      for (const each of this.sockets) each.terminate();
      this.#http.close();
      this.#http.closeAllConnections();
    });
    return client;
  }

  get #port(): number {
    return (this.#http.address() as AddressInfo).port;
  }

  /** Ends a token, and with it what is followed by it. */
  revoke(token: string, ...programIds: string[]): void {
    this.good.delete(token);
    for (const programId of programIds) this.#tell("unsubscribed", { programId, ...REVOKED });
  }

  publish(programId: string): void {
    this.#tell("event", {
      programId,
      epoch: "e",
      seq: ++this.#seq,
      id: `i${this.#seq}`,
      event: "Score#update",
    });
  }

  #tell(method: string, params: object): void {
    this.sockets.at(-1)?.send(JSON.stringify({ jsonrpc: "2.0", method, params }));
    this.streams.at(-1)?.write(`event: ${method}\ndata: ${JSON.stringify(params)}\n\n`);
  }

  /** Whether it comes with a good token; one without is anonymous. */
  #admit(token: string | null | undefined): boolean | undefined {
    if (!token) return undefined;
    this.seen.push(token);
    return this.good.has(token);
  }

  #answer(request: IncomingMessage, reply: ServerResponse): void {
    const token = request.headers.authorization?.slice("Bearer ".length);
    const isStream = request.url?.includes("/events/stream");
    if (token && !(isStream ? this.#admit(token) : this.good.has(token))) {
      const body = { error: "invalid_token", error_description: "revoked", status: 401 };
      reply.writeHead(401, { "Content-Type": "application/json" }).end(JSON.stringify(body));
    } else if (isStream) {
      reply.writeHead(200, { "Content-Type": "text/event-stream" });
      this.streams.push(reply);
      this.#tell("subscribed", { programId: "p", epoch: "e", seq: this.#seq, recovered: true });
    } else {
      const url = `ws://127.0.0.1:${this.#port}/api/v1/ws`;
      reply.setHeader("Content-Type", "application/json");
      reply.end(JSON.stringify({ url, servers: [], retryAfterMs: 0, streamUrl: "there" }));
    }
  }

  #serve(made: WebSocket, request: IncomingMessage): void {
    this.sockets.push(made);
    let token = new URL(request.url as string, "http://x").searchParams.get("access_token") ?? undefined;
    this.#admit(token);
    made.on("message", (text) => {
      const { id, method, params } = JSON.parse(String(text));
      const answer = (more: object) => made.send(JSON.stringify({ jsonrpc: "2.0", id, ...more }));
      if (method !== "subscribe") return answer({ result: {} });
      const { programId, since, access_token } = params;
      if (access_token) this.#admit((token = access_token));
      if (programId !== "public" && !this.good.has(token as string)) {
        const data = { error: "invalid_token", error_description: "revoked", status: 401 };
        return answer({ error: { code: 401, message: "invalid_token", data } });
      }
      this.began.push([programId, since?.seq]);
      answer({ result: { programId, epoch: "e", seq: this.#seq, recovered: true, events: [] } });
    });
  }
}

/** A token function that gives these in turn, the last one again and again, and throws what is an error. */
function giver(...given: (string | Error)[]) {
  const source = async () => {
    const next = given[Math.min(source.calls++, given.length - 1)];
    if (next instanceof Error) throw next;
    return next;
  };
  source.calls = 0;
  return source;
}

test("a revoked token is replaced, and private subscriptions go on where they were", async (t) => {
  const broker = new Broker();
  for (const each of ["one", "two"]) broker.good.add(each);
  const token = giver("one", "two");
  const client = await broker.open(t, { token });
  const [first, second, open] = ["p", "q", "public"].map((id) => client.subscribe(id));
  const states: string[] = [];
  for (const each of ["lost", "live"] as const) first?.addEventListener(each, () => states.push(each));
  const items = first?.[Symbol.asyncIterator]();
  await Promise.all([first?.ready, second?.ready, open?.ready]);
  broker.publish("p");
  assert.equal((await items?.next())?.value?.seq, 1);
  broker.began.length = states.length = 0;
  broker.revoke("one", "p", "q");
  await once(first as EventTarget, "live");
  broker.publish("p");
  assert.equal((await items?.next())?.value?.seq, 2);
  assert.deepEqual(states, ["lost", "live"]);
  assert.deepEqual(broker.began.sort(), [
    ["p", 1],
    ["q", 0],
  ]);
  assert.equal(open?.reconnects, 0);
  assert.deepEqual([token.calls, broker.sockets.length], [2, 1]);
});

for (const [what, ...given] of [
  ["the same token again", "one"],
  ["another one that is refused too", "one", "bad"],
] as const) {
  test(`a subscription ends when its function gives ${what}`, async (t) => {
    const broker = new Broker();
    broker.good.add("one");
    const token = giver(...given);
    const client = await broker.open(t, { token });
    const subscription = client.subscribe("p");
    await subscription.ready;
    broker.revoke("one", "p");
    const [{ detail }] = (await once(subscription, "end")) as [CustomEvent];
    assert.ok(detail instanceof Unsubscribed);
    assert.equal(detail.reason, "token_revoked");
    assert.equal(token.calls, 2);
    assert.equal(broker.sockets.length, 1);
  });
}

test("a subscription with a token by value ends with it", async (t) => {
  const broker = new Broker();
  broker.good.add("one");
  const client = await broker.open(t, { token: "one" });
  const subscription = client.subscribe("p");
  await subscription.ready;
  broker.revoke("one", "p");
  const [{ detail }] = (await once(subscription, "end")) as [CustomEvent];
  assert.ok(detail instanceof Unsubscribed);
  assert.deepEqual(broker.seen, ["one"]);
});

test("a function that cannot give another token now is asked again until it can", async (t) => {
  const broker = new Broker();
  for (const each of ["one", "two"]) broker.good.add(each);
  const token = giver("one", new Error("no token today"), new Error("none yet"), "two");
  const client = await broker.open(t, { token });
  const subscription = client.subscribe("p");
  await subscription.ready;
  broker.revoke("one", "p");
  await once(subscription, "live");
  assert.equal(token.calls, 4);
});

test("a function that fails while the connection is open is asked once a second", async (t) => {
  const broker = new Broker();
  const claims = btoa(JSON.stringify({ iat: 0, exp: 1 }));
  const one = `e30.${claims.replace(/=/g, "")}.x`; // renewed 0.2 s before its end
  broker.good.add(one);
  const token = giver(one, new Error("no token today"));
  const client = await broker.open(t, { token });
  await client.subscribe("p").ready;
  await new Promise((resolve) => setTimeout(resolve, 2_500));
  assert.ok(token.calls >= 2 && token.calls <= 4, `${token.calls} calls`);
  assert.equal(client.state, "open");
});

test("a revoked token is replaced where a stream is followed", async (t) => {
  const broker = new Broker();
  for (const each of ["one", "two"]) broker.good.add(each);
  const token = giver("one", "two");
  const client = await broker.open(t, { token, transport: "sse" });
  const subscription = client.subscribe("p");
  await subscription.ready;
  broker.revoke("one", "p");
  await once(subscription, "live");
  assert.deepEqual([broker.seen, token.calls], [["one", "two"], 2]);
  broker.revoke("two", "p");
  const [{ detail }] = (await once(subscription, "end")) as [CustomEvent];
  // The client looks for a gateway at the same time, which may be refused first.
  assert.ok(detail instanceof Unsubscribed || (detail instanceof ApiError && detail.status === 401));
});

test("a function that has never given a token ends what waits, with its own error", async (t) => {
  const failure = new Error("no token today");
  const token = giver(failure);
  const client = await new Broker().open(t, { token });
  const isOwn = (error: unknown) => error === failure;
  await assert.rejects(client.subscribe("p").ready, isOwn);
  await assert.rejects(client.follow("programs").ready, isOwn);
  await assert.rejects(client.call("servertime", {}), isOwn);
  await assert.rejects(client.request("GET", "/version"), isOwn);
  assert.equal(token.calls, 4);
});

test("a token that no header can carry is refused at once", async (t) => {
  const wrong = { name: "TypeError", message: /line break/ };
  assert.throws(() => new Client("http://demo.example.org", { token: "one\ntwo" }), wrong);
  const client = await new Broker().open(t, { token: giver("one\r\ntwo") });
  await assert.rejects(client.subscribe("p").ready, wrong);
  await assert.rejects(client.request("GET", "/version"), wrong);
});

test("the line break at the end of a file is no part of a token", async (t) => {
  const broker = new Broker();
  broker.good.add("one");
  const client = await broker.open(t, { token: giver("one\n") });
  await client.subscribe("p").ready;
  assert.deepEqual(broker.seen, ["one"]);
});
