/**
 * The programs that the user may publish to, any number of them: the pages that are looked at are read.
 *
 * When programs come, go and change, the pages in view are read again and take the place of the old ones at once, so
 * that the list is never empty in between and the rows in view stay where they are.
 *
 * Pages are read one by one, and a program that comes or goes between two of them moves the rows of the later one: it
 * would repeat a program, or leave one out. Two pages do not fit together if the broker counts another total or the
 * same program is on both. They are not shown together: the pages in view are read again. Changes that keep both,
 * such as a program that comes while another one goes, are found by their notification.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import type { components } from "../../../client/src/index.js";
import { connection } from "../connection.js";

export type Program = components["schemas"]["ProgramResource"];

const PAGE = 100;
const PAUSE_MS = 500; // between two readings while programs change
const TRIES = 5; // to read pages that fit together; then they are shown as they are until the next change

export interface Pages {
  /** How many there are; unknown until the first page is read. */
  total: number | undefined;
  /** Those that were read, by their place in the list. */
  items: ReadonlyMap<number, Program>;
  /** By how many rows what is in view has moved down since the list began. */
  arrived: number;
  error: unknown;
  /** Reads what is missing of the rows in view. */
  need: (first: number, last: number) => void;
  /** Tries again what failed of the rows in view. */
  retry: () => void;
}

/** One reading of the list: places do not move within it. */
interface Reading {
  items: Map<number, Program>;
  /** The pages that are here or on their way. */
  asked: Set<number>;
  /** The pages that are here; rows outside of them are those of an earlier reading. */
  read: Set<number>;
  total: number | undefined;
  arrived: number;
}

const newReading = (): Reading => ({
  items: new Map(),
  asked: new Set(),
  read: new Set(),
  total: undefined,
  arrived: 0,
});

/** The list of what is searched for, newest first; it begins anew with each search. */
export function usePages(search: string, status: string): Pages {
  const client = connection.value;
  const reading = useRef<Reading>(newReading());
  const view = useRef({ first: 0, last: 0 });
  const renew = useRef(() => {});
  const isBehind = useRef(false); // the pages in view could not be read again
  const [error, setError] = useState<unknown>(undefined);
  const [, setCount] = useState(0);
  const changed = () => setCount((before) => before + 1);

  /** Reads one page. It is left out, and the answer is false, if it does not fit to those that are there and must. */
  const read = async (into: Reading, page: number, mustFit = true): Promise<boolean> => {
    into.asked.add(page);
    const found = { ...(search && { search }), ...(status && { status }) };
    const query = { limit: PAGE, skip: page * PAGE, sort: "createdTime", order: "desc", ...found };
    try {
      const { items, total } = await client.request("GET", "/programs/filter", { query: query as never });
      if (mustFit && !fits(into, items, total)) return false;
      put(into, page, items, total);
      return true;
    } catch (failure) {
      into.asked.delete(page);
      throw failure;
    }
  };

  const need = (first: number, last: number) => {
    view.current = { first, last };
    const { current } = reading;
    for (const page of pagesOf(first, last)) {
      if (current.asked.has(page)) continue;
      read(current, page).then(
        (isThere) => {
          if (reading.current !== current) return;
          if (!isThere) return renew.current();
          setError(undefined);
          changed();
        },
        (failure) => reading.current === current && setError(failure),
      );
    }
  };

  useEffect(() => {
    reading.current = newReading();
    isBehind.current = false;
    setError(undefined);
    changed();
    need(0, 0);
    // Programs that come, go and change are seen at once.
    const control = new AbortController();
    const { signal } = control;
    let isStale = false;
    let isBusy = false;
    const again = async () => {
      isStale = true;
      if (isBusy) return;
      isBusy = true;
      try {
        while (isStale && !signal.aborted) {
          await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
          isStale = false;
          if (!signal.aborted) await readAgain();
        }
      } catch (failure) {
        if (signal.aborted) return;
        isBehind.current = true;
        setError(failure);
      } finally {
        isBusy = false;
      }
    };
    renew.current = () => void again();
    /** The pages in view, at the last try whether they fit together or not. */
    const readView = async (left = TRIES): Promise<Reading> => {
      const next = newReading();
      const { first, last } = view.current;
      const pages = pagesOf(first, last).map((page) => read(next, page, left > 1));
      const areAllThere = (await Promise.all(pages)).every(Boolean);
      return areAllThere || signal.aborted ? next : readView(left - 1);
    };
    const readAgain = async () => {
      const next = await readView();
      if (signal.aborted) return;
      isBehind.current = false;
      takeOver(next, reading.current, view.current);
      reading.current = next;
      setError(undefined);
      changed();
      need(view.current.first, view.current.last); // who scrolled meanwhile sees other pages
    };
    const follow = async () => {
      for await (const { method, params } of client.follow("programs", { signal })) {
        const { items } = reading.current;
        const place = placeOf(items, params.program?.id);
        if (method === "program" && place !== undefined && params.change !== "deleted") {
          items.set(place, params.program);
          changed();
        } else void again();
      }
    };
    follow().catch((failure) => !signal.aborted && setError(failure));
    return () => control.abort();
  }, [search, status, client]);

  const retry = () => {
    setError(undefined);
    if (isBehind.current) renew.current();
    else need(view.current.first, view.current.last);
  };
  const { items, total, arrived } = reading.current;
  return { total, items, arrived, error, need, retry };
}

/** Whether what was read of a page is of the same list as the pages that are here. */
function fits(into: Reading, items: readonly Program[], total: number): boolean {
  if (into.total !== undefined && into.total !== total) return false;
  const ids = new Set(items.map(({ id }) => id));
  for (const [place, { id }] of into.items)
    if (ids.has(id) && into.read.has(Math.floor(place / PAGE))) return false;
  return true;
}

/** Takes a page in. Whatever else is said of its places and its programs is older. */
function put(into: Reading, page: number, items: readonly Program[], total: number): void {
  const ids = new Set(items.map(({ id }) => id));
  for (const [place, { id }] of into.items)
    if (ids.has(id) || Math.floor(place / PAGE) === page) into.items.delete(place);
  items.forEach((program, index) => into.items.set(page * PAGE + index, program));
  into.read.add(page);
  into.total = total;
}

function pagesOf(first: number, last: number): number[] {
  const pages = [];
  for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page++) pages.push(page);
  return pages;
}

/** Where a program stands in the list; `undefined` if it was not read. */
function placeOf(items: ReadonlyMap<number, Program>, id: string | undefined): number | undefined {
  if (id !== undefined) for (const [place, program] of items) if (program.id === id) return place;
  return undefined;
}

/** Has a newer reading know how far the rows in view have moved, and what stands outside of what it has read. */
function takeOver(next: Reading, before: Reading, view: { first: number; last: number }): void {
  let moved = 0;
  for (let place = view.first; place <= view.last; place++) {
    const now = placeOf(next.items, before.items.get(place)?.id);
    if (now === undefined) continue;
    moved = now - place;
    break;
  }
  next.arrived = before.arrived + moved;
  const read = new Set([...next.items.values()].map(({ id }) => id));
  // Until its page is read again a row is shown as it was.
  for (const [place, program] of before.items) {
    const now = place + moved;
    if (now >= 0 && now < (next.total ?? 0) && !next.items.has(now) && !read.has(program.id))
      next.items.set(now, program);
  }
}
