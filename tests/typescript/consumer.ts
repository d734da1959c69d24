// What a client author writes. It compiles only while the OpenAPI document says what the broker does:
// each line below `@ts-expect-error` must be refused by the types that are made from it.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Program = components["schemas"]["ProgramResource"];
type NewProgram = paths["/programs"]["post"]["requestBody"]["content"]["application/json"];

const broker = createClient<paths>({ baseUrl: "http://localhost:8000/api/v1" });

export async function show(username: string, password: string): Promise<Program[]> {
  const login = await broker.POST("/token", {
    body: { grant_type: "password", client_id: "Test", username, password },
  });
  if (login.error) throw new Error(login.error.error_description);
  const headers = { Authorization: `Bearer ${login.data.access_token}` };

  const created = await broker.POST("/programs", {
    headers,
    body: { id: "final-2026", name: "The final", scheduledStartTime: "2026-07-19T18:00:00Z" },
  });
  if (created.error) {
    const name: string = created.error.error;
    const fields: string[] = (created.error.errors ?? []).map((fault) => fault.field);
    throw new Error(`${name}: ${fields.join(", ")}`);
  }
  const live: boolean = created.data.live;
  const end: string | null = created.data.scheduledEndTime;

  const path = { programId: created.data.id };
  await broker.POST("/programs/{programId}/events", {
    headers,
    params: { path, header: { "Idempotency-Key": "score-2-1" } },
    body: { event: "Score#update", metadata: { home: 2, away: 1, live, end } },
  });
  await broker.POST("/programs/{programId}/events", {
    params: { path },
    body: { events: [{ event: "Score#update", timecode: 0 }] },
  });
  const events = await broker.GET("/programs/{programId}/events", { params: { path, query: { from: 0 } } });
  const seqs: number[] = (events.data ?? []).map((event) => event.seq);

  const exported = await broker.GET("/programs/{programId}/events/export", { params: { path } });
  if (exported.data && typeof exported.data !== "string") {
    await broker.POST("/programs/{programId}/events/import", { params: { path }, body: exported.data });
  }

  const page = await broker.GET("/programs/filter", {
    params: { query: { status: ["live", "scheduled"], sort: "name", limit: seqs.length } },
  });
  return page.data?.items ?? [];
}

export async function mistakes(): Promise<void> {
  // @ts-expect-error: there is no such path
  await broker.GET("/program");
  // @ts-expect-error: nor is the path without its parameter
  await broker.GET("/programs/{programId}");
  // @ts-expect-error: a name is required
  await broker.POST("/programs", { body: { id: "final-2026" } });
  await broker.POST("/programs", {
    // @ts-expect-error: no other access is known
    body: { id: "final-2026", name: "The final", access: "secret" },
  });
  await broker.POST("/programs", {
    // @ts-expect-error: a time is a text
    body: { id: "final-2026", name: "The final", scheduledStartTime: 1784484000000 },
  });
  // @ts-expect-error: nor is there another field
  const more: NewProgram = { id: "final-2026", name: "The final", colour: "red" };
  await broker.POST("/programs", { body: more });
  // @ts-expect-error: a limit is a number
  await broker.GET("/programs/filter", { params: { query: { limit: "ten" } } });
  // @ts-expect-error: nor is a text a number
  await broker.POST("/servertime", { body: { requestTime: "now" } });
  const { data } = await broker.GET("/version");
  // @ts-expect-error: what an answer does not have cannot be read
  String(data?.commit);
}
