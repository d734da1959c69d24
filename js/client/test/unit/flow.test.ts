/** How a subscription begins and ends; its carrier is scripted. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Member, Target } from "../../src/feed.js";
import { Client } from "../../src/index.js";

/** A client that is connected: whoever joins is live at once, as one who follows what others follow already. */
function openConnected(): Client {
  const carrier = {
    state: "open",
    join: (_: Target, member: Member) => {
      if (member.tracker) member.tracker.cursor = { epoch: "e", seq: 1 };
      member.opened();
    },
    leave: () => {},
  };
  return new Client("http://demo.example.org", { carrier: () => carrier as never });
}

test("a subscription that is aborted at once is never ready, also where it is live at once", async () => {
  const client = openConnected();
  for (const open of [
    (signal: AbortSignal) => client.subscribe("p", { signal }),
    (signal: AbortSignal) => client.follow("programs", { signal }),
  ]) {
    const controller = new AbortController();
    const flow = open(controller.signal);
    controller.abort();
    await assert.rejects(flow.ready, { name: "AbortError" });
    await assert.rejects(open(controller.signal).ready, { name: "AbortError" });
    assert.ok(flow.isClosed);
  }
});

test("a subscription that is live at once is ready", async () => {
  const subscription = openConnected().subscribe("p");
  assert.deepEqual(await subscription.ready, { epoch: "e", seq: 1 });
});
