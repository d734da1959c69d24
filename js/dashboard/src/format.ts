/** Numbers and times as people read them. */

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const date = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

export const count = (value: number) => whole.format(value);
export const compact = (value: number) =>
  value < 10_000 ? whole.format(Math.round(value)) : short.format(value);
export const minuteOf = (ms: number) => minute.format(ms);
export const dayOf = (ms: number) => day.format(ms);
export const timeOfDay = (ms: number) =>
  `${clock.format(ms)}.${String(Math.floor(ms) % 1000)
    .padStart(3, "0")
    .slice(0, 1)}`;

export function dateTime(text: string | number | null | undefined): string {
  if (text == null || text === "") return "–";
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? "–" : `${date.format(at)} ${minute.format(at)}`;
}

/**
 * Milliseconds since 1970, of a number, also as a text, or of a time in ISO 8601, which is in UTC where it names
 * no offset; undefined for what is none.
 */
export function timeMs(value: unknown): number | undefined {
  const isText = typeof value === "string" && value.trim() !== "";
  const ms = isText || typeof value === "number" ? Number(value) : Number.NaN;
  if (Number.isFinite(ms)) return ms;
  // `Date.parse` alone would take much else for a time, and one without an offset for this machine's.
  if (!isText || !/^\d{4}-\d\d-\d\d/.test(value)) return undefined;
  const found = Date.parse(/[T ][\d:.]+$/i.test(value) ? `${value}Z` : value);
  return Number.isNaN(found) ? undefined : found;
}

export function bytes(value: number): string {
  const units = ["B", "KB", "MB", "GB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log(value) / Math.log(1024)));
  return `${(value / 1024 ** power).toFixed(power && value / 1024 ** power < 100 ? 1 : 0)} ${units[power]}`;
}

export function percent(part: number, all: number): string {
  return all ? `${((100 * part) / all).toFixed(1)} %` : "0.0 %";
}

/** For `<input type="datetime-local">`, in this machine's zone. */
export function localTime(text: string | null | undefined): string {
  if (!text) return "";
  const at = new Date(text);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** What such an input means; null when it is empty. */
export const parseLocal = (text: string) => (text ? new Date(text).toISOString() : null);

/** What an object says, on one line that is not long. */
export function preview(value: unknown, most = 240): string {
  const text = JSON.stringify(value) ?? "";
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

export const pretty = (value: unknown) => JSON.stringify(value, null, 2);
