/** The samples of docs/javascript.md run: in Node, and where they need a page in a browser. */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { build } from "esbuild";
import * as index from "../../src/index.js";
import { newId } from "../../src/ids.js";
import {
  logIn,
  makeProgram,
  openAdmin,
  openBrowser,
  openPage,
  publish,
  servePages,
  URL_OF_BROKER,
  until,
} from "./world.js";

const ROOT = process.env.ONAIR_ROOT as string;
const PAGE = join(ROOT, "..", "..", "docs", "javascript.md");
const PROGRAM = `p-${newId()}`;
const PROJECT = `project-${newId()}`;

type Sample = { language: string; text: string };

async function readSamples(): Promise<Sample[]> {
  const text = await readFile(PAGE, "utf8");
  const found = [...text.matchAll(/```(js|jsx|html)\n(.*?)```/gs)];
  return found.map(([, language, body]) => ({
    language: language!,
    text: body!
      .replaceAll("http://demo.localhost:8000", URL_OF_BROKER)
      .replaceAll('"final"', JSON.stringify(PROGRAM))
      .replaceAll("football", PROJECT),
  }));
}

const AsyncFunction = (async () => {}).constructor as new (
  ...names: string[]
) => (...values: unknown[]) => Promise<void>;

/** Runs a sample with what it takes for granted; those that follow end when their client is closed. */
async function runSample(
  text: string,
  shown: unknown[],
  more: Record<string, unknown>,
): Promise<index.Client[]> {
  const clients: index.Client[] = [];
  class Client extends index.Client {
    constructor(...given: ConstructorParameters<typeof index.Client>) {
      super(...given);
      clients.push(this);
    }
  }
  const client = new Client(URL_OF_BROKER, { token: () => logIn() });
  const openShared = (_: string, url: string) => new Client(url); // Node has no SharedWorker
  const known = { ...index, Client, openShared };
  const body = text.replace(/^import (\{.*?\}) from ".*?";$/gm, "const $1 = known;");
  const kept = new Map<string, string>();
  const values: Record<string, unknown> = {
    known,
    show: (...what: unknown[]) => shown.push(...what),
    localStorage: {
      getItem: (key: string) => kept.get(key) ?? null,
      setItem: (key: string, value: string) => kept.set(key, value),
    },
    fetch: async () => new Response(await logIn()),
    fetchVisitor: () => `visitor-${newId()}`, // the poll of the samples takes any
    video: { startMs: Date.now() - 5_000, currentTime: 6 },
    ...more,
  };
  if (!/const client/.test(body)) values.client = client;
  new AsyncFunction(...Object.keys(values), `"use strict";${body}`)(...Object.values(values)).then(
    () => shown.push("done"),
    (error) => shown.push(error),
  );
  return clients;
}

test("every sample runs", { timeout: 100_000 }, async () => {
  const admin = openAdmin();
  await makeProgram(admin, { id: PROGRAM });
  await admin.call("createProject", { id: PROJECT, name: "Football" });
  const asked = { title: "Who wins?", measureName: "winner", options: ["Home", "Away"] };
  const body = { event: "Poll#show", metadata: asked };
  const poll = (await admin.request("POST", "/programs/{programId}/events", {
    path: { programId: PROGRAM },
    body,
  })) as { id: string };
  const samples = await readSamples();
  const scripts = samples.filter(({ language }) => language === "js");
  assert.ok(scripts.length >= 9, String(scripts.length));
  const runs = scripts.map(async ({ text }) => {
    const shown: unknown[] = [];
    const clients = await runSample(text, shown, { poll: poll.id });
    // All go on while something happens in the program.
    await until(() => shown.length > 0 || /events\.clear/.test(text), text);
    for (const each of clients) each.close();
    assert.deepEqual(
      shown.filter((each) => each instanceof Error),
      [],
      text,
    );
  });
  let number = 0;
  const playing = setInterval(() => {
    publish(admin, PROGRAM, 1, number++).catch(() => {});
    admin.call("storeValue", { projectId: PROJECT, metadata: { number } }).catch(() => {});
    admin.respond(PROGRAM, "winner", poll.id, 1, { visitorId: `visitor-${number}` }).catch(() => {});
  }, 200);
  try {
    await Promise.all(runs);
  } finally {
    clearInterval(playing);
  }

  const [browser, pages] = await Promise.all([openBrowser(), servePages()]);
  for (const { language, text } of samples) {
    if (language === "js") continue;
    const page = await openPage(browser, pages.url);
    if (language === "html") {
      await page.setContent(text.replace(/https:\/\/cdn[^"]*/, `${pages.url}onair-broker.min.js`));
    } else {
      const mount = `import { createRoot } from "react-dom/client"; import { Client } from "onair-broker";
        createRoot(document.querySelector("#app")).render(<Score client={new Client(${JSON.stringify(URL_OF_BROKER)})} />);`;
      const built = await build({
        stdin: { contents: text + mount, loader: "jsx", resolveDir: ROOT },
        alias: { "onair-broker/react": "./dist/react.js", "onair-broker": "./dist/index.js" },
        bundle: true,
        write: false,
        jsx: "automatic",
        define: { "process.env.NODE_ENV": '"production"' },
        logLevel: "error",
      });
      await page.addScriptTag({ content: built.outputFiles[0]!.text });
      await page.waitForSelector("b.live", { state: "attached" });
    }
    const metadata = { home: 7 };
    const path = { programId: PROGRAM };
    await admin.request("POST", "/programs/{programId}/events", {
      path,
      body: { event: "Score#update", metadata },
    });
    await page.waitForFunction(() => document.querySelector("#score, b")?.textContent === "7");
  }
  await browser.close();
  pages.close();
  admin.close();
});
