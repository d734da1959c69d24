// What the parts of the bench that run the JavaScript SDK share: pages, Chromium, and lines of JSON.
import { createReadStream } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const SDK = join(import.meta.dirname, "../../js/client");
const require = createRequire(join(SDK, "package.json"));
const FILES = { "/sdk.js": join(SDK, "dist/onair-broker.min.js"), "/work.js": join(import.meta.dirname, "work.js") };
const PAGE = '<!doctype html><title>bench</title><p id="text"></p><script src="/sdk.js"></script><script src="/work.js"></script>';

/** The class of the package `ws`, for Node 20. */
export const { WebSocket } = require("ws");

/** Serves an empty page with the SDK and `work.js`, and answers `GET /connect` with `gateway` where that is given. */
export async function serve(gateway) {
  const server = createServer((request, reply) => {
    const { pathname } = new URL(request.url, "http://page");
    if (pathname === "/api/v1/connect") {
      reply.setHeader("Content-Type", "application/json");
      return reply.end(JSON.stringify({ url: gateway, servers: [], retryAfterMs: 0 }));
    }
    if (pathname === "/") {
      reply.setHeader("Content-Type", "text/html");
      return reply.end(PAGE);
    }
    if (!FILES[pathname]) return reply.writeHead(404).end();
    reply.setHeader("Content-Type", "text/javascript");
    createReadStream(FILES[pathname]).pipe(reply);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

/** The Chromium that the SDK's tests run in. */
export async function openBrowser() {
  const { default: serverless } = await import(require.resolve("@sparticuz/chromium"));
  const { chromium } = require("playwright-core");
  const args = ["--no-sandbox", "--disable-gpu"];
  return chromium.launch({ executablePath: await serverless.executablePath(), args, headless: true });
}

/** The lines of standard input. */
export const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Says something to the bench. */
export const tell = (what) => console.log(JSON.stringify(what));
