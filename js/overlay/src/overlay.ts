/**
 * The overlay: a stage of 1920 × 1080 in a shadow root, its graphics, and what they show.
 *
 * What changes is drawn once for all that came together, and not by animation frames: a page that OBS reports as
 * hidden has none, and must be right when it is seen again.
 */
import { type Config, type Graphic as Name, parseConfig } from "./config.js";
import { element } from "./dom.js";
import { useFonts } from "./fonts.js";
import type { Graphic, Look } from "./graphic.js";
import { LowerThird } from "./lower-third.js";
import { Poll } from "./poll.js";
import { Scoreboard } from "./scoreboard.js";
import { State, type Told } from "./state.js";
import styles from "./styles.css";
import { type Fields, inkOn, number } from "./values.js";

const WIDTH = 1920;
const HEIGHT = 1080;
const TICK_MS = 200; // a clock that shows seconds is at most so late

export interface OverlayOptions {
  /** The graphics of this overlay, whatever the configuration says. */
  only?: ReadonlySet<Name> | undefined;
  /** The URL of a player's portrait; empty where there is none. */
  portrait?: ((photo: string, portrait: string) => string) | undefined;
}

export class Overlay {
  config: Config = parseConfig(undefined);
  only: ReadonlySet<Name> | undefined;
  portrait: (photo: string, portrait: string) => string;
  /** The moment that the video shows, in milliseconds since 1970. */
  now: () => number = Date.now;
  readonly #state = new State();
  readonly #stage = element("stage");
  readonly #graphics: Graphic[];
  readonly #scoreboard = new Scoreboard();
  readonly #root: ShadowRoot;
  readonly #port: MessagePort;
  readonly #ticker: ReturnType<typeof setInterval>;
  readonly #resized: ResizeObserver;
  readonly #fontsCame = () => this.#refit();
  readonly #timers = new Set<ReturnType<typeof setTimeout>>();
  /** What a host gave by itself, so that it outlives a seek. */
  readonly #own = new Map<string, Told>();
  #isDue = false;
  #isHeld = false;
  #isPlaying = false;
  #isInstant = false;

  /** Builds it in `host`, which fills what it is to cover. Nothing is seen before `play`. */
  constructor(host: HTMLElement, options: OverlayOptions = {}) {
    this.only = options.only;
    this.portrait = options.portrait ?? (() => "");
    const again = (afterMs: number) => this.#later(afterMs);
    this.#graphics = [this.#scoreboard, new LowerThird(again), new Poll(again)];
    this.#stage.append(...this.#graphics.map((graphic) => graphic.root));
    this.#root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(styles);
    this.#root.adoptedStyleSheets = [sheet];
    this.#root.replaceChildren(this.#stage);
    useFonts(this.#fontsCame);
    this.#resized = new ResizeObserver(() => this.#scale(host));
    this.#resized.observe(host);
    this.#scale(host);
    const channel = new MessageChannel();
    channel.port1.onmessage = () => this.#draw();
    this.#port = channel.port2;
    this.#ticker = setInterval(() => this.#scoreboard.tick(this.#state, this.now()), TICK_MS);
    this.configure(this.config);
  }

  /** Takes a configuration. */
  configure(config: Config): void {
    this.config = config;
    const { style, classList } = this.#stage;
    classList.toggle("light", config.theme === "light");
    classList.toggle("rtl", config.direction === "rtl");
    this.#stage.dir = config.direction;
    style.setProperty("--accent", config.accent);
    style.setProperty("--on-accent", inkOn(config.accent));
    style.setProperty("--rest", config.theme === "light" ? "#8d97b3" : "#5d6a92");
    style.setProperty("--safe-x", `${(WIDTH * config.safeArea) / 100}px`);
    style.setProperty("--safe-y", `${(HEIGHT * config.safeArea) / 100}px`);
    if (config.panel) {
      style.setProperty("--panel", config.panel);
      style.setProperty("--ink", inkOn(config.panel));
    }
    this.#ask();
  }

  /** Takes a program's event. */
  apply(told: Told): void {
    this.#state.apply(told);
    this.#isHeld = false;
    this.#ask();
  }

  /** Takes what a host gives by itself, as an event of its own that is merged with what it gave before. */
  give(event: string, given: Fields): void {
    const before = this.#own.get(event);
    const metadata = { ...before?.metadata, ...given };
    const told = { id: `own ${JSON.stringify(metadata)}`, event, timestamp: this.now(), metadata };
    this.#own.set(event, told);
    this.#state.apply(told);
    this.#ask();
  }

  /** Takes the counts of a poll. */
  count(contextId: unknown, isDeclared: unknown, results: Fields): void {
    this.#state.count(contextId, isDeclared, results);
    this.#ask();
  }

  /** The poll that is asked, so that its counts can be read. */
  get poll(): { id: string; measure: string } | undefined {
    return this.#state.isPollOn ? this.#state.poll : undefined;
  }

  /** Begins anew: the events of another place come. What is seen stays until the first of them, or a second. */
  reset(): void {
    this.#state.reset();
    for (const told of this.#own.values()) this.#state.apply(told);
    this.#isHeld = true;
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      this.#isHeld = false;
      this.#ask();
    }, 1_000);
    this.#timers.add(timer);
  }

