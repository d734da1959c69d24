/** One connection for all tabs, in a real browser: what pages do when their worker ends, and what they give it. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { Browser, BrowserContext, Page } from "playwright-core";
import type { Client } from "../../src/index.js";
import type * as OnAirModule from "../../src/script.js";
import {
  hear,
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

/** The name of the worker that the tabs of a test share. */
const nameOf = (programId: string) => `onair ${new URL(URL_OF_BROKER).origin} ${programId}`;

/** Two tabs that follow a program through one worker; what they hear is in `heard`, what happens to them in `told`. */
async function openTabs(
  programId: string,
  { timing = {}, getToken }: { timing?: object; getToken?: () => string } = {},
): Promise<[BrowserContext, Page, Page]> {
  const context = await browser.newContext();
  const tabs: [Page, Page] = [await openPage(context, pages.url), await openPage(context, pages.url)];
  for (const tab of tabs) {
    if (getToken) await tab.exposeFunction("getToken", getToken);
    await tab.evaluate(
      async ({ url, programId, timing }) => {
        const scope = window as any;
        [scope.heard, scope.told] = [[], []];
        const token = scope.getToken && (() => scope.getToken());
        scope.client = OnAir.openShared("/counted-worker.js", url, { name: programId, timing, token });
        const subscription = scope.client.subscribe(programId);
        subscription.addEventListener("event", ({ detail }: any) => scope.heard.push(detail.metadata.number));
        for (const name of ["live", "lost"]) subscription.addEventListener(name, () => scope.told.push(name));
        subscription.addEventListener("end", ({ detail }: any) => scope.told.push(detail));
        await subscription.ready.catch(() => {});
      },
      { url: URL_OF_BROKER, programId, timing: { ...TIMING, ...timing } },
    );
  }
  return [context, ...tabs];
}

/** Says something to the worker of a test's tabs. */
const order = (tab: Page, programId: string, what: object) =>
  tab.evaluate(({ name, what }) => new BroadcastChannel(name).postMessage(what), {
    name: nameOf(programId),
    what,
  });

/** Has the browser end the worker of a test's tabs. */
async function endWorker(programId: string): Promise<void> {
  const session = await browser.newBrowserCDPSession();
  const { targetInfos } = await session.send("Target.getTargets");
  const workers = targetInfos.filter(
    ({ type, title }) => type === "shared_worker" && title === nameOf(programId),
  );
  assert.equal(workers.length, 1, JSON.stringify(targetInfos));
  await session.send("Target.closeTarget", { targetId: workers[0]!.targetId });
  await session.detach();
}

