/** Where WebSocket is blocked. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import type { Browser } from "playwright-core";
import { Client } from "../../src/index.js";
import {
  askPoll,
  follow,
  hear,
  initWith,
  makeProgram,
  openAdmin,
  openBrowser,
  openPage,
  type Pages,
  publish,
  readNumbers,
  servePages,
  TIMING,
  URL_OF_BROKER,
  until,
  upTo,
} from "./world.js";

let browser: Browser;
let pages: Pages;
const admin = openAdmin();

before(async () => {
  [browser, pages] = await Promise.all([openBrowser(), servePages()]);
});

after(async () => {
  admin.close();
  await browser.close();
  pages.close();
});

test("where WebSocket is blocked events come by Server-Sent Events, and by WebSocket again once it is not", async () => {
  const programId = await makeProgram(admin);
  const page = await openPage(browser, pages.url, initWith("window.sockets.isBlocked = true;"));
  await follow(page, programId);
  assert.equal(await page.evaluate(() => (window as any).client.state), "fallback");
  await publish(admin, programId, 10);
  assert.deepEqual(await hear(page, 9), upTo(10));
  await page.evaluate(() => {
    (window as any).sockets.isBlocked = false;
  });
  await page.waitForFunction(() => (window as any).client.state === "open", undefined, { timeout: 60_000 });
  await publish(admin, programId, 10, 10);
  assert.deepEqual(await hear(page, 19), upTo(20));
  // And back again, when a proxy begins to refuse it.
  await page.evaluate(() => {
    const { sockets } = window as any;
    sockets.isBlocked = true;
    sockets.cut();
  });
  await publish(admin, programId, 10, 20);
  assert.deepEqual(await hear(page, 29), upTo(30));
  assert.equal(await page.evaluate(() => (window as any).client.state), "fallback");
  await page.close();
});

/** A WebSocket that cannot be opened. */
class Blocked {
  onerror?: () => void;
  constructor() {
    setTimeout(() => this.onerror?.(), 1);
  }
  close() {}
}

test(
  "answers are counted once, and a second program has a stream of its own",
  {
    timeout: 60_000,
  },
  async () => {
    const [one, other] = [await makeProgram(admin), await makeProgram(admin)];
    const poll = await askPoll(admin, one);
    const client = new Client(URL_OF_BROKER, { timing: TIMING, WebSocket: Blocked });
    const subscriptions = [client.subscribe(one), client.subscribe(other)];
    await Promise.all(subscriptions.map((each) => each.ready));
    assert.equal(client.state, "fallback");
    assert.deepEqual(await client.respond(one, "winner", poll, 1), { accepted: 1, duplicates: 0 });
    assert.deepEqual(await client.respond(one, "winner", poll, 1), { accepted: 0, duplicates: 1 });
    await publish(admin, other, 1);
    assert.deepEqual(await readNumbers(subscriptions[1]!, 0), [0]);
    await assert.rejects(client.call("getVersion", {}), /WebSocket is blocked/);
    client.close();
  },
);

test(
  "who joins a stream has the history that it asked for, and the others nothing twice",
  { timeout: 60_000 },
  async () => {
    const programId = await makeProgram(admin);
    await publish(admin, programId, 5);
    const client = new Client(URL_OF_BROKER, { timing: TIMING, WebSocket: Blocked });
    const heard = (history: number) => {
      const numbers: unknown[] = [];
      const subscription = client.subscribe(programId, { history });
      subscription.addEventListener("event", ({ detail }) => numbers.push(detail.metadata.number));
      return { subscription, numbers };
    };
    // One who has all of it, then those who want some, more and none of it, and who come at once.
    const first = heard(5);
    await until(() => first.numbers.length === 5, "the history");
    const late = [heard(3), heard(4), heard(0)];
    await Promise.all(late.map(({ subscription }) => subscription.ready));
    assert.equal(client.state, "fallback");
    await publish(admin, programId, 1, 5);
    const all = [first, ...late];
    await until(() => all.every(({ numbers }) => numbers.includes(5)), "the last event");
    assert.deepEqual(
      all.map(({ numbers }) => numbers),
      [upTo(6), [2, 3, 4, 5], [1, 2, 3, 4, 5], [5]],
    );
    client.close();
  },
);

test("a stream whose token is refused is opened with another one, once", { timeout: 60_000 }, async () => {
  const programId = await makeProgram(admin, { access: "private" });
  let [streams, wrong] = [0, 1];
  const refusing: typeof fetch = (url, init) => {
    if (!String(url).includes("/events/stream") || ++streams > wrong) return fetch(url, init);
    return fetch(url, { ...init, headers: { Authorization: "Bearer ended" } });
  };
  const client = openAdmin({ transport: "sse", fetch: refusing });
  const subscription = client.subscribe(programId);
  await subscription.ready;
  await publish(admin, programId, 1);
  assert.deepEqual(await readNumbers(subscription, 0), [0]);
  [streams, wrong] = [0, 9];
  await assert.rejects(client.subscribe(programId).ready, /401|token/i);
  assert.equal(streams, 2);
  client.close();
});

