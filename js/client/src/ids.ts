/** Identifiers. Apart from `storage.ts`, which the core does without. */

/** A random id. `crypto.randomUUID` exists in secure contexts only. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
