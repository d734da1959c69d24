/** Vue: composables over a client. */
import {
  type MaybeRefOrGetter,
  onScopeDispose,
  type Ref,
  ref,
  type ShallowRef,
  shallowRef,
  toValue,
  watch,
} from "vue";
import type { Client, LiveResults } from "./client.js";
import type { State } from "./hub.js";
import type { SubscribeOptions } from "./subscription.js";
import type { ProgramEvent } from "./tracker.js";

/** What `useEvents` knows. */
export interface Events {
  /** The last event; undefined before the first one. */
  last: ShallowRef<ProgramEvent | undefined>;
  /** Whether the broker delivers now. */
  isLive: Ref<boolean>;
  /** What ended the subscription. */
  error: ShallowRef<unknown>;
}

/** Follows a program, another one when `programId` changes, until the scope ends. `onEvent` sees every event. */
export function useEvents(
  client: Client,
  programId: MaybeRefOrGetter<string>,
  onEvent?: (event: ProgramEvent) => void,
  options?: Omit<SubscribeOptions, "signal" | "changes">,
): Events {
  const events: Events = { last: shallowRef(), isLive: ref(false), error: shallowRef() };
  watch(
    () => toValue(programId),
    (id, _, onCleanup) => {
      events.last.value = events.error.value = undefined;
      const subscription = client.subscribe(id, options);
      let isMounted = true;
      subscription.addEventListener("live", () => {
        events.isLive.value = true;
      });
      subscription.addEventListener("lost", () => {
        events.isLive.value = false;
      });
      subscription.addEventListener("end", ({ detail }) => {
        events.isLive.value = false;
        if (isMounted) events.error.value = detail;
      });
      subscription.addEventListener("event", ({ detail }) => {
        onEvent?.(detail);
        events.last.value = detail;
      });
      onCleanup(() => {
        isMounted = false;
        subscription.close();
      });
    },
    { immediate: true },
  );
  return events;
}

/** Live results of a program by measure and context, `measureName contextId`. */
export function useResults(client: Client, programId: string): ShallowRef<ReadonlyMap<string, LiveResults>> {
  const results = shallowRef<ReadonlyMap<string, LiveResults>>(new Map());
  const ending = new AbortController();
  onScopeDispose(() => ending.abort());
  const follow = async () => {
    for await (const result of client.results(programId, { signal: ending.signal })) {
      results.value = new Map(results.value).set(`${result.measureName} ${result.contextId}`, result);
    }
  };
  follow().catch((error) => !ending.signal.aborted && reportError(error));
  return results;
}

/** The state of the client's connection. */
export function useConnection(client: Client): Ref<State> {
  const state = ref<State>(client.state);
  const update = () => {
    state.value = client.state;
  };
  client.addEventListener("state", update);
  onScopeDispose(() => client.removeEventListener("state", update));
  return state;
}
