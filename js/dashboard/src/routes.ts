/** Where the user is, as the fragment of the URL says: the page is one file. */
import { signal } from "@preact/signals";

/** The parts between the slashes, decoded: `["programs", "final-2026", "polls"]`. */
export const route = signal<readonly string[]>(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

/** A link to a place. */
export function to(...parts: readonly string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

/** Goes to a place. */
export function go(...parts: readonly string[]): void {
  location.hash = to(...parts);
}

function parse(hash: string): string[] {
  try {
    return hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return [];
  }
}
