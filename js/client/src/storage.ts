/** Identifiers that outlive a page. Access to storage throws in private mode and in some frames. */

export type Store = Pick<Storage, "getItem" | "setItem">;

/** The id kept under `key`, made where there is none; without storage it lasts as long as the page. */
export function keptId(find: () => Store | undefined, key: string): string {
  try {
    const store = find() as Store;
    const kept = store.getItem(key) || newId();
    store.setItem(key, kept);
    return kept;
  } catch {
    return newId();
  }
}

/** A random id. `crypto.randomUUID` exists in secure contexts only. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
