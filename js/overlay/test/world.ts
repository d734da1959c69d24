/** The overlay in the browser of the client's tests, against the same instance. */
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import type { Client } from "../../client/src/index.js";
import { makeProgram, type openBrowser, URL_OF_BROKER } from "../../client/test/product/world.js";

export { control, openAdmin, openBrowser, URL_OF_BROKER, until } from "../../client/test/product/world.js";
export { makeProgram };

export type Browser = Awaited<ReturnType<typeof openBrowser>>;
type Context = Awaited<ReturnType<Browser["newContext"]>>;
export type Page = Awaited<ReturnType<Browser["newPage"]>>;

/** The host name with an account, so that a portrait's URL has one. */
export const BROKER = URL_OF_BROKER.replace("//localhost", "//demo.localhost");
/** Not at each frame, as is usual: some hosts have none. */
const POLLING = { polling: 50 };
const SCREENS = process.env.ONAIR_SCREENS ?? ".";

/** Publishes an event; returns its id. */
export async function tell(admin: Client, programId: string, event: string, metadata = {}): Promise<string> {
  const body = { event, metadata };
  const made = await admin.request("POST", "/programs/{programId}/events", { path: { programId }, body });
  assert.ok("id" in made);
  return made.id;
}

/** Opens the overlay, as large as a video frame; `init` runs before its scripts, as a host does. */
export async function open(
  browser: Browser | Context,
  query: Record<string, string>,
  init = "",
): Promise<Page> {
  const page = await openEmpty(browser);
  await page.addInitScript(init);
  await page.goto(`${BROKER}/overlay/?${new URLSearchParams(query)}`);
  // Its script has run: the functions that hosts call are there.
  await page.waitForFunction(() => document.documentElement.dataset.host, undefined, POLLING);
  return page;
}

/** Another server than the broker's: it has the template for SPX, copied there, and pages with nothing in them. */
export async function serveElsewhere(): Promise<{ url: string; close(): void }> {
  const template = await (await fetch(`${URL_OF_BROKER}/overlay/spx.html`)).text();
  const server = createServer((request, reply) => {
    reply.setHeader("Content-Type", "text/html");
    reply.end(
      request.url === "/spx.html" ? template : "<!doctype html><title>elsewhere</title><body></body>",
    );
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, close: () => server.close() };
}

/** Opens a page of another server. */
export async function openElsewhere(browser: Browser, url: string): Promise<Page> {
  const page = await openEmpty(browser);
  await page.goto(url);
  return page;
}

async function openEmpty(browser: Browser | Context): Promise<Page> {
  const page = await browser.newPage();
  await page.setViewportSize({ width: 1920, height: 1080 });
  const faults: string[] = [];
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("close", () => assert.deepEqual(faults, []));
  return page;
}

/** Waits until the overlay follows its program. */
export async function live(page: Page): Promise<void> {
  await page.waitForFunction(() => document.documentElement.dataset.state === "live", undefined, POLLING);
}

/** Waits until a graphic is on air, or off. */
export async function turned(page: Page, graphic: string, isOn: boolean): Promise<void> {
  const selector = `[data-graphic=${graphic}]${isOn ? ".on" : ":not(.on)"}`;
  await page.locator(`onair-overlay ${selector}`).waitFor({ state: "attached" });
}

/** What a part of the overlay says. */
export async function read(page: Page, selector: string): Promise<string> {
  return page.locator(`onair-overlay ${selector}`).first().innerText();
}

/** Waits until a part of the overlay says something. */
export async function says(page: Page, selector: string, wanted: string): Promise<void> {
  const found = page.locator(`onair-overlay ${selector}`).filter({ hasText: wanted });
  await found.first().waitFor({ state: "attached" });
}

/** Puts a video frame behind the overlay: a pitch under floodlights, or a bright sky. */
export async function behind(page: Page, what: "night" | "day"): Promise<void> {
  await page.evaluate((frame) => {
    document.documentElement.style.background =
      frame === "night"
        ? "radial-gradient(ellipse 70% 40% at 50% 8%, #cfe3ff55, transparent), linear-gradient(#0a1222 0 24%, #1b2a44 30%, transparent 31%), repeating-linear-gradient(92deg, #2c7a34 0 150px, #26702e 150px 300px)"
        : "radial-gradient(circle at 72% 18%, #fff, #fdf6e3 12%, transparent 40%), linear-gradient(#bfe0ff, #f4faff 55%, #e9e4d4 56%, #f6f1e4)";
  }, what);
}

/** Writes what is seen to `.build/screens/`. */
export async function shoot(page: Page, name: string): Promise<void> {
  await mkdir(SCREENS, { recursive: true });
  await page.screenshot({ path: join(SCREENS, `overlay-${name}.png`) });
}
