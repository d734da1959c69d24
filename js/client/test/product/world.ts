/** The instance that the tests run against, a server for pages, and a browser. */
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { extname, join } from "node:path";
import serverless from "@sparticuz/chromium";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { Client, type ClientOptions, type ProgramEvent } from "../../src/index.js";
import type * as OnAirModule from "../../src/script.js";
import { newId } from "../../src/ids.js";

export const URL_OF_BROKER = process.env.ONAIR_URL as string;
const CONTROL = process.env.ONAIR_CONTROL as string;
const PASSWORD = process.env.ONAIR_PASSWORD as string;
const ROOT = process.env.ONAIR_ROOT as string;

/** Quick, so that nothing is waited for longer than a test needs. */
export const TIMING = { baseMs: 50, capMs: 500, idleMs: 2_000, answerMs: 1_500, upgradeMs: 1_000 };

/** Asks the test's driver to do something to the instance, such as `kill-gateway`, `stop` or `start`. */
export async function control(what: string, given: Record<string, string> = {}): Promise<string> {
  const reply = await fetch(`${CONTROL}/${what}?${new URLSearchParams(given)}`, { method: "POST" });
  if (!reply.ok) throw new Error(`${what}: ${reply.status} ${await reply.text()}`);
  return reply.text();
}

/** A token of a user, the administrator unless named. */
export async function logIn(username = "admin", password = PASSWORD): Promise<string> {
  const client = new Client(URL_OF_BROKER);
  const body = { grant_type: "password", client_id: "Test", username, password } as const;
  const token = await client.request("POST", "/token", { body });
  client.close();
  return token.access_token;
}

export function openAdmin(options: ClientOptions = {}): Client {
  return new Client(URL_OF_BROKER, { timing: TIMING, token: () => logIn(), ...options });
}

/** A new program. */
export async function makeProgram(admin: Client, more: Record<string, unknown> = {}): Promise<string> {
  const body = { id: `p-${newId()}`, name: "A program", ...more };
  return (await admin.request("POST", "/programs", { body })).id;
}

/** Publishes so many events, numbered in their metadata from `first`. */
export async function publish(
  admin: Client,
  programId: string,
  count: number,
  first = 0,
): Promise<ProgramEvent[]> {
  const numbers = Array.from({ length: count }, (_, index) => first + index);
  const body = { events: numbers.map((number) => ({ event: "Score#update", metadata: { number } })) };
  const made = await admin.request("POST", "/programs/{programId}/events", { path: { programId }, body });
  return "events" in made ? made.events : [made];
}

/** Asks a poll, `winner`; returns the id of its event. */
export async function askPoll(admin: Client, programId: string, more: object = {}): Promise<string> {
  const metadata = { title: "Who wins?", measureName: "winner", options: ["Home", "Away"], ...more };
  const body = { event: "Poll#show", metadata };
  const made = await admin.request("POST", "/programs/{programId}/events", { path: { programId }, body });
  return (made as { id: string }).id;
}

/** The numbers of what a subscription hands out, up to and with `last`. */
export async function readNumbers(events: AsyncIterable<ProgramEvent>, last: number): Promise<number[]> {
  const numbers: number[] = [];
  for await (const { metadata } of events) {
    numbers.push(metadata.number as number);
    if (metadata.number === last) break;
  }
  return numbers;
}

