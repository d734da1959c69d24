/** The dashboard while the product stops and starts again on the same data. Alone with its instance. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Locator, Page } from "playwright-core";
import { control, until } from "../../client/test/product/world.js";
import { contentOf, listEvents, makeShow } from "./show.js";
import {
  admin,
  browser,
  DESKTOP,
  enter,
  logsInByHand,
  openStage,
  pass,
  PASSWORD,
  sees,
  show,
  visit,
} from "./world.js";

const PATIENT_MS = 180_000; // a start on a machine that does other things too
const LOG_IN_MS = 10_000; // for which a log-in is tried
const TOKEN_MS = 60_000; // longer than tokens of these tests live

openStage();

describe("the dashboard", { timeout: 300_000 }, () => {
  // One stop for both: each start of the product takes as long as all else here.
  test("goes on by itself after a stop and a start, with all that was typed, a log-in that ended too", async () => {
    const [first, second] = [await makeShow(admin, "Restarted"), await makeShow(admin, "Away")];
    const { program, project, revision } = first;
    const [{ page, close }, away] = [
      await visit(browser, { viewport: DESKTOP }),
      await visit(browser, { viewport: DESKTOP }),
    ];
    page.setDefaultTimeout(PATIENT_MS);
    away.page.setDefaultTimeout(PATIENT_MS);
    await logsInByHand(away.page);
    await enter(away.page, "admin");
    await show(away.page, `projects/${second.project}/revisions/${second.revision}`);
    await enter(page, "admin");
    await show(page, `projects/${project}/revisions/${revision}`);
    await page.getByLabel("Content").fill('{"typed": "before"}');
    await show(page, `programs/${program}`);
    await page.getByRole("option").first().waitFor();
    await page.getByLabel("Event", { exact: true }).fill("Score#update");

    await control("stop");
    await page.getByText("Connection lost, coming back…").waitFor();
    await page.getByLabel("Metadata").fill('{"typed": "meanwhile"}');
    await page.getByRole("button", { name: /^Publish/ }).click();
    const form = await editsWithoutLogIn(away.page);
    await sees(page, "Not confirmed yet");
    await show(page, `projects/${project}/revisions`, false);
    await control("start");

    await form.getByRole("button", { name: "Log in" }).click();
    await sees(away.page, "Saved");
    assert.deepEqual(await contentOf(admin, second.project, second.revision), { typed: "while it was away" });
    await away.close();

    // The list that was opened without a broker comes by itself.
    await page.getByText("Season 2026").waitFor();
    await show(page, `programs/${program}`);
    await page.getByText("Live", { exact: true }).last().waitFor();
    const isPublished = async () =>
      (await listEvents(admin, program)).some(({ metadata }) => metadata.typed === "meanwhile");
    await until(isPublished, "what was published meanwhile", PATIENT_MS);
    const events = await listEvents(admin, program);
    assert.equal(events.filter(({ metadata }) => metadata.typed === "meanwhile").length, 1);
    await sees(page, `${events.length} in all`);
    const shown = await page.getByRole("option").locator(".seq").allInnerTexts();
    const newest = events.map(({ seq }) => String(seq)).reverse();
    assert.deepEqual(shown.slice(0, 6), newest.slice(0, 6));
    assert.equal(await page.getByLabel("Metadata").inputValue(), '{"typed": "meanwhile"}');
    await show(page, `projects/${project}/revisions/${revision}`);
    assert.equal(await page.getByLabel("Content").inputValue(), '{"typed": "before"}');
    await page.getByRole("button", { name: /Save the draft/ }).click();
    await sees(page, "Saved");
    assert.deepEqual(await contentOf(admin, project, revision), { typed: "before" });
    await close();
  });
});

/** Saves while the broker is away and the log-in has ended: it is asked for, and says that it cannot go on yet. */
async function editsWithoutLogIn(page: Page): Promise<Locator> {
  await page.evaluate((ms) => (window as any).setAhead(ms), TOKEN_MS);
  await pass(page, TOKEN_MS);
  await page.getByLabel("Content").fill('{"typed": "while it was away"}');
  await page.getByRole("button", { name: /Save the draft/ }).click();
  const form = page.getByRole("form", { name: "Log in again" });
  await form.getByRole("alert").filter({ hasText: "Nothing is lost" }).waitFor();
  await form.getByLabel(/Password/).fill(PASSWORD);
  await form.getByRole("button", { name: "Log in" }).click();
  await pass(page, LOG_IN_MS);
  // It says that it cannot, and keeps the password for the next try.
  await form.locator(".failure").waitFor();
  assert.equal(await form.getByLabel(/Password/).inputValue(), PASSWORD);
  assert.equal(await page.getByLabel("Content").inputValue(), '{"typed": "while it was away"}');
  return form;
}
