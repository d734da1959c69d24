/** What a client does about a gateway that says nothing more, or that it leaves; the gateway is scripted. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { test, type TestContext } from "node:test";
import { type WebSocket, WebSocketServer } from "ws";
import { Client } from "../../src/index.js";

const OFTEN_MS = 100;
const NEVER_MS = 3_600_000;

const eventOf = (seq: number) => ({ seq, epoch: "e", id: `i${seq}`, programId: "p", event: "Score#update" });

/** A gateway and its API: each socket says what the test wants and answers what it must. */
class Peer {
  readonly sockets: WebSocket[] = [];
  /** Where each socket began to follow, in the order of their calls. */
  readonly began: [number, number | undefined][] = [];
  /** Decides over a handshake: true lets it in. */
  admit: (socket: number) => boolean | Promise<boolean> = () => true;
  #published = 0;
  #asked = 0;
  readonly #http = createServer((_, reply) => {
    reply.setHeader("Content-Type", "application/json");
    reply.end(
      JSON.stringify({ url: `ws://127.0.0.1:${this.#port}/api/v1/ws`, servers: [], retryAfterMs: 0 }),
    );
  });
  readonly #ws = new WebSocketServer({ noServer: true });

  constructor() {
    this.#http.on("upgrade", async (request: IncomingMessage, socket: Socket, head: Buffer) => {
      if (!(await this.admit(this.#asked++))) return socket.destroy();
      this.#ws.handleUpgrade(request, socket, head, (made) => this.#take(made));
    });
  }

  get #port(): number {
    return (this.#http.address() as AddressInfo).port;
  }

  async open(t: TestContext): Promise<Client> {
    this.#http.listen(0, "127.0.0.1");
    await once(this.#http, "listening");
    const timing = { baseMs: 20, capMs: 50 };
    const client = new Client(`http://127.0.0.1:${this.#port}`, { timing });
    t.after(() => {
      client.close();
      for (const each of this.sockets) each.terminate();
      this.#http.close();
      this.#http.closeAllConnections();
    });
    return client;
  }

  /** Publishes an event, over one socket or only into the history. */
  publish(socket?: number): void {
    const params = eventOf(++this.#published);
    if (socket !== undefined) this.tell(socket, "event", params);
  }

  tell(socket: number, method: string, params: object): void {
    this.sockets[socket]?.send(JSON.stringify({ jsonrpc: "2.0", method, params }));
  }

  #take(made: WebSocket): void {
    const number = this.sockets.push(made) - 1;
    made.on("message", (text) => {
      const { id, method, params } = JSON.parse(String(text));
      let result: object = {};
      if (method === "subscribe") {
        this.began.push([number, params.since?.seq]);
        const first = (params.since?.seq ?? this.#published) + 1;
        const events = Array.from({ length: this.#published + 1 - first }, (_, at) => eventOf(first + at));
        result = { programId: "p", epoch: "e", seq: this.#published, recovered: true, events };
      }
      made.send(JSON.stringify({ jsonrpc: "2.0", id, result }));
    });
  }
}

/** A follower that has heard one event over its first connection, which then promises signs of life. */
async function follow(t: TestContext, peer: Peer) {
  const client = await peer.open(t);
  const states: string[] = [];
  client.addEventListener("state", () => states.push(client.state));
  const subscription = client.subscribe("p");
  const items = subscription[Symbol.asyncIterator]();
  await subscription.ready;
  peer.publish(0);
  const next = async () => (await items.next()).value?.seq;
  assert.equal(await next(), 1);
  peer.tell(0, "alive", { everyMs: OFTEN_MS });
  return { next, states };
}

test("a silent connection is left for another one, and nothing is lost or doubled", async (t) => {
  const peer = new Peer();
  const { next, states } = await follow(t, peer);
  for (let each = 0; each < 3; each++) peer.publish();
  assert.deepEqual([await next(), await next(), await next()], [2, 3, 4]);
  const first = peer.sockets[0] as WebSocket;
  if (first.readyState !== first.CLOSED) await once(first, "close");
  peer.publish(1);
  assert.equal(await next(), 5);
  assert.deepEqual(peer.began, [
    [0, undefined],
    [1, 1],
  ]);
  // It was never without a connection.
  assert.deepEqual(states, ["connecting", "open"]);
});

test("a connection that was only late is kept, and the other one is closed", async (t) => {
  const peer = new Peer();
  let ask = () => {};
  let release = () => {};
  const asked = new Promise<void>((resolve) => {
    ask = resolve;
  });
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const { next, states } = await follow(t, peer);
  peer.admit = async () => {
    ask();
    await released;
    return true;
  };
  await asked;
  peer.publish(0);
  assert.equal(await next(), 2);
  peer.tell(0, "alive", { everyMs: NEVER_MS });
  peer.publish(0);
  assert.equal(await next(), 3);
  release();
  while (!peer.sockets[1]) await new Promise((resolve) => setImmediate(resolve));
  await once(peer.sockets[1] as WebSocket, "close");
  peer.publish(0);
  assert.equal(await next(), 4);
  assert.deepEqual(peer.began, [[0, undefined]]);
  assert.deepEqual(states, ["connecting", "open"]);
});

test("a silent connection is given up when no other one can be had", async (t) => {
  const peer = new Peer();
  const { next, states } = await follow(t, peer);
  let refused = 0;
  peer.admit = () => ++refused > 1;
  peer.publish();
  assert.equal(await next(), 2);
  assert.deepEqual(peer.began, [
    [0, undefined],
    [1, 1],
  ]);
  assert.deepEqual(states, ["connecting", "open", "connecting", "open"]);
});

test("a gateway that leaves is used until its time, and then left without a gap", async (t) => {
  const peer = new Peer();
  const { next, states } = await follow(t, peer);
  let ask = () => {};
  const asked = new Promise<void>((resolve) => {
    ask = resolve;
  });
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  peer.admit = async () => {
    ask();
    await released;
    return true;
  };
  peer.tell(0, "alive", { everyMs: NEVER_MS });
  peer.tell(0, "reconnect", { afterMs: OFTEN_MS });
  peer.publish(0);
  assert.equal(await next(), 2);
  await asked;
  peer.publish(0);
  assert.equal(await next(), 3);
  peer.publish();
  peer.publish();
  const left = once(peer.sockets[0] as WebSocket, "close");
  release();
  assert.deepEqual([await next(), await next()], [4, 5]);
  peer.publish(1);
  assert.equal(await next(), 6);
  await left;
  assert.deepEqual(peer.began, [
    [0, undefined],
    [1, 3],
  ]);
  assert.deepEqual(states, ["connecting", "open"]);
});
