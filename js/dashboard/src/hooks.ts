/** What screens do with the broker: read, and change. */
import type { Signal } from "@preact/signals";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { draftOf } from "./drafts.js";
import { login } from "./session.js";
import { say } from "./notices.js";

export interface Loaded<T> {
  value: T | undefined;
  error: unknown;
  reload: () => void;
}

/**
 * Reads at first, when a dependency changes, and every so many milliseconds while the page is seen.
 * What was read before stays while it is read anew, and when that fails.
 */
export function useLoaded<T>(
  load: (signal: AbortSignal) => Promise<T>,
  dependencies: readonly unknown[],
  everyMs = 0,
): Loaded<T> {
  const [state, setState] = useState<{ value?: T; error?: unknown; key: readonly unknown[] }>({ key: [] });
  const [count, setCount] = useState(0);
  const asked = useRef(load);
  asked.current = load;
  useEffect(() => {
    const control = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const run = async () => {
      try {
        if (!document.hidden || !everyMs) {
          const value = await asked.current(control.signal);
          if (!control.signal.aborted) setState({ value, key: dependencies });
        }
      } catch (error) {
        if (!control.signal.aborted) setState((before) => ({ ...before, error, key: dependencies }));
      }
      if (everyMs && !control.signal.aborted) timer = setTimeout(run, everyMs);
    };
    void run();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [...dependencies, count]);
  const reload = useCallback(() => {
    setState((before) => ({ ...before, error: undefined }));
    setCount((before) => before + 1);
  }, []);
  const isCurrent =
    state.key.length === dependencies.length && state.key.every((each, at) => each === dependencies[at]);
  return { value: isCurrent ? state.value : undefined, error: isCurrent ? state.error : undefined, reload };
}

export interface Action<A extends unknown[]> {
  run: (...given: A) => Promise<boolean>;
  isRunning: boolean;
  error: unknown;
  clear: () => void;
}

/** A change: one at a time; its error stays on the screen until the next try. Says `done` when it went well. */
export function useAction<A extends unknown[]>(
  change: (...given: A) => Promise<unknown>,
  done: string | ((...given: A) => string) = "",
): Action<A> {
  const [isRunning, setRunning] = useState(false);
  const [error, setError] = useState<unknown>(undefined);
  const busy = useRef(false);
  const run = async (...given: A) => {
    if (busy.current) return false;
    busy.current = true;
    setRunning(true);
    setError(undefined);
    try {
      await change(...given);
      const text = typeof done === "function" ? done(...given) : done;
      if (text) say(text);
      return true;
    } catch (failure) {
      setError(failure);
      return false;
    } finally {
      busy.current = false;
      setRunning(false);
    }
  };
  return { run, isRunning, error, clear: () => setError(undefined) };
}

/**
 * A draft of the user who is logged in, and the value it stands on: what to show, how to change it, how to drop it,
 * and whether anything was typed.
 *
 * Who saved a draft drops what was `sent`. What was typed meanwhile stays, `onto` what is saved now.
 */
export function useDraft<T>(
  key: string,
  saved: T,
): [T, (value: T) => void, (sent?: T, onto?: (typed: T) => T) => void, boolean] {
  const userId = login.value?.userId ?? "";
  const draft = useMemo<Signal<T | undefined>>(() => draftOf<T>(userId, key), [userId, key]);
  const { value } = draft;
  return [
    value ?? saved,
    (next) => (draft.value = next),
    (sent, onto = (typed) => typed) => {
      const typed = draft.peek();
      draft.value = sent === undefined || typed === undefined || typed === sent ? undefined : onto(typed);
    },
    value !== undefined,
  ];
}

/** A value that follows another one after a pause. */
export function useSettled<T>(value: T, ms: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** Runs now and then, such as for ages. */
export function useTick(ms: number): void {
  const [, setCount] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setCount((before) => before + 1), ms);
    return () => clearInterval(timer);
  }, [ms]);
}
