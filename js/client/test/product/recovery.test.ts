/** What a browser, Node and the client in Go hear across a gateway's death, a rolling update, and a stop and start of everything. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { Client } from "../../src/index.js";
import { sleep } from "../../src/sleep.js";
import {
  control,
  INIT,
  makeProgram,
  openAdmin,
  openBrowser,
  openPage,
  publish,
  readNumbers,
  servePages,
  TIMING,
  URL_OF_BROKER,
  until,
} from "./world.js";

test(
  "every event comes once and in order across a gateway's death, a rolling update and a stop and start",
  {
    timeout: 380_000,
  },
  async (t) => {
    const admin = openAdmin();
    const [browser, pages] = await Promise.all([openBrowser(), servePages()]);
    const programId = await makeProgram(admin);
    const go = openFollower(programId);
    t.after(() => go?.end());
    await until(async () => {
      if (go) await publish(admin, programId, 1, FIRST);
      return !go || go.heard.length;
    }, "the client in Go");
    const page = await openPage(browser, pages.url, INIT);
    await page.evaluate(
      async ({ url, programId, timing }) => {
        const scope = window as any;
        scope.heard = [];
        const { Client } = (window as any).OnAir;
        const subscription = new Client(url, { timing }).subscribe(programId);
        subscription.addEventListener("event", ({ detail }: any) => scope.heard.push(detail.metadata.number));
        await subscription.ready;
      },
      { url: URL_OF_BROKER, programId, timing: TIMING },
    );
    const client = new Client(URL_OF_BROKER, { timing: TIMING });
    const subscription = client.subscribe(programId);
    await subscription.ready;
    const last = -1; // the number of the event after all others
    const heard = readNumbers(subscription, last);
    heard.catch(() => {}); // looked at in the end

    let published = 0;
    let isOver = false;
    const publishing = (async () => {
      // It goes on the whole time: each call is tried until it is durable.
      while (!isOver) {
        await publish(admin, programId, 1, published);
        published++;
        await sleep(100);
      }
      await publish(admin, programId, 1, last);
    })();
    try {
      await control("kill-gateway");
      await sleep(3_000);
      await control("update");
      await sleep(1_000);
      await control("stop");
      await control("start");
    } finally {
      isOver = true;
    }
    await publishing;

    const all = [...Array.from({ length: published }, (_, index) => index), last];
    assert.deepEqual(await heard, all);
    await page.waitForFunction((number) => (window as any).heard.includes(number), last, { timeout: 60_000 });
    assert.deepEqual(await page.evaluate(() => (window as any).heard), all);
    assert.ok(subscription.reconnects >= 3);
    if (go) {
      await until(() => go.heard.includes(last), "the last event in Go");
      assert.deepEqual(
        go.heard.filter((number) => number !== FIRST),
        all,
      );
    }
    client.close();
    admin.close();
    await browser.close();
    pages.close();
  },
);

const FIRST = -2; // the number of events that are published until the client in Go hears them

/** The client in Go; undefined where there is no Go. */
function openFollower(programId: string) {
  const binary = process.env.ONAIR_GO;
  if (!binary) return undefined;
  const child = spawn(binary, [URL_OF_BROKER, programId], { stdio: ["ignore", "pipe", "ignore"] });
  const heard: number[] = [];
  createInterface(child.stdout).on("line", (line) => {
    const { method, params } = JSON.parse(line);
    heard.push(method === "event" ? params.metadata.number : method);
  });
  return { heard, end: () => child.kill() };
}