test("a hole in a stream is filled by the next one", { timeout: 60_000 }, async () => {
  const programId = await makeProgram(admin);
  let streams = 0;
  // Loses the second event of the first stream.
  const losing: typeof fetch = async (url, init) => {
    const reply = await fetch(url, init);
    if (!String(url).includes("/events/stream") || ++streams > 1) return reply;
    let events = 0;
    const holed = new TransformStream<string, string>({
      transform: (text, controller) => {
        for (const part of text.split(/(?<=\n\n)/)) {
          if (!/^event: ?event$/m.test(part) || ++events !== 2) controller.enqueue(part);
        }
      },
    });
    const body = reply.body!.pipeThrough(new TextDecoderStream() as any).pipeThrough(holed);
    return new Response(body.pipeThrough(new TextEncoderStream()), reply);
  };
  // Not by another try to leave the streams.
  const timing = { ...TIMING, baseMs: 1, capMs: 1, upgradeMs: 600_000 };
  const client = new Client(URL_OF_BROKER, { timing, transport: "sse", fetch: losing });
  const subscription = client.subscribe(programId);
  await subscription.ready;
  for (let number = 0; number < 4; number++) await publish(admin, programId, 1, number);
  assert.deepEqual(await readNumbers(subscription, 3), upTo(4));
  assert.equal(streams, 2);
  client.close();
});

test("more programs than streams end with the reason", { timeout: 60_000 }, async () => {
  const ids = [await makeProgram(admin), await makeProgram(admin)];
  const client = new Client(URL_OF_BROKER, { timing: TIMING, WebSocket: Blocked, maxStreams: 1 });
  const ends = await Promise.allSettled(ids.map((id) => client.subscribe(id).ready));
  assert.deepEqual(ends.map(({ status }) => status).sort(), ["fulfilled", "rejected"]);
  client.close();
});

test(
  "a page behind a proxy that refuses WebSocket and buffers streams is told so",
  { timeout: 90_000 },
  async () => {
    const programId = await makeProgram(admin);
    const proxy = await openBufferingProxy();
    const page = await openPage(browser, pages.url, initWith("window.sockets.isBlocked = true;"));
    const failed = await page.evaluate(
      async ({ url, proxied, programId, timing }) => {
        const fetch: typeof globalThis.fetch = (input, init) => {
          const asked = new URL(String(input));
          return globalThis.fetch(asked.pathname.endsWith("/stream") ? `${proxied}/${asked}` : input, init);
        };
        const { Client } = (window as any).OnAir;
        const client = new Client(url, {
          timing: { ...timing, openTimeoutMs: 500, firstDeadlineMs: 6_000 },
          fetch,
        });
        return client.subscribe(programId).ready.then(String, String);
      },
      { url: URL_OF_BROKER, proxied: proxy.url, programId, timing: TIMING },
    );
    assert.match(failed, /^ConnectionFailed: no answer in 6 s/);
    assert.ok(proxy.streams() >= 2, "it goes on trying");
    await page.close();
    proxy.close();
  },
);

test("a way that buffers streams is found out, and the other way is tried", { timeout: 60_000 }, async () => {
  const programId = await makeProgram(admin);
  let isBlocked = true;
  let streams = 0;
  const { WebSocket: Real } = await import("ws");
  class Sometimes extends Real {
    constructor(url: string) {
      super(isBlocked ? "ws://127.0.0.1:1/" : url);
    }
  }
  const buffering: typeof fetch = async (url, init) => {
    if (!String(url).includes("/events/stream")) return fetch(url, init);
    if (++streams === 2) isBlocked = false;
    const body = new ReadableStream({
      start: (controller) =>
        init?.signal?.addEventListener("abort", () => controller.error(init.signal?.reason)),
    });
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  };
  const timing = { ...TIMING, openTimeoutMs: 500 };
  const client = new Client(URL_OF_BROKER, { timing, WebSocket: Sometimes, fetch: buffering });
  const subscription = client.subscribe(programId);
  await subscription.ready;
  assert.equal(client.state, "open");
  await publish(admin, programId, 2);
  assert.deepEqual(await readNumbers(subscription, 1), [0, 1]);
  client.close();
});

/** A proxy that gives a stream on only when it has ended; the path is the address that it stands before. */
async function openBufferingProxy(): Promise<{ url: string; streams: () => number; close: () => void }> {
  let streams = 0;
  const server = createServer(async (request, reply) => {
    streams++;
    const gone = new AbortController();
    reply.on("close", () => gone.abort());
    try {
      const upstream = await fetch(String(request.url).slice(1), { signal: gone.signal });
      const whole = await upstream.text();
      reply.writeHead(upstream.status, { "Access-Control-Allow-Origin": "*" }).end(whole);
    } catch {
      reply.destroy();
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, streams: () => streams, close: () => server.close() };
}
