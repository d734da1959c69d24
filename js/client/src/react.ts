/** React: hooks over a client. */
import { useEffect, useRef, useState } from "react";
import type { Client, LiveResults } from "./client.js";
import type { State } from "./hub.js";
import type { SubscribeOptions } from "./subscription.js";
import type { ProgramEvent } from "./tracker.js";

/** What `useEvents` knows. */
export interface Events {
  /** The last event; undefined before the first one. */
  last: ProgramEvent | undefined;
  /** Whether the broker delivers now. */
  isLive: boolean;
  /** What ended the subscription. */
  error: unknown;
}

/**
 * Follows a program while the component is mounted. `onEvent` sees every event; a render may come after several.
 * Options count when the program changes.
 */
export function useEvents(
  client: Client,
  programId: string,
  onEvent?: (event: ProgramEvent) => void,
  options?: Omit<SubscribeOptions, "signal" | "changes">,
): Events {
  const [events, setEvents] = useState<Events>({ last: undefined, isLive: false, error: undefined });
  const handler = useRef(onEvent);
  handler.current = onEvent;
  const given = useRef(options);
  given.current = options;
  useEffect(() => {
    setEvents({ last: undefined, isLive: false, error: undefined });
    const subscription = client.subscribe(programId, given.current);
    let isMounted = true;
    const set = (change: Partial<Events>) => isMounted && setEvents((before) => ({ ...before, ...change }));
    subscription.addEventListener("live", () => set({ isLive: true }));
    subscription.addEventListener("lost", () => set({ isLive: false }));
    subscription.addEventListener("end", ({ detail }) => set({ isLive: false, error: detail }));
    subscription.addEventListener("event", ({ detail }) => {
      handler.current?.(detail);
      set({ last: detail });
    });
    return () => {
      isMounted = false;
      subscription.close();
    };
  }, [client, programId]);
  return events;
}

/** Live results of a program by measure and context, `measureName contextId`. */
export function useResults(client: Client, programId: string): ReadonlyMap<string, LiveResults> {
  const [results, setResults] = useState<ReadonlyMap<string, LiveResults>>(new Map());
  useEffect(() => {
    const ending = new AbortController();
    setResults(new Map());
    const follow = async () => {
      for await (const result of client.results(programId, { signal: ending.signal })) {
        setResults((before) => new Map(before).set(`${result.measureName} ${result.contextId}`, result));
      }
    };
    follow().catch((error) => !ending.signal.aborted && reportError(error));
    return () => ending.abort();
  }, [client, programId]);
  return results;
}

/** The state of the client's connection. */
export function useConnection(client: Client): State {
  const [state, setState] = useState<State>(client.state);
  useEffect(() => {
    const update = () => setState(client.state);
    update();
    client.addEventListener("state", update);
    return () => client.removeEventListener("state", update);
  }, [client]);
  return state;
}
