/** How the graphics look and where they stand: the part `overlay` of a published revision's content. */
import { bounded, colour, type Fields, fields, oneOf, text } from "./values.js";

export const GRAPHICS = ["scoreboard", "lowerThird", "poll"] as const;
export type Graphic = (typeof GRAPHICS)[number];

const POSITIONS = ["top-left", "top-right", "bottom-left", "bottom-right", "left", "right"] as const;
export type Position = (typeof POSITIONS)[number];

export interface Team {
  name: string;
  colour: string | undefined;
}

export interface Config {
  graphics: ReadonlySet<Graphic>;
  positions: Record<Graphic, Position>;
  theme: "dark" | "light";
  direction: "ltr" | "rtl";
  accent: string;
  /** Behind the text; undefined for that of the theme. */
  panel: string | undefined;
  /** How far the video is behind the events, in milliseconds. */
  delayMs: number;
  /** How much of each side stays empty, in per cent; EBU R 95 keeps graphics out of 5. */
  safeArea: number;
  /** How long a lower third stays that nobody hides, in seconds; 0 for ever. */
  lowerThirdS: number;
  /** By the name or the short name that events have. */
  teams: ReadonlyMap<string, Team>;
  labels: Record<Label, string>;
  /** For numbers, such as `de-CH`. */
  locale: string;
}

const LABELS = {
  goal: "Goal",
  yellowCard: "Yellow card",
  redCard: "Red card",
  substitution: "Substitution",
  winner: "Winner",
  lineup: "Starting eleven",
  poll: "Vote now",
  closed: "Result",
  votes: "votes",
};
export type Label = keyof typeof LABELS;

/** The configuration of a revision's content; what is absent or wrong is as if it were not said. */
export function parseConfig(content: unknown): Config {
  const overlay = fields(fields(content).overlay);
  const colours = fields(overlay.colors);
  return {
    graphics: parseGraphics(overlay.graphics),
    positions: {
      scoreboard: position(overlay.scoreboard, "top-left"),
      lowerThird: position(overlay.lowerThird, "bottom-left"),
      poll: position(overlay.poll, "right"),
    },
    theme: oneOf(overlay.theme, ["dark", "light"], "dark"),
    direction: oneOf(overlay.direction, ["ltr", "rtl"], "ltr"),
    accent: colour(colours.accent) ?? "#e6193c",
    panel: colour(colours.panel),
    delayMs: bounded(overlay.delayMs, 0, 3_600_000, 0),
    safeArea: bounded(overlay.safeArea, 0, 15, 5),
    lowerThirdS: bounded(fields(overlay.lowerThird).seconds, 0, 3_600, 0),
    teams: parseTeams(overlay.teams),
    labels: parseLabels(fields(overlay.labels)),
    locale: locale(overlay.locale),
  };
}

/** Which graphics are wanted: names in a list or between commas; all where none is named. */
export function parseGraphics(value: unknown): ReadonlySet<Graphic> {
  const named = typeof value === "string" ? value.split(",") : Array.isArray(value) ? value : [];
  const known = named.map((name) => {
    const plain = String(name).replace(/[^a-z]/gi, "");
    return GRAPHICS.find((graphic) => graphic.toLowerCase() === plain.toLowerCase());
  });
  const found = known.filter((graphic): graphic is Graphic => graphic !== undefined);
  return new Set(found.length ? found : GRAPHICS);
}

function position(of: unknown, otherwise: Position): Position {
  return oneOf(fields(of).position, POSITIONS, otherwise);
}

function parseTeams(value: unknown): ReadonlyMap<string, Team> {
  return new Map(
    Object.entries(fields(value))
      .slice(0, 200)
      .map(([key, team]) => {
        const { name, color } = fields(team) as Fields;
        return [key, { name: text(name), colour: colour(color) }];
      }),
  );
}

function parseLabels(given: Fields): Record<Label, string> {
  const labels = { ...LABELS };
  for (const name of Object.keys(LABELS) as Label[]) labels[name] = text(given[name]) || labels[name];
  return labels;
}

function locale(value: unknown): string {
  try {
    return Intl.getCanonicalLocales(text(value) || "en")[0] ?? "en";
  } catch {
    return "en";
  }
}
