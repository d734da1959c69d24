/** An account with 10,000 programs: lists cost as much as with thirty. After the others, for the programs stay. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { Browser, Page } from "playwright-core";
import type { Client } from "../../client/src/index.js";
import { newId } from "../../client/src/storage.js";
import { openAdmin, openBrowser } from "../../client/test/product/world.js";
import { DESKTOP, enter, makeUser, sees, settle, show, visit } from "./world.js";

const MANY = 10_000;
const ON_AIR = 20;
const WORKERS = 40;
const MOST_ELEMENTS = 1_500; // a list of thirty rows makes some four hundred

let browser: Browser;
let admin: Client;
const project = `p-${newId()}`;
const prefix = `many-${newId().slice(0, 8)}`;
const nameOf = (index: number) => `${prefix}-${String(index).padStart(5, "0")}`;

before(
  async () => {
    browser = await openBrowser();
    admin = openAdmin();
    await admin.request("POST", "/projects", { body: { id: project, name: "Many" } });
    const times = {
      scheduledStartTime: new Date(Date.now() - 60_000).toISOString(),
      scheduledEndTime: new Date(Date.now() + 3_600_000).toISOString(),
    };
    let next = 0;
    const work = async () => {
      for (let index = next++; index < MANY; index = next++) {
        const about = { id: nameOf(index), name: nameOf(index), projectId: project };
        await admin.request("POST", "/programs", { body: index < ON_AIR ? { ...about, ...times } : about });
      }
    };
    await Promise.all(Array.from({ length: WORKERS }, work));
  },
  { timeout: 240_000 },
);

after(async () => {
  admin.close();
  await browser.close();
});

describe("the dashboard", { concurrency: 2, timeout: 120_000 }, () => {
  test("ten thousand programs cost as many elements as thirty, and each is found", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await page.getByRole("listbox", { name: "Programs" }).waitFor();
    await page.getByText(/more are on air; the list below has all/).waitFor();
    await isSmall(page);
    await page.keyboard.press("/");
    await page.keyboard.type(prefix);
    await sees(page, "10,000 found");
    await page.getByRole("listbox", { name: "Programs" }).focus();
    await page.keyboard.press("End");
    await page
      .getByRole("option", { name: new RegExp(`${prefix}-000\\d\\d`) })
      .last()
      .waitFor();
    await isSmall(page);
    await page.keyboard.press("/");
    await page.keyboard.press("Control+A");
    await page.keyboard.type(nameOf(4711));
    await sees(page, "1 found");
    await page.getByRole("listbox", { name: "Programs" }).focus();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: nameOf(4711) }).waitFor();
    await close();
  });

  test("a project with ten thousand programs is shown to who may only read, and in the preview", async () => {
    const username = `user-${newId().slice(0, 8)}`;
    await makeUser(admin, username, "user", [project]);
    const path = { projectId: project };
    const { id } = await admin.request("POST", "/projects/{projectId}/application/revisions", {
      path,
      body: { title: "Many", content: {} },
    });
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, username);
    for (const place of ["programs", `projects/${project}`]) {
      await show(page, place);
      const list = page.getByRole("listbox", { name: "Programs" });
      await list.waitFor();
      assert.equal(await list.getByRole("option").first().getAttribute("aria-setsize"), String(MANY));
      await isSmall(page);
      await page.getByLabel("Search").fill(nameOf(4711));
      await list.getByRole("option", { name: nameOf(4711) }).waitFor();
      assert.equal(await list.getByRole("option").count(), 1);
    }
    await show(page, `projects/${project}/revisions/${id}`);
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByLabel("With the events of").getByRole("option").nth(1).waitFor({ state: "attached" });
    await settle(page);
    await isSmall(page);
    await close();
  });
});

/** The page has no more elements than a short list makes. */
async function isSmall(page: Page): Promise<void> {
  const elements = await page.evaluate(() => document.querySelectorAll("*").length);
  assert.ok(elements < MOST_ELEMENTS, `${elements} elements`);
}
