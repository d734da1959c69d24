// One page with the JavaScript SDK, and what it takes: `node --expose-gc page.mjs GATEWAY`, the URL of a WebSocket.
//
// Says {"ready":true} and answers each line of its input with one of JSON:
//   idle S      frames of a page without a client over S seconds, and the CPU seconds that this took of whom
//   busy S      {"ready":true} when a page follows `bench`; then the same, and the events that it has shown
//   bare S      the same of a page that has the browser's WebSocket and no client
//   beside S    {"ready":true} when a page without a client is there; then its frames
//   heap N      bytes of heap a subscription, of N programs (`bench-0` …) and of N to one, in Node and in Chromium
import { readFileSync } from "node:fs";
import { Client } from "../../js/client/dist/index.js";
import { lines, openBrowser, serve, tell, WebSocket } from "./browser.mjs";
import "./work.js";

const FRAME_MS = 1000 / 60;

const pages = await serve(process.argv[2]);
const browser = await openBrowser();
const system = await browser.newBrowserCDPSession();

/** CPU seconds so far of this process, of pages, of the rest of the browser, and of all processes of the machine. */
async function readCpu() {
  const { processInfo } = await system.send("SystemInfo.getProcessInfo");
  const sum = (isCounted) =>
    processInfo.filter(({ type }) => isCounted(type)).reduce((total, { cpuTime }) => total + cpuTime, 0);
  const { user, system: inKernel } = process.cpuUsage();
  // Of all that is told in hundredths of a second, what waits is no work.
  const [, inUser, nice, kernel, , , interrupts, soft] = readFileSync("/proc/stat", "utf8").split(/\s+/).map(Number);
  return {
    driver: (user + inKernel) / 1e6,
    page: sum((type) => type === "renderer"),
    browser: sum((type) => type !== "renderer"),
    machine: (inUser + nice + kernel + interrupts + soft) / 100,
  };
}

/** What a page draws and how busy it is in so many seconds. */
async function measureFrames(page, seconds) {
  const devtools = await page.context().newCDPSession(page);
  // Of the thread's own clock: a processor that it waits for is no work.
  await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
  const read = async () => {
    const { metrics } = await devtools.send("Performance.getMetrics");
    return Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
  };
  const cpuBefore = await readCpu();
  const before = await read();
  const times = await page.evaluate((ms) => work.countFrames(ms), seconds * 1000);
  const after = await read();
  const cpuAfter = await readCpu();
  const intervals = times.slice(1).map((time, index) => time - times[index]);
  const lasted = (times.at(-1) - times[0]) / 1000;
  return {
    frames_per_s: intervals.length / lasted,
    dropped: intervals.reduce((sum, each) => sum + Math.max(0, Math.round(each / FRAME_MS) - 1), 0),
    longest_ms: Math.max(...intervals),
    main_thread_share: (after.TaskDuration - before.TaskDuration) / lasted,
    cpu_s: Object.fromEntries(Object.entries(cpuAfter).map(([who, s]) => [who, s - cpuBefore[who]])),
  };
}

async function openPage() {
  const page = await browser.newPage();
  await page.goto(pages.url);
  return page;
}

async function showEvents(seconds, show) {
  const page = await openPage();
  await page.evaluate(show, pages.url);
  tell({ ready: true });
  const frames = await measureFrames(page, seconds);
  tell({ ...frames, ...(await settle(page)) });
  await page.close();
}

const commands = {
  async idle(seconds) {
    const page = await openPage();
    tell(await measureFrames(page, seconds));
    await page.close();
  },
  async beside(seconds) {
    const page = await openPage();
    tell({ ready: true });
    tell(await measureFrames(page, seconds));
    await page.close();
  },
  busy: (seconds) => showEvents(seconds, (url) => work.show(url, "bench")),
  bare: (seconds) => showEvents(seconds, (url) => work.showBare(url, "bench")),
  async heap(count) {
    const sizes = {};
    const inNode = async () => {
      for (let round = 0; round < 5; round++) {
        global.gc();
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      return process.memoryUsage().heapUsed;
    };
    sizes.node = await work.weigh({ Client: NodeClient }, pages.url, count, inNode);
    const page = await openPage();
    const devtools = await page.context().newCDPSession(page);
    await page.exposeFunction("heapBytes", async () => {
      for (let round = 0; round < 3; round++) await devtools.send("HeapProfiler.collectGarbage");
      const { usedSize, embedderHeapUsedSize } = await devtools.send("Runtime.getHeapUsage");
      return usedSize + embedderHeapUsedSize; // of V8 and of the page's own objects
    });
    sizes.chromium = await page.evaluate(([url, many]) => work.weigh(OnAir, url, many, heapBytes), [pages.url, count]);
    await page.close();
    tell(sizes);
  },
};

/** Node 20 has no WebSocket of its own. */
class NodeClient extends Client {
  constructor(url) {
    super(url, { WebSocket });
  }
}

/** What the page has shown, once nothing has come for half a second. */
async function settle(page) {
  for (let before = -1; ; ) {
    const shown = await page.evaluate(() => shown);
    if (shown.events === before) return shown;
    before = shown.events;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

tell({ ready: true });
for await (const line of lines) {
  const [name, value] = line.split(" ");
  await commands[name](Number(value));
}
await browser.close();
pages.close();
process.exit();
