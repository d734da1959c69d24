/** People in front of the dashboard, and what they find. */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { after, before } from "node:test";
import type { Browser, BrowserContext, Download, Page } from "playwright-core";
import type { Client } from "../../client/src/index.js";
import { INIT, openAdmin, openBrowser, URL_OF_BROKER, until } from "../../client/test/product/world.js";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
export const SHOTS = process.env.ONAIR_SCREENS as string;
export const PASSWORD = process.env.ONAIR_PASSWORD as string;
/** The address of a photograph with one face, 512 by 512 pixels, that the image proxy may read. */
export const IMAGE = process.env.ONAIR_IMAGE as string;

/** Every place of the page by the path of its fragment. `{…}` stands for what a test has made. */
export const SCREENS: Record<string, string> = {
  programs: "programs",
  events: "programs/{program}",
  polls: "programs/{program}/polls",
  numbers: "programs/{program}/numbers",
  history: "programs/{program}/history",
  settings: "programs/{program}/settings",
  statistics: "statistics",
  projects: "projects",
  project: "projects/{project}",
  revisions: "projects/{project}/revisions",
  revision: "projects/{project}/revisions/{revision}",
  values: "projects/{project}/values",
  analytics: "projects/{project}/analytics",
  members: "projects/{project}/members",
  "project-settings": "projects/{project}/settings",
  images: "images",
  users: "users",
  audit: "audit",
  account: "account",
  health: "health",
};

export const DESKTOP = { width: 1440, height: 900 };
export const PHONE = { width: 390, height: 844 };

export type Made = { program: string; project: string; revision: string };

/** What runs before the page's own scripts: faults are noted, sockets can be cut, and log-ins renewed. */
const WATCH = `${INIT}
  window.faults = [];
  addEventListener("securitypolicyviolation", (event) => window.faults.push("policy: " + event.violatedDirective));
  addEventListener("error", (event) => window.faults.push("error: " + event.message));
  addEventListener("unhandledrejection", (event) => window.faults.push("rejection: " + event.reason));
  // Tokens of these tests live for seconds: who is asked logs in again, unless the test does.
  window.logsInAgain = true;
  setInterval(() => {
    const form = document.querySelector('form[aria-label="Log in again"]');
    const input = form?.querySelector("input");
    if (!window.logsInAgain || !input || form.querySelector("button").disabled) return;
    input.value = ${JSON.stringify(PASSWORD)};
    input.dispatchEvent(new Event("input", { bubbles: true }));
    form.requestSubmit();
  }, 100);
`;

export interface Visit {
  page: Page;
  /** All addresses that the page asked for, those of sockets too. */
  urls: string[];
  close: () => Promise<void>;
}

/** Opens the dashboard in a browser of its own; `close` fails where the page had a fault. */
export async function visit(
  browser: Browser,
  options: Parameters<Browser["newContext"]>[0] = {},
): Promise<Visit> {
  const context: BrowserContext = await browser.newContext({ locale: "en-GB", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const urls: string[] = [];
  page.on("request", (request) => urls.push(request.url()));
  page.on("websocket", (socket) => urls.push(socket.url()));
  await page.addInitScript(WATCH);
  await page.goto(`${URL_OF_BROKER}/dashboard/`);
  const close = async () => {
    assert.deepEqual(await page.evaluate(() => (window as any).faults), []);
    await context.close();
  };
  return { page, urls, close };
}

/** The browser and the administrator of a file's tests, from `openStage` on. */
export let browser: Browser;
export let admin: Client;

/** Opens both before the tests of a file and closes them after; `prepare` makes what the tests share. */
export function openStage(prepare: () => Promise<void> = async () => {}): void {
  before(async () => {
    admin = openAdmin();
    browser = await openBrowser();
    await prepare();
  });
  after(async () => {
    admin?.close();
    await browser?.close();
  });
}

/** Fills the log-in in. */
export async function enter(page: Page, username: string, isKept = false): Promise<void> {
  await page.getByLabel("User name").fill(username);
  await page.getByLabel("Password").fill(PASSWORD);
  if (isKept) await page.getByLabel("Keep me logged in").check();
  await page.keyboard.press("Enter");
  await page.locator("nav[aria-label=Main]").waitFor({ state: "attached" }); // behind a menu on a phone
}

/** Nobody logs in again but the test. */
export async function logsInByHand(page: Page): Promise<void> {
  await page.evaluate(() => {
    (window as any).logsInAgain = false;
  });
}

/** Has so much time pass for what the page tries again until a deadline. */
export async function pass(page: Page, ms: number): Promise<void> {
  await page.evaluate((more) => {
    const now = performance.now.bind(performance);
    performance.now = () => now() + more;
  }, ms);
}

/** Goes to a place and waits until it is there, unless the broker is away. */
export async function show(page: Page, path: string, isThere = true): Promise<void> {
  await page.evaluate((hash) => {
    location.hash = hash;
  }, `#/${path}`);
  if (isThere) await settle(page);
}

/** Waits until nothing is being loaded. */
export async function settle(page: Page): Promise<void> {
  const isSettled = () => {
    const isThere = document.querySelector("main h1");
    return isThere && !document.querySelector(".loading") && !/Loading…/.test(document.body.innerText);
  };
  await page.waitForFunction(isSettled, undefined, { polling: 50 }); // at each frame it would lay the page out
}

/** The path of a screen with what was made in it. */
export function pathOf(screen: string, made: Made): string {
  return (SCREENS[screen] as string).replace(/\{(\w+)\}/g, (_, name: keyof Made) => made[name]);
}

/** The words of the page. */
export function words(page: Page): Promise<string> {
  return page.evaluate(() => document.body.innerText);
}

/** Waits for words in the page. */
export async function sees(page: Page, text: string): Promise<void> {
  let found = "";
  const isThere = async () => (found = await words(page)).includes(text);
  await until(isThere, () => `“${text}” in the page, which says: ${found}`);
}

/** The file that the page saves when it is asked to. */
export async function saved(page: Page, asks: () => Promise<void>): Promise<Download> {
  const [download] = await Promise.all([
    page
      .waitForEvent("download")
      .catch(async () => assert.fail(`no file from the page, which says: ${await words(page)}`)),
    asks(),
  ]);
  return download;
}

/** A user with the password of all. */
export async function makeUser(admin: Client, username: string, role: string, projectIds: string[]) {
  const body = { username, password: PASSWORD, role: role as "user", projectIds };
  return admin.request("POST", "/users", { body });
}

/** axe finds no fault. */
export async function check(page: Page): Promise<void> {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(await readFile(AXE, "utf8"));
  const found = await page.evaluate(async () => {
    const { violations } = await (window as any).axe.run(document, { resultTypes: ["violations"] });
    return violations.map(
      (each: any) =>
        `${each.id}: ${each.nodes
          .map((node: any) => node.html)
          .join(" ")
          .slice(0, 500)}`,
    );
  });
  assert.deepEqual(found, [], page.url());
}
