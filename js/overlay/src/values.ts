/**
 * What events and hosts bring, as values that can be shown.
 *
 * Metadata is free-form and comes from whoever may publish: everything is read by these functions, which bound
 * it, and shown as text, never as markup.
 */
export type Fields = Record<string, unknown>;

/** The longest text that is shown; a graphic has room for less. */
const MOST_CHARACTERS = 160;
/** Control characters, and those that turn the direction of what follows: one name must not turn the next. */
// eslint-disable-next-line no-control-regex
const UNSHOWN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]+/g;
const COLOUR = /^#(?:[0-9a-f]{3}|[0-9a-f]{6})$/i;

/** A record of fields; empty for what is none. */
export function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

/** A line of text: empty for what is neither a text nor a number, cut where it is too long to be read. */
export function text(value: unknown): string {
  if (typeof value !== "string" && typeof value !== "number") return "";
  // Cut before it is searched: metadata may be 64 KiB of one text.
  const shown = String(value)
    .slice(0, 4 * MOST_CHARACTERS)
    .replace(UNSHOWN, " ")
    .trim();
  const characters = Array.from(shown);
  return characters.length > MOST_CHARACTERS ? `${characters.slice(0, MOST_CHARACTERS).join("")}…` : shown;
}

/** A number, also one that was typed; undefined for what is none. */
export function number(value: unknown): number | undefined {
  const found = typeof value === "string" && value.trim() ? Number(value) : value;
  return typeof found === "number" && Number.isFinite(found) ? found : undefined;
}

/**
 * Milliseconds since 1970, of a number or of a time in ISO 8601, which is in UTC where it names no offset;
 * undefined for what is none.
 */
export function timeMs(value: unknown): number | undefined {
  const ms = number(value);
  // `Date.parse` alone would take much else for a time, and one without an offset for this machine's.
  if (ms !== undefined || typeof value !== "string" || !/^\d{4}-\d\d-\d\d/.test(value)) return ms;
  const found = Date.parse(/[T ][\d:.]+$/i.test(value) ? `${value}Z` : value);
  return Number.isNaN(found) ? undefined : found;
}

/** A number within bounds; `otherwise` for what is none. */
export function bounded(value: unknown, least: number, most: number, otherwise: number): number {
  return Math.min(most, Math.max(least, number(value) ?? otherwise));
}

/** A colour as `#rgb` or `#rrggbb`; undefined for anything else, so that no style can be smuggled in. */
export function colour(value: unknown): string | undefined {
  return typeof value === "string" && COLOUR.test(value) ? value.toLowerCase() : undefined;
}

/** One of a closed set; `otherwise` for anything else. */
export function oneOf<T extends string>(value: unknown, allowed: readonly T[], otherwise: T): T {
  return allowed.includes(value as T) ? (value as T) : otherwise;
}

/** The dark or the light ink that reads better on a colour (WCAG 2.2, relative luminance). */
export function inkOn(background: string): string {
  const hex = background.length === 4 ? background.replace(/[0-9a-f]/gi, "$&$&") : background;
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const share = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.22 ? "#0b1020" : "#ffffff";
}
