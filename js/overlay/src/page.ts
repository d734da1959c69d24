/**
 * The page `/overlay/`: finds out where it runs, and is driven by its URL, by the host's calls, or by both.
 *
 * A browser, OBS and vMix show what the program says at once. SPX and CasparCG call `update`, `play`, `stop` and
 * `next` as globals: there nothing is seen before `play`. CasparCG's command `PLAY [HTML]` calls nothing at all, so
 * that half a second without `update` means that nobody will.
 */
import { parseConfig, parseGraphics } from "./config.js";
import { findHost, type HostWindow, parseData } from "./hosts.js";
import { Live, type LiveState, parseBroker, portraitOf } from "./live.js";
import { Overlay } from "./overlay.js";
import { type Fields, fields, number, text } from "./values.js";

const PATIENCE_MS = 500;
const CALLS = ["update", "play", "stop", "next"] as const;
type Call = (typeof CALLS)[number];

type Page = HostWindow &
  Record<Call, (data?: unknown) => void> & {
    /** Calls that came before this script: those of the page for SPX. */
    onairCalls?: [Call, unknown?][];
  };

const page = window as unknown as Page;
const host = findHost(page);
const query = new URLSearchParams(location.search);
const stage = document.createElement("onair-overlay");
document.body.append(stage);
const overlay = new Overlay(stage);
let live: Live | undefined;
let isLed = host === "spx" || query.get("control") === "host";
/** What the URL says, and over it what the host has said. */
let wanted: Fields = {
  broker: new URL(import.meta.url).origin,
  revision: "latest",
  ...Object.fromEntries(query),
  // A fragment stays in the browser: no server and no log sees it.
  token: new URLSearchParams(location.hash.slice(1)).get("token") ?? "",
};

/** Follows what is wanted, unless it is followed already. */
function connect(): void {
  const source = {
    broker: parseBroker(wanted.broker),
    program: text(wanted.program),
    project: text(wanted.project),
    revision: text(wanted.revision) || "latest",
    token: typeof wanted.token === "string" ? wanted.token : "",
    delayMs: number(wanted.delay),
  };
  overlay.only = "graphics" in wanted ? parseGraphics(wanted.graphics) : undefined;
  if (!source.program || !source.broker) return;
  if (live && JSON.stringify(live.source) === JSON.stringify(source)) return;
  live?.close();
  live = new Live(overlay, source, tell);
}

/** For whoever looks at the page, and for nobody on air. */
function tell(state: LiveState, why?: unknown): void {
  document.documentElement.dataset.state = state;
  if (why) console.warn("overlay:", String(why));
}

const calls: Record<Call, (data?: unknown) => void> = {
  update(data) {
    if (!overlay.isPlaying) isLed = true;
    const given = parseData(data);
    wanted = { ...wanted, ...given };
    const { name, title } = given;
    if (name !== undefined || title !== undefined) overlay.give("LowerThird#show", { name, title });
    connect();
  },
  play() {
    overlay.play();
  },
  stop() {
    overlay.stop();
  },
  next() {
    overlay.next();
  },
};

document.documentElement.dataset.host = host;
const before = page.onairCalls ?? [];
for (const name of CALLS) page[name] = calls[name];
for (const [name, data] of before) calls[name]?.(data);

/** A page that frames the overlay may say where its video is, so that graphics come with it. */
function reposition(told: Fields): void {
  if (!live) return;
  const positionMs = number(told.positionMs);
  const atMs = performance.now();
  const rate = told.isPlaying === false ? 0 : 1;
  const position = () => positionMs && positionMs + rate * (performance.now() - atMs);
  if (live.position && positionMs) live.position = position;
  else live.reposition(positionMs ? position : undefined);
}

/** The dashboard shows what is not published yet: it gives content and events, and never its token. */
function preview(told: Fields): void {
  if (live) return; // what follows a program by itself is on air
  const { account, content, counts } = told;
  overlay.portrait = (photo, portrait) => portraitOf(location.origin, text(account), photo, portrait);
  if ("content" in told) overlay.configure(parseConfig(content));
  if (told.isNew) overlay.reset();
  for (const event of Array.isArray(told.events) ? told.events.map(fields) : []) {
    overlay.apply({
      id: text(event.id),
      event: text(event.event),
      timestamp: number(event.timestamp) ?? Date.now(),
      metadata: fields(event.metadata),
    });
  }
  if (counts) {
    const { contextId, isDeclared, results } = fields(counts);
    overlay.count(contextId, isDeclared, fields(results));
  }
}

window.addEventListener("message", ({ source, origin, data }: MessageEvent) => {
  const told = fields(data);
  if (source !== window.parent) return;
  if (told.type === "onair:position") reposition(told);
  // Anybody may frame the page; only pages of this broker put something into it.
  if (told.type === "onair:preview" && origin === location.origin) preview(told);
});

connect();
if (host !== "casparcg") {
  if (!isLed) overlay.play();
} else {
  // CasparCG's calls come once the page is loaded, those of `CG ADD` all together.
  window.addEventListener("load", () => {
    setTimeout(() => {
      if (!isLed) overlay.play();
    }, PATIENCE_MS);
  });
}
