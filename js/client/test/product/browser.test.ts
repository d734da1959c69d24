/** The client in a real browser, against a real instance. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import serverless from "@sparticuz/chromium";
import type { Browser } from "playwright-core";
import type { Client } from "../../src/index.js";
import type * as OnAirModule from "../../src/script.js";
import { newId } from "../../src/ids.js";
import { sleep } from "../../src/sleep.js";
import {
  askPoll,
  follow,
  hear,
  initWith,
  logIn,
  makeProgram,
  openAdmin,
  openBrowser,
  openPage,
  type Pages,
  publish,
  servePages,
  TIMING,
  URL_OF_BROKER,
  until,
  upTo,
} from "./world.js";

declare const OnAir: typeof OnAirModule;

let browser: Browser;
let pages: Pages;
let admin: Client;

before(async () => {
  [browser, pages] = await Promise.all([openBrowser(), servePages()]);
  admin = openAdmin();
});

after(async () => {
  admin.close();
  await browser.close();
  pages.close();
});

test("the browser needs no library that its package does not bring", async () => {
  const folder = join(tmpdir(), "al2023", "lib");
  const { stdout } = await promisify(execFile)("ldd", [await serverless.executablePath()]);
  const found = new Map(stdout.split("\n").map((line) => line.trim().split(/ => | \(/) as [string, string]));
  for (const name of ["libnss3.so", "libnssutil3.so", "libnspr4.so", "libexpat.so.1"]) {
    assert.equal(found.get(name), join(folder, name));
  }
  assert.ok(!stdout.includes("not found"), stdout);
});

// Those that wait for a token's end come first; the others run beside them. Those that count connections wait as
// long for an answer as viewers do: on a busy machine one may take longer than TIMING allows, and a new one is made.
describe("in a browser", { concurrency: 5, timeout: 120_000 }, () => {
  test("a token that ends is renewed before, and private events go on", async () => {
    const programId = await makeProgram(admin, { access: "private" });
    const page = await openPage(browser, pages.url);
    let tokens = 0;
    await page.exposeFunction("logIn", () => {
      tokens++;
      return logIn();
    });
    await page.evaluate(
      async ({ url, programId }) => {
        const scope = window as any;
        scope.heard = [];
        const client = new OnAir.Client(url, { token: () => scope.logIn() });
        const subscription = client.subscribe(programId);
        subscription.addEventListener("event", ({ detail }) => scope.heard.push(detail.metadata.number));
        subscription.addEventListener("end", ({ detail }) => {
          scope.failed = String(detail);
        });
        await subscription.ready;
      },
      { url: URL_OF_BROKER, programId },
    );
    // Tokens of this instance live for twenty seconds.
    const ended = sleep(20_500);
    await until(() => tokens >= 2, "the second token");
    await ended;
    await publish(admin, programId, 1);
    assert.deepEqual(await hear(page, 0), [0]);
    assert.equal(await page.evaluate(() => (window as any).failed), undefined);
    assert.equal(await page.evaluate(() => (window as any).sockets.made), 1);
    await page.close();
  });

  test("a token by value that ends ends private subscriptions, with the reason", async () => {
    const programId = await makeProgram(admin, { access: "private" });
    const page = await openPage(browser, pages.url);
    await follow(page, programId, { token: await logIn() });
    await page.waitForFunction(() => (window as any).failed, undefined, { timeout: 60_000 });
    assert.match(await page.evaluate(() => (window as any).failed), /^Unsubscribed: .*token/);
    await page.close();
  });

  test("every event comes once and in order across cut connections", async () => {
    const programId = await makeProgram(admin);
    const page = await openPage(browser, pages.url);
    await follow(page, programId);
    for (let round = 0; round < 4; round++) {
      await publish(admin, programId, 25, round * 50);
      // Half of the rounds come while there is no connection.
      await page.evaluate(() => (window as any).sockets.cut());
      await publish(admin, programId, 25, round * 50 + 25);
    }
    assert.deepEqual(await hear(page, 199), upTo(200));
    assert.ok((await page.evaluate(() => (window as any).sockets.made)) > 1);
    await page.close();
  });

  for (const transport of ["websocket", "sse"] as const) {
    test(`an event of the most that one may hold comes whole: ${transport}`, () => passWhole(transport));
  }

  async function passWhole(transport: "websocket" | "sse"): Promise<void> {
    const programId = await makeProgram(admin);
    const page = await openPage(browser, pages.url);
    await page.evaluate(
      async ({ url, programId, transport }) => {
        const subscription = new OnAir.Client(url, { transport }).subscribe(programId);
        subscription.addEventListener("event", ({ detail }) => {
          (window as any).size = (detail.metadata.text as string).length;
        });
        await subscription.ready;
      },
      { url: URL_OF_BROKER, programId, transport },
    );
    // The most is 64 KiB of JSON, with what is around the text.
    const text = "ä".repeat(32_762) + "a";
    assert.equal(new TextEncoder().encode(JSON.stringify({ text })).length, 65_536);
    const body = { event: "Text#show", metadata: { text } };
    await admin.request("POST", "/programs/{programId}/events", { path: { programId }, body });
    await page.waitForFunction(() => (window as any).size === 32_763);
    await page.close();
  }

  test("two tabs share one connection, and one tab goes on after the other was closed", async () => {
    const programId = await makeProgram(admin);
    const context = await browser.newContext();
    const tabs = [await openPage(context, pages.url), await openPage(context, pages.url)] as const;
    for (const tab of tabs) {
      await tab.evaluate(
        async ({ url, programId }) => {
          const scope = window as any;
          scope.heard = [];
          const client = OnAir.openShared("/counted-worker.js", url, { name: programId });
          const subscription = client.subscribe(programId, { history: 5 });
          subscription.addEventListener("event", ({ detail }) => scope.heard.push(detail.metadata.number));
          await subscription.ready;
          scope.client = client;
        },
        { url: URL_OF_BROKER, programId },
      );
      // The second tab asks for what the first one has seen.
      if (tab === tabs[0]) await publish(admin, programId, 3);
    }
    assert.deepEqual(await Promise.all(tabs.map((tab) => hear(tab, 2))), [upTo(3), upTo(3)]);
    const own = await Promise.all(tabs.map((tab) => tab.evaluate(() => (window as any).sockets.made)));
    assert.deepEqual([own, pages.sockets], [[0, 0], 1]);
    const offset = await tabs[0].evaluate(() => Math.abs((window as any).client.now() - Date.now()));
    assert.ok(offset < 60_000);
    await tabs[0].close();
    await publish(admin, programId, 3, 3);
    assert.deepEqual(await hear(tabs[1], 5), upTo(6));
    await context.close();
  });

  test("a page whose worker cannot be loaded or says nothing connects by itself", async () => {
    const programId = await makeProgram(admin);
    for (const script of ["/missing.js", "/silent-worker.js"]) {
      const page = await openPage(browser, pages.url);
      await page.evaluate(
        async ({ url, programId, script }) => {
          const shared = OnAir.openShared(script, url, { timing: { openTimeoutMs: 2_000 } });
          await shared.subscribe(programId).ready;
        },
        { url: URL_OF_BROKER, programId, script },
      );
      assert.equal(await page.evaluate(() => (window as any).sockets.made), 1);
      await page.close();
    }
  });

  test("storage that throws stops nothing", async () => {
    const programId = await makeProgram(admin);
    const denied = "get() { throw new DOMException('denied', 'SecurityError'); }";
    const init = `for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, { ${denied} });`;
    const page = await openPage(browser, pages.url, initWith(init));
    await follow(page, programId);
    await publish(admin, programId, 1);
    assert.deepEqual(await hear(page, 0), [0]);
    assert.match(await page.evaluate(() => (window as any).client.visitorId), /^[0-9a-f]{32}$/);
    await page.close();
  });

  for (const aheadMs of [86_400_000, -86_400_000]) {
    test(`a clock that is wrong by ${aheadMs} ms is corrected by the broker's`, () => correctClock(aheadMs));
  }

  async function correctClock(aheadMs: number): Promise<void> {
    const programId = await makeProgram(admin);
    const page = await openPage(browser, pages.url, `${initWith("")} window.setAhead(${aheadMs});`);
    let tokens = 0;
    await page.exposeFunction("logIn", () => {
      tokens++;
      return logIn();
    });
    await page.evaluate(
      async ({ url, programId, timing }) => {
        const scope = window as any;
        scope.client = new OnAir.Client(url, { timing, token: () => scope.logIn() });
        await scope.client.subscribe(programId).ready;
      },
      { url: URL_OF_BROKER, programId, timing: TIMING },
    );
    const { serverTime } = await admin.request("POST", "/servertime", { body: {} });
    assert.ok(Math.abs((await page.evaluate(() => (window as any).client.now())) - serverTime) < 60_000);
    assert.ok(Math.abs((await page.evaluate(() => Date.now())) - serverTime - aheadMs) < 400_000);
    assert.equal(tokens, 1);
    await page.close();
  }

  test("a network that is back ends the wait for it", async () => {
    const programId = await makeProgram(admin);
    const context = await browser.newContext();
    const page = await openPage(context, pages.url);
    const [waitMs, transport] = [3_600_000, "websocket"];
    await follow(page, programId, { transport, timing: { ...TIMING, baseMs: waitMs, capMs: waitMs } });
    await context.setOffline(true);
    await page.evaluate(() => {
      (window as any).sockets.isBlocked = true;
      (window as any).sockets.cut();
    });
    await publish(admin, programId, 3);
    await page.waitForFunction(() => (window as any).client.state === "connecting");
    await page.evaluate(() => {
      (window as any).sockets.isBlocked = false;
    });
    await context.setOffline(false);
    assert.deepEqual(await hear(page, 2), upTo(3));
    await context.close();
  });

  test("a page that is shown again asks at once whether its connection lives", async () => {
    for (const event of ["pageshow", "visibilitychange"]) {
      const programId = await makeProgram(admin);
      const page = await openPage(browser, pages.url, initWith("window.sockets.isUnwatched = true;"));
      await follow(page, programId, { timing: { ...TIMING, idleMs: 3_600_000, answerMs: 500 } });
      await publish(admin, programId, 2);
      await hear(page, 1);
      await page.evaluate(() => {
        (window as any).sockets.isDeaf = true;
      });
      await publish(admin, programId, 2, 2);
      await page.evaluate((name) => {
        const { sockets } = window as any;
        dispatchEvent(new Event(name));
        setTimeout(() => {
          sockets.isDeaf = false; // for the next connection
        }, 1_000);
      }, event);
      assert.deepEqual(await hear(page, 3), upTo(4));
      assert.ok((await page.evaluate(() => (window as any).sockets.made)) > 1);
      await page.close();
    }
  });

  test("a thousand subscriptions of a page find connections", async () => {
    const programId = await makeProgram(admin);
    const ids = await Promise.all(upTo(150).map(() => makeProgram(admin)));
    const page = await openPage(browser, pages.url);
    await page.evaluate(
      async ({ url, ids, programId }) => {
        const scope = window as any;
        scope.heard = [];
        const client = new OnAir.Client(url);
        const others = Array.from({ length: 999 - ids.length }, () => client.subscribe(programId));
        const subscriptions = [...ids.map((id) => client.subscribe(id)), ...others];
        const last = client.subscribe(programId);
        last.addEventListener("event", ({ detail }) => scope.heard.push(detail.metadata.number));
        await Promise.all([...subscriptions, last].map((each) => each.ready));
      },
      { url: URL_OF_BROKER, ids, programId },
    );
    await publish(admin, programId, 2);
    assert.deepEqual(await hear(page, 1), [0, 1]);
    assert.equal(await page.evaluate(() => (window as any).sockets.made), 2);
    await page.close();
  });

  test("events that come together are few messages, each event once and in order", async () => {
    const programId = await makeProgram(admin);
    const page = await openPage(browser, pages.url);
    await follow(page, programId);
    const before = await page.evaluate(() => (window as any).sockets.messages);
    await publish(admin, programId, 1_000);
    assert.deepEqual(await hear(page, 999), upTo(1_000));
    assert.ok((await page.evaluate(() => (window as any).sockets.messages)) - before < 250);
    await page.close();
  });

  test("a laptop that slept finds its connection dead and recovers", async () => {
    const programId = await makeProgram(admin);
    // Idle connections are not asked, and show no life: only the jump of the clock shows the sleep.
    const page = await openPage(browser, pages.url, initWith("window.sockets.isUnwatched = true;"));
    await follow(page, programId, { timing: { ...TIMING, idleMs: 10_000, answerMs: 500 } });
    await publish(admin, programId, 5);
    await hear(page, 4);
    await page.evaluate(() => {
      (window as any).sockets.isDeaf = true;
    });
    await publish(admin, programId, 5, 5);
    await page.evaluate(() => {
      const scope = window as any;
      scope.setAhead(86_400_000);
      // What comes after belongs to connections that are made from now on.
      setTimeout(() => {
        scope.sockets.isDeaf = false;
      }, 6_500);
    });
    assert.deepEqual(await hear(page, 9), upTo(10));
    await page.close();
  });

  test("a timeline tells events when the video is there, and again after a seek", async () => {
    const programId = await makeProgram(admin);
    const start = 1_784_484_000_000;
    const events = [0, 10, 20, 30].map((s) => ({
      event: "Score#update",
      timecode: start + s * 1000,
      metadata: { number: s },
    }));
    const path = { programId };
    await admin.request("POST", "/programs/{programId}/events", {
      path,
      body: { events: events.slice(0, 3) },
    });
    const page = await openPage(browser, pages.url);
    await page.evaluate(
      async ({ url, programId, start }) => {
        const scope = window as any;
        scope.heard = [];
        scope.video = { currentTime: 5 };
        const position = () => start + scope.video.currentTime * 1000;
        const onSeek = ({ reason }: { reason: string }) => scope.heard.push(reason);
        const timeline = new OnAir.Client(url).timeline(programId, {
          position,
          onSeek,
          lookbackMs: Infinity,
        });
        timeline.addEventListener("event", ({ detail }) => scope.heard.push(detail.metadata.number));
        await timeline.ready;
      },
      { url: URL_OF_BROKER, programId, start },
    );
    const heard = () => page.evaluate(() => (window as any).heard);
    const seek = (s: number) =>
      page.evaluate((to) => {
        (window as any).video.currentTime = to;
      }, s);
    await hear(page, 0);
    assert.deepEqual(await heard(), [0]);
    // Published now, shown when the viewer, who is behind, gets there.
    await admin.request("POST", "/programs/{programId}/events", { path, body: events[3] as any });
    await seek(15);
    await hear(page, 10);
    assert.deepEqual(await heard(), [0, "forward", 10]);
    await seek(35);
    await hear(page, 30);
    assert.deepEqual(await heard(), [0, "forward", 10, "forward", 20, 30]);
    await seek(12);
    await until(async () => (await heard()).length === 9, "the events before the seek");
    assert.deepEqual(await heard(), [0, "forward", 10, "forward", 20, 30, "back", 0, 10]);
    await page.close();
  });

  test("React and Vue render what comes", async () => {
    for (const name of ["react", "vue"]) {
      const programId = await makeProgram(admin);
      const poll = await askPoll(admin, programId);
      const page = await openPage(browser, pages.url);
      await page.addScriptTag({ url: `/test/pages/${name}.js` });
      await page.evaluate(({ url, programId }) => (window as any).mount(url, programId), {
        url: URL_OF_BROKER,
        programId,
      });
      const text = () => page.evaluate(() => document.querySelector("#app")?.textContent);
      await until(async () => (await text()) === "open live none votes:", "the connection");
      await publish(admin, programId, 3);
      await until(async () => (await text()) === "open live 2 votes:", "the events");
      // Results are told from the moment on at which they are followed, so the first vote may be too early.
      await until(async () => {
        await admin.respond(programId, "winner", poll, 1, { visitorId: newId() });
        return /votes:[1-9]/.test(String(await text()));
      }, "the results");
      await page.evaluate(() => (window as any).unmount());
      assert.equal(await page.evaluate(() => (window as any).heard.join()), "0,1,2");
      await page.close();
    }
  });
});