describe("tabs with one worker", { concurrency: 4, timeout: 90_000 }, () => {
  test("they go on by themselves after the browser has ended it", async () => {
    const programId = await makeProgram(admin);
    // Not by asking: only the lock tells.
    const [context, ...tabs] = await openTabs(programId, { timing: { idleMs: 3_600_000 } });
    await publish(admin, programId, 3);
    for (const tab of tabs) assert.deepEqual(await hear(tab, 2), upTo(3));
    await endWorker(programId);
    await publish(admin, programId, 3, 3);
    for (const tab of tabs) {
      assert.deepEqual(await hear(tab, 5), upTo(6));
      assert.deepEqual(await tab.evaluate(() => (window as any).told), ["live", "lost", "live"]);
      assert.equal(await tab.evaluate(() => (window as any).client.state), "open");
      assert.ok((await tab.evaluate(() => (window as any).client.call("servertime", {}))).serverTime > 0);
    }
    // A tab that is opened now has a new worker.
    const [later, , tab] = await openTabs(programId);
    assert.equal(await tab.evaluate(() => (window as any).sockets.made), 0);
    await Promise.all([context.close(), later.close()]);
  });

  test("they go on by themselves when it hangs", async () => {
    const programId = await makeProgram(admin);
    const [context, ...tabs] = await openTabs(programId, { timing: { idleMs: 500 } });
    await order(tabs[0], programId, { hang: true });
    await until(() => pages.hanging, "the worker to hang");
    const call = tabs[0].evaluate(() => (window as any).client.call("servertime", {}).then(String, String));
    await publish(admin, programId, 3);
    for (const tab of tabs) assert.deepEqual(await hear(tab, 2), upTo(3));
    assert.match(await call, /^ConnectionLost: the SharedWorker does not answer/);
    await context.close();
  });

  test("a network that is back ends its wait at once", async () => {
    const programId = await makeProgram(admin);
    const waitMs = 3_600_000;
    const [context, ...tabs] = await openTabs(programId, {
      timing: { baseMs: waitMs, capMs: waitMs, upgradeMs: waitMs },
    });
    for (const event of ["online", "pageshow"]) {
      const from = (await tabs[1].evaluate(() => (window as any).heard.length)) as number;
      await order(tabs[0], programId, { isBlocked: true });
      await publish(admin, programId, 3, from);
      await tabs[1].waitForFunction(() => (window as any).client.state === "connecting");
      await order(tabs[0], programId, { isBlocked: false });
      await until(
        () =>
          tabs[0].evaluate((name) => {
            dispatchEvent(new Event(name));
            return (window as any).client.state === "open";
          }, event),
        "the connection",
      );
      for (const tab of tabs) assert.deepEqual(await hear(tab, from + 2), upTo(from + 3));
    }
    await context.close();
  });

  test("a page out of the browser's cache has what it missed, each event once", async () => {
    const programId = await makeProgram(admin);
    const [context, hidden, other] = await openTabs(programId);
    const happen = (name: string) =>
      hidden.evaluate((type) => dispatchEvent(new PageTransitionEvent(type, { persisted: true })), name);
    await publish(admin, programId, 2);
    assert.deepEqual(await hear(hidden, 1), upTo(2));
    await happen("pagehide");
    await publish(admin, programId, 2, 2);
    assert.deepEqual(await hear(other, 3), upTo(4));
    assert.deepEqual(await hidden.evaluate(() => (window as any).heard), upTo(2));
    await happen("pageshow");
    assert.deepEqual(await hear(hidden, 3), upTo(4));
    await publish(admin, programId, 1, 4);
    assert.deepEqual(await hear(hidden, 4), upTo(5));
    await context.close();
  });

  test("a token that the broker refuses ends both with the refusal, and is asked for once more", async () => {
    const programId = await makeProgram(admin, { access: "private" });
    let tokens = 0;
    const getToken = () => `refused-${++tokens}`;
    const [context, ...tabs] = await openTabs(programId, { getToken });
    for (const tab of tabs) {
      await tab.waitForFunction(() => (window as any).told.length);
      const told = await tab.evaluate(() =>
        (window as any).told.map((each: any) => [each.name, each.status, each.code]),
      );
      assert.deepEqual(told, [["ApiError", 401, "invalid_token"]]);
    }
    // Each tab has had the worker try, with two tokens at most; nothing goes on after that.
    for (const tab of tabs) await tab.waitForFunction(() => (window as any).client.state === "idle");
    assert.ok(tokens >= 2 && tokens <= 4, `${tokens} tokens`);
    await context.close();
  });

  test("a token function that fails ends both at once, with its own error", async () => {
    const programId = await makeProgram(admin);
    const getToken = () => {
      throw new Error("the log-in is down");
    };
    const [context, ...tabs] = await openTabs(programId, { getToken });
    for (const tab of tabs) {
      await tab.waitForFunction(() => (window as any).told.length);
      assert.deepEqual(await tab.evaluate(() => (window as any).told.map(String)), [
        "Error: the log-in is down",
      ]);
    }
    await context.close();
  });

  test("a token that is refused before its time is replaced by another one of the page", async () => {
    const programId = await makeProgram(admin, { access: "private" });
    let tokens = 0;
    const good = await logIn();
    const getToken = () => (++tokens === 1 ? "refused" : good);
    const [context, ...tabs] = await openTabs(programId, { getToken });
    await publish(admin, programId, 1);
    for (const tab of tabs) {
      assert.deepEqual(await hear(tab, 0), [0]);
      assert.deepEqual(await tab.evaluate(() => (window as any).told), ["live"]);
    }
    await context.close();
  });
});
