/** What is seen of a broker that is not as it should be. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { newId } from "../../client/src/ids.js";
import { makeShow } from "./show.js";
import {
  admin,
  browser,
  check,
  DESKTOP,
  enter,
  type Made,
  makeUser,
  openStage,
  sees,
  show,
  visit,
  words,
} from "./world.js";

let made: Made;

openStage(async () => {
  made = await makeShow(admin);
});

describe("the dashboard", { concurrency: 3, timeout: 240_000 }, () => {
  test("shows administrators how each part of the broker is, live", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, "health");
    const panel = page.getByRole("region", { name: "Parts of the broker" });
    await panel.getByText("All parts respond.").waitFor();
    for (const part of ["database", "owners", "counters", "gateways", "tasks"])
      await panel.getByRole("row", { name: `${part} ok` }).waitFor();

    await page.route("**/api/v1/health", async (route) => {
      const told = await (await route.fetch()).json();
      const parts = { ...told.parts, owners: "broker-owner-0 does not answer" };
      await route.fulfill({ json: { ...told, status: "unavailable", parts } });
    });
    await panel.getByText("Not as it should be: owners").waitFor();
    await panel.getByRole("row", { name: "owners down broker-owner-0 does not answer" }).waitFor();
    await check(page);
    await page.unroute("**/api/v1/health");
    await panel.getByText("All parts respond.").waitFor();
    await close();
  });

  test("shows the parts of the broker to nobody but administrators", async () => {
    const username = `producer-${newId().slice(0, 8)}`;
    await makeUser(admin, username, "producer", [made.project]);
    const { page, urls, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, username);
    await show(page, "health");
    await sees(page, "What answers");
    assert.ok(!(await words(page)).includes("Parts of the broker"));
    assert.deepEqual(
      urls.filter((url) => url.endsWith("/api/v1/health")),
      [],
    );
    await close();
  });
});