/** Waits until a condition holds, which is looked at again after a pause. */
export async function until(
  holds: () => unknown | Promise<unknown>,
  whatFor: string | (() => string),
  ms = 60_000,
  pauseMs = 50,
): Promise<void> {
  for (const end = Date.now() + ms; !(await holds()); ) {
    if (Date.now() > end)
      throw new Error(`waited in vain for ${typeof whatFor === "string" ? whatFor : whatFor()}`);
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}

const PAGE =
  '<!doctype html><meta charset="utf-8"><title>overlay</title><div id="app"></div><script src="/onair-broker.min.js"></script>';
const TYPES: Record<string, string> = { ".js": "text/javascript", ".html": "text/html" };

/**
 * The worker's script, which reports each socket that it opens. Pages may cut its sockets, block new ones, and have
 * it hang, by a message on a channel of its name.
 */
const WORKER = `
  const Real = WebSocket;
  const open = new Set();
  let isBlocked = false;
  self.WebSocket = class extends Real {
    constructor(url) {
      super(isBlocked ? "ws://127.0.0.1:1/" : url);
      open.add(this);
      fetch("/socket");
    }
  };
  new BroadcastChannel(self.name).onmessage = ({ data }) => {
    if (data.hang) {
      const request = new XMLHttpRequest();
      request.open("GET", "/never", false);
      request.send();
    }
    isBlocked = data.isBlocked;
    for (const each of open) each.close();
  };
  importScripts("/worker.js");
`;

export interface Pages {
  url: string;
  /** How many sockets workers have opened. */
  sockets: number;
  /** How many workers hang. */
  hanging: number;
  close(): void;
}

/** Serves the built files and an overlay's page. */
export async function servePages(): Promise<Pages> {
  const texts: Record<string, string> = {
    "/": PAGE,
    "/counted-worker.js": WORKER,
    "/silent-worker.js": "",
    "/socket": "",
  };
  const server = createServer(async (request, reply) => {
    const path = new URL(request.url as string, "http://x").pathname;
    if (path === "/socket") pages.sockets++;
    if (path === "/never") return void pages.hanging++;
    try {
      const file = path.startsWith("/test/") ? join(ROOT, ".build", path) : join(ROOT, "dist", path);
      const body = texts[path] ?? (await readFile(file));
      reply.setHeader("Content-Type", TYPES[extname(path) || ".html"] ?? "application/octet-stream");
      reply.end(body);
    } catch {
      reply.writeHead(404).end();
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  const pages = { url: `http://127.0.0.1:${port}/`, sockets: 0, hanging: 0, close };
  return pages;
}

/** What the package's own flags lack of a browser is left as it is: origins are checked, pages have processes. */
const FLAGS = ["--no-sandbox", "--disable-gpu"];

/** Chromium from its npm package, with the libraries that it brings. Now and then it crashes while it starts. */
export async function openBrowser(env = process.env): Promise<Browser> {
  const executablePath = await serverless.executablePath();
  const options = { executablePath, args: FLAGS, headless: true, env: env as Record<string, string> };
  return chromium.launch(options).catch((error) => {
    if (!String(error).includes("SIGSEGV")) throw error;
    return chromium.launch(options);
  });
}

/**
 * Runs before the page's own scripts: sockets that a test can cut, block, deafen, and make ask for no signs of life,
 * and clocks that it can set.
 */
export const INIT = `
  const sockets = (window.sockets = { open: new Set(), made: 0, messages: 0, isBlocked: false, isDeaf: false, isUnwatched: false });
  sockets.cut = () => { for (const each of sockets.open) each.close(); };
  const Real = window.WebSocket;
  window.WebSocket = class extends Real {
    constructor(url) {
      super(sockets.isBlocked ? "ws://127.0.0.1:1/" : sockets.isUnwatched ? url.replace("alive=true", "") : url);
      sockets.made++;
      sockets.open.add(this);
      super.addEventListener("close", () => sockets.open.delete(this));
    }
    set onmessage(handle) { super.onmessage = handle && ((message) => { sockets.messages++; sockets.isDeaf || handle(message); }); }
    send(text) { if (!sockets.isDeaf) super.send(text); }
  };
  let aheadMs = 0;
  const now = Date.now;
  Date.now = () => now() + aheadMs;
  window.setAhead = (ms) => { aheadMs = ms; };
`;

/** A page of an overlay that failed nowhere by itself. */
export async function openPage(context: Browser | BrowserContext, url: string, init = INIT): Promise<Page> {
  const page = await context.newPage();
  await page.addInitScript(init);
  await page.goto(url);
  return page;
}

/** The page's own script with more after what every page runs first. */
export function initWith(more: string): string {
  return `${INIT}\n${more}`;
}

declare const OnAir: typeof OnAirModule;

/** Follows a program in a page; what it hears is in `window.heard`. */
export async function follow(
  page: Page,
  programId: string,
  options: Record<string, unknown> = {},
): Promise<void> {
  await page.evaluate(
    async ({ url, programId, options, timing }) => {
      const scope = window as any;
      scope.heard = [];
      scope.states = [];
      scope.client = new OnAir.Client(url, { timing, ...options });
      scope.client.addEventListener("state", () => scope.states.push(scope.client.state));
      const subscription = scope.client.subscribe(programId);
      (async () => {
        for await (const event of subscription) scope.heard.push(event.metadata.number);
      })().catch((error) => {
        scope.failed = `${error.name}: ${error.message}`;
      });
      await subscription.ready;
    },
    { url: URL_OF_BROKER, programId, options, timing: TIMING },
  );
}

/** Waits until a page has heard an event, and returns all that it has heard. */
export async function hear(page: Page, last: number): Promise<number[]> {
  await page.waitForFunction((number) => (window as any).heard.includes(number), last, { timeout: 60_000 });
  return page.evaluate(() => (window as any).heard);
}

export const upTo = (count: number) => Array.from({ length: count }, (_, index) => index);
