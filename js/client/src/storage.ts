/** Identifiers that outlive a page. Access to storage throws in private mode and in some frames. */
import { newId } from "./ids.js";

export type Store = Pick<Storage, "getItem" | "setItem">;

/** The id kept under `key`, made where there is none; without storage it lasts as long as the page. */
export function keptId(find: Find, key: string): string {
  try {
    const store = find() as Store;
    const kept = store.getItem(key) || newId();
    store.setItem(key, kept);
    return kept;
  } catch {
    return newId();
  }
}

/** Where to find storage; it may throw. */
export type Find = () => Store | undefined;

/** What is kept under `key`; undefined where nothing is, and without storage. */
export function kept(find: Find, key: string): string | undefined {
  try {
    return find()?.getItem(key) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Keeps a text under `key`, where there is storage. */
export function keep(find: Find, key: string, text: string): void {
  try {
    find()?.setItem(key, text);
  } catch {
    // It lasts as long as the page.
  }
}
