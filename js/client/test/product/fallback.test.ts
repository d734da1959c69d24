/** Where WebSocket is blocked. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { Browser } from "playwright-core";
import { Client } from "../../src/index.js";
import {
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
    const metadata = { title: "Who wins?", measureName: "winner", options: ["Home", "Away"] };
    const path = { programId: one };
    const body = { event: "Poll#show", metadata };
    const poll = (await admin.request("POST", "/programs/{programId}/events", { path, body })) as {
      id: string;
    };
    const client = new Client(URL_OF_BROKER, { timing: TIMING, WebSocket: Blocked });
    const subscriptions = [client.subscribe(one), client.subscribe(other)];
    await Promise.all(subscriptions.map((each) => each.ready));
    assert.equal(client.state, "fallback");
    assert.deepEqual(await client.respond(one, "winner", poll.id, 1), { accepted: 1, duplicates: 0 });
    assert.deepEqual(await client.respond(one, "winner", poll.id, 1), { accepted: 0, duplicates: 1 });
    // Who joins wants what came before, and the others have nothing twice.
    await publish(admin, other, 5);
    const late = client.subscribe(other, { history: 3 });
    await late.ready;
    await publish(admin, other, 1, 5);
    assert.deepEqual(await readNumbers(subscriptions[1]!, 5), upTo(6));
    assert.deepEqual((await readNumbers(late, 5)).slice(-4), [2, 3, 4, 5]);
    await assert.rejects(client.call("getVersion", {}), /WebSocket is blocked/);
    client.close();
  },
);

test("more programs than streams end with the reason", { timeout: 60_000 }, async () => {
  const ids = [await makeProgram(admin), await makeProgram(admin)];
  const client = new Client(URL_OF_BROKER, { timing: TIMING, WebSocket: Blocked, maxStreams: 1 });
  const ends = await Promise.allSettled(ids.map((id) => client.subscribe(id).ready));
  assert.deepEqual(ends.map(({ status }) => status).sort(), ["fulfilled", "rejected"]);
  client.close();
});

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