  get isPlaying(): boolean {
    return this.#isPlaying;
  }

  /** Lets everything come in that is on. */
  play(isInstant = false): void {
    this.#turn(true, isInstant);
  }

  /** Takes everything out until `play`. */
  stop(isInstant = false): void {
    this.#turn(false, isInstant);
  }

  /** Takes out the lower third, and where there is none the poll. */
  next(): void {
    if (this.#state.banner) this.#state.dismiss();
    else this.#state.isPollOn = false;
    this.#ask();
  }

  /** Draws what has changed now, without movement where `isInstant`. */
  flush(isInstant = false): void {
    this.#isInstant = isInstant;
    this.#draw();
  }

  /** Lets go of everything. */
  close(): void {
    clearInterval(this.#ticker);
    for (const timer of this.#timers) clearTimeout(timer);
    this.#resized.disconnect();
    document.fonts.removeEventListener("loadingdone", this.#fontsCame);
    this.#port.close();
    this.#root.replaceChildren();
  }

  #turn(isPlaying: boolean, isInstant: boolean): void {
    this.#isPlaying = isPlaying;
    this.#isInstant = isInstant;
    this.#ask();
  }

  #ask(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    this.#port.postMessage(0); // a timer would be throttled while the page is hidden
  }

  #later(afterMs: number): void {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      this.#ask();
    }, afterMs);
    this.#timers.add(timer);
  }

  #draw(): void {
    this.#isDue = false;
    if (this.#isHeld) return;
    for (const timer of this.#timers) clearTimeout(timer); // whoever still waits asks again
    this.#timers.clear();
    const look: Look = {
      config: this.config,
      nowMs: this.now(),
      isInstant: this.#isInstant,
      portrait: this.portrait,
    };
    this.#isInstant = false;
    const wanted = this.only ?? this.config.graphics;
    for (const graphic of this.#graphics) {
      graphic.draw(this.#state, look, this.#isPlaying && wanted.has(graphic.name));
    }
  }

  #refit(): void {
    for (const graphic of this.#graphics) graphic.refit();
  }

  /** Whatever the size, the stage is as high or as wide as it is designed for, and the other side has room. */
  #scale(host: HTMLElement): void {
    const width = number(host.clientWidth) || window.innerWidth || WIDTH;
    const height = number(host.clientHeight) || window.innerHeight || HEIGHT;
    const scale = Math.min(width / WIDTH, height / HEIGHT);
    const { style } = this.#stage;
    style.width = `${width / scale}px`;
    style.height = `${height / scale}px`;
    style.transform = `scale(${scale})`;
    this.#refit();
  }
}
