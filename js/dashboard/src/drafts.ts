/**
 * What was typed and is not saved: kept in memory, and in `sessionStorage` so that it outlives a reload.
 *
 * A draft belongs to a user: who logs in next in the same tab does not see it. It ends when it is saved or thrown away.
 */
import { signal, type Signal } from "@preact/signals";

const PREFIX = "onair-draft ";
const known = new Map<string, Signal<any>>();
const unsaved = new Set<string>();
let timer: ReturnType<typeof setTimeout> | undefined;

/** A draft that has the given key; undefined while nothing was typed. */
export function draftOf<T>(userId: string, key: string): Signal<T | undefined> {
  const name = `${PREFIX}${userId} ${key}`;
  let draft = known.get(name);
  if (!draft) {
    draft = signal<T | undefined>(read(name));
    known.set(name, draft);
    const kept = draft;
    let isFirst = true;
    kept.subscribe(() => {
      if (!isFirst) keep(name);
      isFirst = false;
    });
  }
  return draft;
}

/** Throws all drafts away. */
export function forgetDrafts(): void {
  clearTimeout(timer);
  unsaved.clear();
  for (const name of Object.keys(sessionStorage))
    if (name.startsWith(PREFIX)) sessionStorage.removeItem(name);
  known.clear();
}

addEventListener("pagehide", write);

function read(name: string): any {
  try {
    return JSON.parse(sessionStorage.getItem(name) ?? "null") ?? undefined;
  } catch {
    return undefined;
  }
}

/** A megabyte of JSON is not written at every key. */
function keep(name: string): void {
  unsaved.add(name);
  clearTimeout(timer);
  timer = setTimeout(write, 250);
}

function write(): void {
  for (const name of unsaved) {
    const value = known.get(name)?.peek();
    try {
      if (value === undefined) sessionStorage.removeItem(name);
      else sessionStorage.setItem(name, JSON.stringify(value));
    } catch {
      // Storage is full or forbidden: it stays in memory.
    }
  }
  unsaved.clear();
}
