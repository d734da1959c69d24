/**
 * The name under which the broker counts a poll's votes, to read those of before. Results that come say themselves
 * whether they are of the declared measure.
 *
 * It is made of metadata as `broker.voting.rules` makes it; tests/voting/measures.json has what both make.
 */
import type { Fields } from "./values.js";

/** So much of a title is looked at. */
const MOST_OF_TITLE = 1_000;
const MOST_CHARACTERS = 200;
/** What a vote's measure may be: nothing of it ends the line, turns the text round or cannot be seen. */
const ANSWERABLE =
  // eslint-disable-next-line no-control-regex
  /^[^\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]{1,200}$/u;
/** Apostrophes, joiners and selectors of a variant: they end no word and cannot be seen in a name. */
const LEFT_OUT = /['\u2019]|\u200c|\u200d|[\ufe00-\ufe0f]/g;

/** The declared name where a vote may have it, else one of the title; empty where nothing is asked. */
export function measureOf({ measureName, title }: Fields): string {
  if (typeof measureName === "string" && measureName.trim() && ANSWERABLE.test(measureName))
    return measureName;
  if (typeof title !== "string" || !title.trim()) return "";
  return first(camelCased(first(title, MOST_OF_TITLE)), MOST_CHARACTERS) || "poll";
}

function camelCased(title: string): string {
  const words = title
    .replace(LEFT_OUT, "")
    .normalize("NFC")
    .match(/[\p{L}\p{N}][\p{L}\p{N}\p{Mn}\p{Mc}]*/gu);
  return (words ?? [])
    .map((word) => (isCapital(word) ? word.toLowerCase() : word))
    .map((word, index) => {
      const start = first(word, 1);
      return (index ? start.toUpperCase() : start.toLowerCase()) + word.slice(start.length);
    })
    .join("");
}

function isCapital(word: string): boolean {
  return /\p{Uppercase}/u.test(word) && !/[\p{Lowercase}\p{Lt}]/u.test(word);
}

/** So many characters, not halves of them. */
function first(text: string, count: number): string {
  return Array.from(text.slice(0, 2 * count))
    .slice(0, count)
    .join("");
}
