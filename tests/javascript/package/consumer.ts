// What an application writes with the package: each subpath, and types that refuse what is wrong.
import { Client, HistoryLost, type Params, type ProgramEvent, type operations } from "onair-broker";
import { Client as Core } from "onair-broker/core";
import { useConnection, useEvents, useResults } from "onair-broker/react";
import { openShared } from "onair-broker/shared";
import * as vue from "onair-broker/vue";

export const bindings = [useConnection, useEvents, useResults, vue.useConnection, vue.useEvents, vue.useResults];

export async function follow(client: Client | Core, show: (event: ProgramEvent) => void): Promise<number> {
  const subscription = client.subscribe("final", { signal: AbortSignal.timeout(10), history: 3 });
  const { seq } = await subscription.ready;
  subscription.addEventListener("event", ({ detail }) => show(detail));
  // @ts-expect-error There is no such event.
  subscription.addEventListener("goal", ({ detail }) => show(detail));
  try {
    for await (const event of subscription) show(event);
  } catch (error) {
    if (error instanceof HistoryLost) console.log(error.cursor.epoch);
  }
  return seq;
}

export async function call(): Promise<string[]> {
  const client = new Client("http://demo.localhost:8000", { token: async () => "…" });
  const value = await client.call("storeValue", { projectId: "football", metadata: { home: ["Kim"] } });
  // @ts-expect-error Its project is missing.
  await client.call("storeValue", { metadata: {} });
  // @ts-expect-error There is no such operation.
  await client.call("storeValues", {});
  // @ts-expect-error A number is no name.
  await client.request("POST", "/programs", { body: { id: "final", name: 7 } });
  const { name } = await client.request("GET", "/programs/{programId}", { path: { programId: "final" } });
  for await (const event of client.timeline("final", { delayMs: 30_000 })) console.log(event.timecode);
  openShared("/worker.js", "http://demo.localhost:8000", { name: "viewer" }).close();
  return [value.id, name];
}

/** What any operation takes; none is without params or a result. */
export type Taken<K extends keyof operations> = Params<operations[K]>;
