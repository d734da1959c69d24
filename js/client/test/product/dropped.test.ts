/** What voters of the SDK meet when the account drops the visitors that it has handed out. Alone with its account. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, Client } from "../../src/index.js";
import { control, makeProgram, openAdmin, TIMING, until, URL_OF_BROKER } from "./world.js";

test(
  "a visitor that was dropped is replaced once, and its next vote counts once",
  { timeout: 120_000 },
  async () => {
    const admin = openAdmin();
    const programId = await makeProgram(admin);
    const ask = async () => {
      const metadata = {
        title: "Who wins?",
        measureName: "winner",
        options: ["Home", "Away"],
        visitors: "issued",
      };
      const body = { event: "Poll#show", metadata };
      const made = await admin.request("POST", "/programs/{programId}/events", { path: { programId }, body });
      return (made as { id: string }).id;
    };
    const [earlier, later] = [await ask(), await ask()];
    const issued: string[] = [];
    const noting: typeof fetch = async (input, init) => {
      const reply = await fetch(input, init);
      if (String(input).endsWith("/responses/visitor")) issued.push((await reply.clone().json()).visitorId);
      return reply;
    };
    const client = new Client(URL_OF_BROKER, { timing: TIMING, fetch: noting });
    assert.deepEqual(await client.respond(programId, "winner", earlier, 1), { accepted: 1, duplicates: 0 });
    const [visitorId] = issued;

    await control("drop-issued");
    // Until the processes have read the rule, the visitor is known and its vote a duplicate.
    const isDropped = () =>
      client.respond(programId, "winner", earlier, 0, { visitorId: visitorId as string }).then(
        ({ duplicates }) => assert.equal(duplicates, 1),
        (error) => {
          assert.ok(error instanceof ApiError && error.status === 400, String(error));
          assert.match(error.message, /visitorId/);
          return true;
        },
      );
    await until(isDropped, "the end of the visitor");
    assert.deepEqual(await client.respond(programId, "winner", later, 1), { accepted: 1, duplicates: 0 });
    assert.deepEqual(await client.respond(programId, "winner", later, 0), { accepted: 0, duplicates: 1 });
    assert.equal(issued.length, 2);
    assert.notEqual(issued[1], visitorId);

    const path = { accountId: "demo", projectId: "undefined", programId };
    const report = await admin.request("GET", "/responses/{accountId}/{projectId}/{programId}/report", {
      path,
    });
    const counts = report.responses.map(({ contextId, options }) => [
      contextId,
      options.map(({ total }) => total),
    ]);
    assert.deepEqual(
      new Map(counts as [string, number[]][]),
      new Map([
        [earlier, [0, 1]],
        [later, [0, 1]],
      ]),
    );
    client.close();
    admin.close();
  },
);
