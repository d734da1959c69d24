// Viewers with the JavaScript SDK whose sockets are cut: `node disruption.mjs OPTIONS`, a JSON object with `url`,
// `program`, `everyMs`, `awayMs`, `patienceMs`, how many in Node (`node`), in each page (`each`) and pages (`tabs`).
//
// It says {"ready":n} when all follow, begins to cut at a line on its input, and reports at the next one, which
// has the number of messages that were published.
import { Client } from "../../js/client/dist/index.js";
import { lines, openBrowser, serve, tell, WebSocket } from "./browser.mjs";
import "./work.js";

const options = JSON.parse(process.argv[2]);

function share(sorted, of) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(of * sorted.length))] : 0;
}

/** One report of many. */
function join(all) {
  const sum = (name) => all.reduce((before, each) => before + each[name], 0);
  const sorted = (name) => all.flatMap((each) => each[name]).sort((one, other) => one - other);
  const counts = ["delivered", "missing", "doubled", "disordered", "unrecovered", "cuts"];
  const [replays, live] = [sorted("replays"), sorted("live")];
  return {
    ...Object.fromEntries(counts.map((name) => [name, sum(name)])),
    viewers: all.length,
    replayed: replays.length,
    replay_p50_ms: share(replays, 0.5),
    replay_p99_ms: share(replays, 0.99),
    replay_max_ms: share(replays, 1),
    live_p50_ms: share(live, 0.5),
    live_p99_ms: share(live, 0.99),
  };
}

const pages = await serve();
const browser = options.tabs ? await openBrowser() : undefined;
const tabs = [];
for (let number = 0; number < options.tabs; number++) {
  const tab = await browser.newPage();
  await tab.goto(pages.url);
  await tab.evaluate(async (given) => {
    globalThis.viewers = new work.Viewers(OnAir, WebSocket, given.each, given);
    await viewers.ready();
  }, options);
  tabs.push(tab);
}
const viewers = new work.Viewers({ Client }, WebSocket, options.node, options);
await viewers.ready();
tell({ ready: options.node + tabs.length * options.each });

await lines.next();
viewers.beginToCut();
await Promise.all(tabs.map((tab) => tab.evaluate(() => viewers.beginToCut())));

const published = Number((await lines.next()).value);
const ask = [published, options.patienceMs];
const inTabs = tabs.map((tab) => tab.evaluate(([count, ms]) => viewers.report(count, ms), ask));
const [inNode, ...reports] = await Promise.all([viewers.report(...ask), ...inTabs]);
tell({ node: join(inNode), tabs: join(reports.flat()) });
await browser?.close();
pages.close();
process.exit();
