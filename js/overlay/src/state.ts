/**
 * What is on air, made from events alone. No I/O.
 *
 * A component is shown by `#show`, changed by `#update` and taken out by `#hide`; docs/overlays.md lists the events
 * and their metadata. Of the lower thirds that are on, the one that was shown last is seen. Events of other
 * components mean nothing here.
 */
import { measureOf } from "./measure.js";
import { type Fields, fields, number, text, timeMs } from "./values.js";

/** As much of a program's event as graphics need. */
export interface Told {
  id: string;
  event: string;
  /** When it was, in milliseconds since 1970. */
  timestamp: number;
  metadata: Fields;
}

export interface Side {
  /** The short name, such as `NOR`. */
  code: string;
  goals: string;
}

export type BannerKind =
  | "person"
  | "goal"
  | "yellowCard"
  | "redCard"
  | "substitution"
  | "title"
  | "winner"
  | "lineup";

/** A lower third. */
export interface Banner {
  kind: BannerKind;
  /** Set anew by each `#show`, so that the same name twice is animated twice. */
  id: string;
  name: string;
  line: string;
  team: string;
  /** The source of a photograph, or the URL of a finished portrait. */
  photo: string;
  portrait: string;
  shownMs: number;
  /** How long it stays by its own word, in seconds; 0 when it does not say. */
  seconds: number;
}

export interface Poll {
  id: string;
  /** The name under which its votes are counted; empty when it declares none. */
  measure: string;
  title: string;
  options: string[];
  /** When votes are no longer taken, in milliseconds since 1970; infinity when it does not say. */
  closesMs: number;
  /** Votes by option. */
  counts: number[];
}

/** What the referee's clock says; it runs on from what it said at `atMs`. */
export interface Clock {
  text: string;
  isRunning: boolean;
  atMs: number;
}

const NOBODY: Side = { code: "", goals: "0" };
const NO_CLOCK: Clock = { text: "", isRunning: false, atMs: 0 };
const MOST_OPTIONS = 8;
const BANNERS = new Set(["Goal", "Card", "Substitution", "Title", "Winner", "Lineup", "LowerThird"]);

export class State {
  isScoreOn = false;
  home: Side = { ...NOBODY };
  away: Side = { ...NOBODY };
  clock: Clock = { ...NO_CLOCK };
  poll: Poll | undefined;
  isPollOn = false;
  readonly #banners = new Map<string, Banner>();

  /** The lower third that is to be seen. */
  get banner(): Banner | undefined {
    return [...this.#banners.values()].pop();
  }

  /** Takes the next event. */
  apply(told: Told): void {
    const [component = "", action = ""] = told.event.split("#");
    const metadata = fields(told.metadata);
    if (component === "Score") this.#score(action, metadata);
    else if (component === "Clock") this.#tick(action, metadata, told.timestamp);
    else if (component === "Poll") this.#ask(action, metadata, told);
    else if (BANNERS.has(component)) this.#show(component, action, metadata, told);
    else if (told.event === "Overlay#clear") this.clear();
  }

  /** Takes the counts of a poll; those of another one than is asked, or of what it does not declare, mean nothing. */
  count(contextId: unknown, isDeclared: unknown, results: Fields): void {
    const { poll } = this;
    if (!poll || contextId !== poll.id || isDeclared !== true) return;
    poll.counts = poll.options.map((_, index) => Math.max(0, number(results[String(index)]) ?? 0));
  }

  /** Takes out the lower third that is seen, whoever showed it. */
  dismiss(): void {
    const shown = [...this.#banners.keys()].pop();
    if (shown !== undefined) this.#banners.delete(shown);
  }

  /** Forgets everything. */
  reset(): void {
    this.clear();
    this.home = { ...NOBODY };
    this.away = { ...NOBODY };
    this.clock = { ...NO_CLOCK };
    this.poll = undefined;
  }

  /** Takes everything out. */
  clear(): void {
    this.isScoreOn = false;
    this.isPollOn = false;
    this.#banners.clear();
  }

  #score(action: string, metadata: Fields): void {
    if (action === "hide") this.isScoreOn = false;
    if (action === "show") this.isScoreOn = true;
    if (action !== "show" && action !== "update") return;
    this.home = side(this.home, metadata.homeTeam, metadata.home);
    this.away = side(this.away, metadata.awayTeam, metadata.away);
  }

  #tick(action: string, metadata: Fields, atMs: number): void {
    if (action === "hide") this.clock = { text: "", isRunning: false, atMs };
    if (!["start", "update", "stop", "show"].includes(action)) return;
    const isRunning = action === "start" || (action === "update" && this.clock.isRunning);
    this.clock = { text: text(metadata.clock) || this.clock.text, isRunning, atMs };
  }

