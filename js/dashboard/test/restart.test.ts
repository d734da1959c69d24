/** The dashboard while the product stops and starts again on the same data. Alone with its instance. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { Browser, Page } from "playwright-core";
import type { Client } from "../../client/src/index.js";
import { control, openAdmin, openBrowser, until } from "../../client/test/product/world.js";
import { askAudience, contentOf, listEvents, makeShow, vote } from "./show.js";
import { DESKTOP, enter, PASSWORD, sees, settle, show, visit, words } from "./world.js";

const PATIENT_MS = 180_000; // a start on a machine that does other things too

let browser: Browser;
let admin: Client;

before(async () => {
  browser = await openBrowser();
  admin = openAdmin();
});

after(async () => {
  admin.close();
  await browser.close();
});

describe("the dashboard", { timeout: 400_000 }, () => {
  test("goes on by itself after a stop and a start, with all that was typed", async () => {
    const { program, project, revision } = await makeShow(admin, "Restarted");
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    page.setDefaultTimeout(PATIENT_MS);
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
    await sees(page, "Not confirmed yet");
    await show(page, `projects/${project}/revisions`, false);
    await control("start");

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

  test("a log-in that ends while the broker is dead is asked for again, and what is under way goes on", async () => {
    const { project, revision } = await makeShow(admin, "Away");
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    page.setDefaultTimeout(PATIENT_MS);
    await logsInByHand(page);
    await enter(page, "admin");
    await show(page, `projects/${project}/revisions/${revision}`);
    await control("kill");
    await page.getByLabel("Content").fill('{"typed": "while it was away"}');
    await page.getByRole("button", { name: /Save the draft/ }).click();
    const form = page.getByRole("form", { name: "Log in again" });
    await form.getByRole("alert").filter({ hasText: "Nothing is lost" }).waitFor();
    await form.getByLabel(/Password/).fill(PASSWORD);
    await form.getByRole("button", { name: "Log in" }).click();
    // It says that it cannot, and keeps the password for the next try.
    await form.locator(".failure").waitFor();
    assert.equal(await form.getByLabel(/Password/).inputValue(), PASSWORD);
    assert.equal(await page.getByLabel("Content").inputValue(), '{"typed": "while it was away"}');
    await control("start");
    await form.getByRole("button", { name: "Log in" }).click();
    await sees(page, "Saved");
    assert.deepEqual(await contentOf(admin, project, revision), { typed: "while it was away" });
    await close();
  });

  test("what is pushed goes on after a log-in that had ended", async () => {
    const { program, project } = await makeShow(admin, "Followed");
    const poll = await askAudience(admin, program, "Still counted?", ["Yes", "No"]);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await logsInByHand(page);
    await enter(page, "admin");
    await show(page, `programs/${program}/polls`);
    const bars = page.getByRole("region", { name: "Still counted?" });
    await bars.waitFor();
    const form = page.getByRole("form", { name: "Log in again" });
    await form.getByRole("alert").waitFor();
    // The broker has ended the subscriptions that need a token by now, or does so at the log-in.
    await form.getByLabel(/Password/).fill(PASSWORD);
    await form.getByRole("button", { name: "Log in" }).click();
    await form.waitFor({ state: "detached" });
    await vote(admin, project, program, poll, "stillCounted", 7);
    await until(async () => (await bars.innerText()).includes("7 answers"), "the answers");
    await page.evaluate(() => {
      (window as any).logsInAgain = true;
    });
    await show(page, "programs");
    await makeShow(admin, "Made after the log-in", project);
    await sees(page, "Made after the log-in");
    await settle(page);
    assert.doesNotMatch(await words(page), /ended the subscription/);
    await close();
  });
});

/** Nobody logs in again but the test. */
async function logsInByHand(page: Page): Promise<void> {
  await page.evaluate(() => {
    (window as any).logsInAgain = false;
  });
}
