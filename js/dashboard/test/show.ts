/** Shows that tests make through the API, and what is stored of them. */
import assert from "node:assert/strict";
import type { Client } from "../../client/src/index.js";
import { newId } from "../../client/src/ids.js";
import { URL_OF_BROKER } from "../../client/test/product/world.js";
import type { Made } from "./world.js";

/** A program on air with events, a poll that was answered, and a draft; in a project of its own unless one is given. */
export async function makeShow(
  admin: Client,
  name = "The final",
  given = "",
  sport = "Football",
): Promise<Made> {
  const now = Date.now();
  const project = given || `p-${newId()}`;
  const about = { id: project, name: sport, description: "All matches" };
  if (!given) await admin.request("POST", "/projects", { body: about });
  const body = {
    id: `final-${newId()}`,
    name,
    projectId: project,
    scheduledStartTime: new Date(now - 3_600_000).toISOString(),
    scheduledEndTime: new Date(now + 7_200_000).toISOString(),
  };
  const program = (await admin.request("POST", "/programs", { body })).id;
  const events = Array.from(
    { length: 60 },
    (_, index) => EVENTS[index % EVENTS.length] as (typeof EVENTS)[number],
  );
  await admin.request("POST", "/programs/{programId}/events", {
    path: { programId: program },
    body: { events },
  });
  const poll = await askAudience(admin, program, "Who wins?", ["Home", "Away", "Nobody"]);
  await vote(admin, project, program, poll, "whoWins", 64);
  const path = { projectId: project };
  const revision = await admin.request("POST", "/projects/{projectId}/application/revisions", {
    path,
    body: {
      title: "Season 2026",
      content: { theme: "dark", scoreboard: { x: 80, y: 40 }, colours: ["#c8102e"] },
    },
  });
  return { program, project, revision: revision.id };
}

const EVENTS = [
  { event: "Score#update", metadata: { home: 2, away: 1 } },
  { event: "Clock#tick", metadata: { running: true, seconds: 1312 } },
  { event: "LineUp#show", metadata: { team: "home", players: ["Kim", "Vo", "Ada"] } },
  { event: "LowerThird#show", metadata: { name: "Eileen Collins", role: "Commander", seconds: 8 } },
];

/** A poll that is open; its id. */
export async function askAudience(
  admin: Client,
  programId: string,
  title: string,
  options: string[],
  settings: Record<string, unknown> = {},
): Promise<string> {
  const body = { event: "Poll#show", metadata: { title, options, ...settings } };
  const poll = await admin.request("POST", "/programs/{programId}/events", { path: { programId }, body });
  return (poll as { id: string }).id;
}

/** So many visitors answer: two thirds the first option, the others the second. */
export async function vote(
  admin: Client,
  projectId: string,
  programId: string,
  contextId: string,
  measureName: string,
  count: number,
) {
  const responses = Array.from({ length: count }, (_, index) => ({
    measureName,
    contextId,
    measureValue: index % 3 ? 0 : 1,
    visitorId: `${newId()}`,
  }));
  const path = { accountId: "demo", projectId, programId };
  await admin.request("POST", "/responses/{accountId}/{projectId}/{programId}", {
    path,
    body: { responses },
  });
}

/** Visitors with these names answer the first option, from an address that a proxy names. */
export async function voteFrom(
  address: string,
  { project, program }: Made,
  poll: string,
  measureName: string,
  names: readonly string[],
) {
  const responses = names.map((visitorId) => ({ measureName, contextId: poll, measureValue: 0, visitorId }));
  const reply = await fetch(`${URL_OF_BROKER}/api/v1/responses/demo/${project}/${program}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Forwarded-For": address },
    body: JSON.stringify({ responses }),
  });
  assert.deepEqual(await reply.json(), { accepted: names.length, duplicates: 0 });
}

/** A show of so many events, numbered by `index` in their metadata; returns its program. */
export async function makeLongShow(admin: Client, count: number): Promise<string> {
  const { program } = await makeShow(admin, "Long");
  await importNumbered(admin, program, count);
  return program;
}

/** Replaces the events of a program by so many, numbered by `index` in their metadata. */
export async function importNumbered(
  admin: Client,
  programId: string,
  count: number,
  first = 0,
): Promise<void> {
  const events = Array.from({ length: count }, (_, number) => ({
    event: "Score#update",
    metadata: { index: first + number },
  }));
  const path = { programId };
  await admin.request("POST", "/programs/{programId}/events/import", { path, body: { events } });
}

/** All events of a program, in the order of their numbers. */
export async function listEvents(admin: Client, programId: string) {
  const query = { limit: 1000, sort: "seq", order: "asc" } as const;
  return (await admin.request("GET", "/programs/{programId}/events/filter", { path: { programId }, query }))
    .items;
}

/** The content of a revision as it is stored. */
export async function contentOf(admin: Client, projectId: string, revisionId: string) {
  const path = { projectId, revisionId };
  return (await admin.request("GET", "/projects/{projectId}/application/revisions/{revisionId}", { path }))
    .content;
}