  #ask(action: string, metadata: Fields, told: Told): void {
    if (action === "hide") this.isPollOn = false;
    if (action === "show") {
      const options = optionsOf(metadata.options).slice(0, MOST_OPTIONS);
      const poll: Poll = {
        id: told.id,
        measure: measureOf(metadata),
        title: text(metadata.title),
        options: options.map(label),
        closesMs: closing(metadata.closes) ?? Number.POSITIVE_INFINITY,
        counts: options.map((option) => number(fields(option).votes) ?? 0),
      };
      this.poll = poll;
      this.isPollOn = poll.options.length > 0;
    }
    if (action === "update" && this.poll) {
      this.poll.title = text(metadata.title) || this.poll.title;
      this.poll.closesMs = closing(metadata.closes) ?? this.poll.closesMs;
    }
  }

  #show(component: string, action: string, metadata: Fields, told: Told): void {
    const before = this.#banners.get(component);
    if (action === "hide") this.#banners.delete(component);
    else if (action === "show") {
      this.#banners.delete(component); // what is shown last is last in the map
      this.#banners.set(component, banner(component, metadata, told));
    } else if (action === "update" && before) {
      this.#banners.set(component, {
        ...banner(component, { ...plain(before), ...metadata }, told),
        id: before.id,
      });
    }
  }
}

function side(before: Side, team: unknown, goals: unknown): Side {
  return { code: text(team) || before.code, goals: text(goals) || before.goals };
}

function plain({ name, line, team, photo, portrait }: Banner): Fields {
  return { name, title: line, team, photo, portrait };
}

function banner(component: string, metadata: Fields, told: Told): Banner {
  const team = text(metadata.team);
  const shared = {
    id: told.id,
    team,
    photo: typeof metadata.photo === "string" ? metadata.photo : "",
    portrait: typeof metadata.portrait === "string" ? metadata.portrait : "",
    shownMs: told.timestamp,
    seconds: Math.max(0, number(metadata.seconds) ?? 0),
  };
  const player = text(metadata.player);
  switch (component) {
    case "Goal":
      return {
        ...shared,
        kind: "goal",
        name: player || team,
        line: player ? team : "",
        ...clocked(metadata),
      };
    case "Card": {
      const kind = metadata.colour === "red" ? "redCard" : "yellowCard";
      return { ...shared, kind, name: player || team, line: player ? team : "" };
    }
    case "Substitution":
      return { ...shared, kind: "substitution", name: text(metadata.in), line: text(metadata.out) };
    case "Title":
      return { ...shared, kind: "title", name: text(metadata.text), line: text(metadata.venue) };
    case "Winner":
      return { ...shared, kind: "winner", name: team, line: score(metadata.score) };
    case "Lineup":
      return { ...shared, kind: "lineup", name: team, line: names(metadata.players) };
    default:
      return { ...shared, kind: "person", name: text(metadata.name), line: text(metadata.title) };
  }
}

function clocked(metadata: Fields): { line: string } | undefined {
  const [player, team, clock] = [metadata.player, metadata.team, metadata.clock].map(text);
  return clock ? { line: [player ? team : "", clock].filter(Boolean).join(" · ") } : undefined;
}

/** The options of which one can be chosen: none of what is no list, or a longer one than the broker takes. */
function optionsOf(value: unknown): unknown[] {
  return Array.isArray(value) && value.length <= 1_000 ? value : [];
}

/** An option's text; its index where it has none, as in the broker's report. */
function label(option: unknown, index: number): string {
  const isRecord = typeof option === "object" && option !== null && !Array.isArray(option);
  const own = isRecord ? fields(option).label : option;
  return typeof own === "string" || typeof own === "number" ? text(own) : String(index);
}

/** When a poll closes: undefined where nothing is said, and long ago for what cannot be read, as the broker has it. */
function closing(value: unknown): number | undefined {
  return value == null || value === "" ? undefined : (timeMs(value) ?? Number.NEGATIVE_INFINITY);
}

function score(value: unknown): string {
  return Array.isArray(value) ? value.slice(0, 2).map(text).join(" – ") : text(value);
}

function names(value: unknown): string {
  const players = Array.isArray(value)
    ? value.slice(0, 11).map((player) => text(fields(player).name ?? player))
    : [];
  return text(players.map((name) => name.split(" ").pop()).join(" · "));
}

/** Percentages that add up to 100 (largest remainder), all 0 where there are no votes. */
export function percentages(counts: readonly number[]): number[] {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return counts.map(() => 0);
  const exact = counts.map((count) => (100 * count) / total);
  const whole = exact.map(Math.floor);
  const missing = 100 - whole.reduce((sum, share) => sum + share, 0);
  const order = exact.map((share, index) => [share - Math.floor(share), index] as const);
  order.sort(([one, first], [other, second]) => other - one || first - second);
  for (const [, index] of order.slice(0, missing)) whole[index] = (whole[index] as number) + 1;
  return whole;
}

/** The clock's text so many milliseconds after it was told: `44:50` is `45:02` twelve seconds later. */
export function clockText(clock: Clock, nowMs: number): string {
  const parts = /^(\d{1,3}):([0-5]\d)$/.exec(clock.text);
  if (!parts || !clock.isRunning) return clock.text;
  const passedS = Math.max(0, Math.floor((nowMs - clock.atMs) / 1000));
  const seconds = Number(parts[1]) * 60 + Number(parts[2]) + passedS;
  return `${String(Math.floor(seconds / 60)).padStart(2, "0")}:${String(seconds % 60).padStart(2, "0")}`;
}
