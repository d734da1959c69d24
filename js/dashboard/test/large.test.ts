/** An account with 10,000 programs: lists cost as much as with thirty. After the others, for the programs stay. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Page } from "playwright-core";
import { newId } from "../../client/src/ids.js";
import { control } from "../../client/test/product/world.js";
import { admin, browser, DESKTOP, enter, makeUser, openStage, sees, settle, show, visit } from "./world.js";

const MANY = 10_000;
const ON_AIR = 20;
const MOST_ELEMENTS = 1_500; // a list of thirty rows makes some four hundred

const project = `p-${newId()}`;
const prefix = `many-${newId().slice(0, 8)}`;
const nameOf = (index: number) => `${prefix}-${String(index).padStart(5, "0")}`;

openStage(async () => {
  await admin.request("POST", "/projects", { body: { id: project, name: "Many" } });
  // By the database: through the API they take minutes.
  const many = { prefix: `${prefix}-`, project, count: String(MANY), live: String(ON_AIR) };
  await control("make-programs", many);
  await admin.request("POST", "/programs", { body: { id: newId(), name: "Of nobody's search" } });
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
    const list = page.getByRole("listbox", { name: "Programs" });
    const end = page.getByRole("option", { name: new RegExp(`${prefix}-000\\d\\d`) }).last();
    await list.focus();
    await page.keyboard.press("End");
    await end.waitFor();
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

// By itself, for it makes more of them.
describe("the list of programs", { timeout: 120_000 }, () => {
  test("who looks at the end of ten thousand programs stays there while programs come and change", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await page.getByLabel("Search").fill(prefix);
    await sees(page, "10,000 found");
    const list = page.getByRole("listbox", { name: "Programs" });
    await list.focus();
    await page.keyboard.press("End");
    await page.getByRole("option", { name: nameOf(0) }).waitFor();
    const before = await seen(page);
    assert.ok(before.length > 5);
    assert.match(before.at(-1) as string, new RegExp(nameOf(0)));

    // Three come in front of all others; what is in view is read again.
    for (const number of [1, 2, 3]) {
      const id = `${prefix}-new-${number}`;
      await admin.request("POST", "/programs", { body: { id, name: id, projectId: project } });
      await sees(page, `10,00${number} found`);
      assert.deepEqual(await seen(page), before);
    }
    // One that is not in view, and then one that is, gets another name.
    const read = page.waitForResponse((reply) => reply.url().includes("/programs/filter"));
    await rename(nameOf(5_000), "Elsewhere");
    await read;
    await rename(nameOf(1), "In view");
    await page.getByRole("option", { name: "In view" }).waitFor();
    assert.deepEqual(
      (await seen(page)).map((row) => row.replace("In view", nameOf(1))),
      before,
    );
    // What was chosen is still the last one.
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: nameOf(0) }).waitFor();
    await close();
  });
});

/** The page has no more elements than a short list makes. */
async function isSmall(page: Page): Promise<void> {
  const elements = await page.evaluate(() => document.querySelectorAll("*").length);
  assert.ok(elements < MOST_ELEMENTS, `${elements} elements`);
}

/** The rows of the list that are in view: where each begins and what it says. */
function seen(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const box = document.querySelector(".virtual")?.getBoundingClientRect() as DOMRect;
    const rows = [...document.querySelectorAll<HTMLElement>(".virtual .row")]
      .map((row) => ({ y: row.getBoundingClientRect().top, text: row.innerText.replace(/\s+/g, " ") }))
      .filter(({ y }) => y >= box.top - 1 && y < box.bottom - 1)
      .sort((one, other) => one.y - other.y);
    return rows.map(({ y, text }) => `${Math.round(y - box.top)} ${text}`);
  });
}

/** Gives a program another name, and leaves all else. */
async function rename(id: string, name: string): Promise<void> {
  const path = { programId: id };
  const { scheduledStartTime, scheduledEndTime } = await admin.request("GET", "/programs/{programId}", {
    path,
  });
  const body = { id, name, projectId: project, scheduledStartTime, scheduledEndTime };
  await admin.request("PUT", "/programs/{programId}", { path, body });
}
