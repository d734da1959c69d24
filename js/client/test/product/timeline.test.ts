/** Events in time with the video, against a real instance. */
import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { WebSocket } from "ws";
import { Client, type ClientOptions, ProgramDeleted, type TimelineOptions } from "../../src/index.js";
import { makeProgram, openAdmin, publish, TIMING, URL_OF_BROKER, until } from "./world.js";

const admin = openAdmin();
after(() => admin.close());

const START = 1_784_484_000_000;

/** Publishes an event that belongs to second `second` of the video, and is named by its metadata. */
async function show(programId: string, name: string, second: number): Promise<string> {
  const body = { event: "Goal#show", timecode: START + second * 1_000, metadata: { name } };
  const made = await admin.request("POST", "/programs/{programId}/events", { path: { programId }, body });
  return (made as { id: string }).id;
}

/** A viewer with a player at second 0, and what it is told: names of events, and reasons of seeks. */
async function watch(programId: string, options: TimelineOptions = {}, connecting: ClientOptions = {}) {
  const client = new Client(URL_OF_BROKER, { timing: TIMING, ...connecting });
  const viewer = {
    second: 0,
    told: [] as unknown[],
    failed: undefined as unknown,
    close: () => client.close(),
  };
  const timeline = client.timeline(programId, {
    position: () => START + viewer.second * 1_000,
    lookbackMs: Infinity,
    onSeek: ({ reason }) => void viewer.told.push(reason),
    ...options,
  });
  timeline.addEventListener("event", ({ detail }) => viewer.told.push(detail.metadata.name));
  timeline.addEventListener("end", ({ detail }) => {
    viewer.failed = detail;
  });
  await timeline.ready;
  return viewer;
}

/** A network that can be away; what goes over HTTP apart from event streams goes on. */
function openNetwork() {
  let isAway = false;
  const sockets = new Set<WebSocket>();
  let away = new AbortController();
  class Cuttable extends WebSocket {
    constructor(url: string) {
      super(isAway ? "ws://127.0.0.1:1/" : url);
      sockets.add(this);
    }
  }
  const cuttable: typeof fetch = (url, init) => {
    if (!String(url).includes("/events/stream")) return fetch(url, init);
    return fetch(url, { ...init, signal: AbortSignal.any([away.signal, init!.signal!]) });
  };
  return {
    options: { WebSocket: Cuttable, fetch: cuttable },
    cut: () => {
      isAway = true;
      away.abort();
      for (const each of sockets) each.terminate();
    },
    heal: () => {
      isAway = false;
      away = new AbortController();
    },
  };
}

const isTold = (viewer: { told: unknown[] }, name: string) =>
  until(() => viewer.told.includes(name), `${name} after ${viewer.told}`);

describe("timelines", { concurrency: 5, timeout: 60_000 }, () => {
  test("a viewer who is 30 s behind is told of the goal when the video shows it", async () => {
    const programId = await makeProgram(admin);
    const behind = await watch(programId);
    const subscription = admin.subscribe(programId);
    const live = subscription[Symbol.asyncIterator]();
    await subscription.ready;
    await show(programId, "goal", 30);
    for (let name; name !== "goal"; ) name = (await live.next()).value?.metadata.name;
    // The others know of it; this viewer has seen 29.5 s by now.
    behind.second = 29.5;
    await show(programId, "shot", 29);
    await isTold(behind, "shot");
    assert.ok(!behind.told.includes("goal"));
    behind.second = 30;
    await isTold(behind, "goal");
    await live.return?.(undefined);
    behind.close();
  });

  test("a seek back shows again what was before", async () => {
    const programId = await makeProgram(admin);
    await show(programId, "one", 10);
    await show(programId, "two", 20);
    const viewer = await watch(programId);
    viewer.second = 25;
    await isTold(viewer, "two");
    viewer.told.length = 0;
    viewer.second = 15;
    await isTold(viewer, "one");
    assert.deepEqual(viewer.told, ["back", "one"]);
    viewer.close();
  });

  test("what was changed or deleted before it is due comes as it is then", async () => {
    const programId = await makeProgram(admin);
    const viewer = await watch(programId);
    const [first, second] = [await show(programId, "first", 10), await show(programId, "second", 20)];
    const path = { programId, eventId: first };
    const body = { metadata: { name: "changed" } };
    await admin.request("PUT", "/programs/{programId}/events/{eventId}", { path, body });
    await admin.request("DELETE", "/programs/{programId}/events/{eventId}", {
      path: { programId, eventId: second },
    });
    await show(programId, "now", 0);
    await isTold(viewer, "now");
    await show(programId, "last", 30);
    viewer.second = 30;
    await isTold(viewer, "last");
    assert.deepEqual(
      viewer.told.filter((each) => each !== "forward"),
      ["now", "changed", "last"],
    );
    viewer.close();
  });

  test("an import begins it anew, and the end of the program ends it", async () => {
    const programId = await makeProgram(admin);
    const viewer = await watch(programId);
    await show(programId, "old", 0);
    await isTold(viewer, "old");
    const events = [{ event: "Goal#show", timecode: START, metadata: { name: "new" } }];
    await admin.request("POST", "/programs/{programId}/events/import", {
      path: { programId },
      body: { events },
    } as any);
    await isTold(viewer, "new");
    assert.deepEqual(viewer.told, ["old", "replaced", "new"]);
    await admin.request("DELETE", "/programs/{programId}", { path: { programId } });
    await until(() => viewer.failed, "the end");
    assert.ok(viewer.failed instanceof ProgramDeleted, String(viewer.failed));
    viewer.close();
  });

  for (const transport of ["websocket", "sse"] as const) {
    test(`a history that was replaced while there was no connection is read anew: ${transport}`, async () => {
      const programId = await makeProgram(admin);
      const network = openNetwork();
      const viewer = await watch(programId, {}, { ...network.options, transport });
      await show(programId, "old", 0);
      await isTold(viewer, "old");
      network.cut();
      const events = [{ event: "Goal#show", timecode: START, metadata: { name: "new" } }];
      const path = { programId };
      await admin.request("POST", "/programs/{programId}/events/import", { path, body: { events } } as any);
      network.heal();
      await isTold(viewer, "new");
      await show(programId, "live", 0);
      await isTold(viewer, "live");
      assert.deepEqual(viewer.told, ["old", "lost", "new", "live"]);
      viewer.close();
    });
  }

  test("where the player says nothing, events come as they are published", async () => {
    const programId = await makeProgram(admin);
    const silent = await watch(programId, { position: () => undefined });
    // A producer whose clock is an hour ahead holds nothing back.
    await show(programId, "goal", (Date.now() - START) / 1_000 + 3_600);
    await isTold(silent, "goal");
    silent.close();
  });

  test("without a player events come after the delay, by the broker's clock", async () => {
    const programId = await makeProgram(admin);
    const client = new Client(URL_OF_BROKER, { timing: TIMING });
    const timeline = client.timeline(programId, { delayMs: 1_500 });
    const first = timeline[Symbol.asyncIterator]().next();
    await timeline.ready;
    const [made] = await publish(admin, programId, 1);
    const { value } = await first;
    assert.equal(value?.id, made?.id);
    assert.ok(client.now() - Date.parse(value?.createdTime as string) > 1_400);
    client.close();
  });
});
