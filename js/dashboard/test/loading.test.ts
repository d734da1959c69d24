/** What is seen of a broker that does not answer as it should: the screen says so, and goes on when it does again. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Page, Route } from "playwright-core";
import { newId } from "../../client/src/ids.js";
import { control, publish, until } from "../../client/test/product/world.js";
import { contentOf, importNumbered, listEvents, makeLongShow, makeShow } from "./show.js";
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
  settle,
  show,
  visit,
  words,
} from "./world.js";

/** What a read says that is not tried again by itself. */
const BROKEN = "this part is broken";

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

  test("says that a first load failed, and shows no empty list in its place", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    for (const [path, isNothing, isThere] of [
      [`programs/${made.program}`, "No events yet.", "Score#update"],
      [`programs/${made.program}/polls`, "Nothing was asked yet.", "Who wins?"],
      ["statistics", "No producer is at work.", "Programs live"],
    ] as const) {
      await show(page, "account");
      const { refused } = await failReads(page);
      await show(page, path, false);
      await refused;
      await page
        .getByText(new RegExp(`${BROKEN}|Connection lost`))
        .first()
        .waitFor();
      const seen = await words(page);
      assert.ok(!seen.includes(isNothing), seen);
      await page.unroute("**/api/v1/**");
      // What is not read again by itself has a button.
      await page.evaluate(() => {
        const buttons = [...document.querySelectorAll<HTMLElement>("main button")];
        for (const each of buttons) if (each.textContent === "Try again") each.click();
      });
      await sees(page, isThere);
    }
    await close();
  });

  test("keeps what is typed while a save is under way", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin", true);
    const { project, revision } = made;
    await show(page, `projects/${project}/revisions/${revision}`);
    await page.getByLabel("Content").fill('{"typed": "first"}');
    let answer = () => {};
    const mayAnswer = new Promise<void>((resolve) => (answer = resolve));
    const sent = page.waitForRequest((request) => request.method() === "PUT");
    await page.route("**/revisions/*", async (route) => {
      if (route.request().method() === "PUT") await mayAnswer;
      await route.continue();
    });
    await page.getByRole("button", { name: /Save the draft/ }).click();
    await sent;
    await page.getByLabel("Content").fill('{"typed": "meanwhile"}');
    answer();
    await sees(page, "Saved");
    assert.deepEqual(await contentOf(admin, project, revision), { typed: "first" });
    assert.equal(await page.getByLabel("Content").inputValue(), '{"typed": "meanwhile"}');
    await page.reload();
    await settle(page);
    assert.equal(await page.getByLabel("Content").inputValue(), '{"typed": "meanwhile"}');
    // It stands on what was saved: nobody else has changed it.
    await page.getByRole("button", { name: /Save the draft/ }).click();
    await sees(page, "Saved");
    assert.deepEqual(await contentOf(admin, project, revision), { typed: "meanwhile" });
    await close();
  });

  test("publishes what is pressed while another event is under way, in order, and no press twice", async () => {
    const { program } = await makeShow(admin, "Pressed quickly", made.project);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `programs/${program}`);
    await page.getByRole("option").first().waitFor();
    const before = (await listEvents(admin, program)).length;
    const { held, release } = await holdFirst(page, `**/programs/${program}/events`);
    await press(page, 1);
    await held;
    await press(page, 1);
    await press(page, 2);
    await page.keyboard.press("Control+Enter");
    await press(page, 1); // typed again after another one: it is meant
    await sees(page, "2 more to publish");
    await check(page);
    assert.equal((await listEvents(admin, program)).length, before);
    release();
    await until(async () => (await listEvents(admin, program)).length >= before + 3, "the events");
    await page.getByRole("button", { name: "Publish", exact: true }).waitFor();
    const events = (await listEvents(admin, program)).slice(before);
    assert.deepEqual(
      events.map(({ metadata }) => metadata.pressed),
      [1, 2, 1],
    );
    await close();
  });

  test("keeps an event that fails while the next one waits, and publishes both", async () => {
    const { program } = await makeShow(admin, "Refused", made.project);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `programs/${program}`);
    await page.getByRole("option").first().waitFor();
    const before = (await listEvents(admin, program)).length;
    const refusal = { status: 400, error: "invalid_request", error_description: BROKEN };
    const { held, release } = await holdFirst(page, `**/programs/${program}/events`, (route) =>
      route.fulfill({ status: 400, json: refusal }),
    );
    await press(page, 1);
    await held;
    await press(page, 2);
    // Who looks at something else meanwhile finds it when coming back.
    await show(page, `programs/${program}/polls`);
    release();
    await until(async () => (await listEvents(admin, program)).length > before, "the second event");
    await show(page, `programs/${program}`);
    await page.getByRole("alert").getByText(BROKEN).waitFor();
    await check(page);
    await page.getByRole("button", { name: "Send Score#update again" }).click();
    await page.getByRole("alert").waitFor({ state: "detached" });
    await until(async () => (await listEvents(admin, program)).length > before + 1, "the first event");
    const events = (await listEvents(admin, program)).slice(before);
    assert.deepEqual(
      events.map(({ metadata }) => metadata.pressed),
      [2, 1],
    );
    await close();
  });

  for (const [what, change] of Object.entries({
    made: (prefix: string) =>
      admin.request("POST", "/programs", { body: { id: `${prefix}-new`, name: `${prefix}-new` } }),
    deleted: (prefix: string) =>
      admin.request("DELETE", "/programs/{programId}", { path: { programId: `${prefix}-00100` } }),
    // The broker counts as many as before.
    "made and another one deleted": async (prefix: string) => {
      await admin.request("POST", "/programs", { body: { id: `${prefix}-new`, name: `${prefix}-new` } });
      await admin.request("DELETE", "/programs/{programId}", { path: { programId: `${prefix}-00000` } });
    },
  })) {
    test(`shows each program once when one is ${what} between the reading of two pages`, async () => {
      const { page, prefix, close } = await visitMany();
      const { held, release } = await holdFirst(page, "**/programs/filter?*skip=100*");
      await lookAtBoth(page);
      await held;
      await change(prefix);
      release();
      const query = { search: prefix, sort: "createdTime", order: "desc", limit: 200 } as const;
      const { items } = await admin.request("GET", "/programs/filter", { query });
      const expected = (rows: readonly string[]) => rows.map((_, index) => items[90 + index]?.name);
      await until(async () => {
        const rows = await seenFrom(page, 91, 105);
        return String(rows) === String(expected(rows));
      }, "each program in its place");
      await sees(page, `${items.length} found`);
      await close();
    });
  }

  test("shows programs in pages that never fit together, each once, and stops reading", async () => {
    const { page, prefix, close } = await visitMany();
    let total = PROGRAMS;
    await page.route("**/programs/filter*", async (route) => {
      const told = await (await route.fetch()).json();
      await route.fulfill({ json: { ...told, total: ++total } });
    });
    await lookAtBoth(page);
    await until(async () => (await seenFrom(page, 91, 105)).every((row) => row.startsWith(prefix)), "rows");
    const rows = await seenFrom(page, 91, 105);
    assert.equal(new Set(rows).size, rows.length);
    assert.ok(total - PROGRAMS <= 11, `${total - PROGRAMS} requests`); // one, and five times both
    await close();
  });

  for (const [what, change] of Object.entries({
    // The pages after the first begin further on.
    deleted: async (program: string) => {
      for (const { id: eventId } of (await listEvents(admin, program)).slice(-12))
        await admin.request("DELETE", "/programs/{programId}/events/{eventId}", {
          path: { programId: program, eventId },
        });
    },
    // The second page has none that is older than those here.
    published: async (program: string) => {
      for (const first of [5_000, 6_000]) await publish(admin, program, 1_000, first);
    },
  })) {
    test(`reads older events where those here end, when others are ${what} without a WebSocket`, async () => {
      const program = await makeLongShow(admin, 1_001);
      const { page, close } = await visit(browser, { viewport: DESKTOP });
      await enter(page, "admin");
      await show(page, `programs/${program}`);
      await sees(page, "1,000 of 1,001 are here");
      await isCut(page);
      await change(program);
      await page.getByRole("button", { name: "Read more" }).click();
      const isOldest = async () => {
        await page.getByRole("listbox").focus();
        await page.keyboard.press("End");
        const last = page.getByRole("option", { selected: true });
        return (await last.textContent())?.includes('"index":0}') === true;
      };
      await until(isOldest, "the first event at the end");
      await page.evaluate(() => ((window as any).sockets.isBlocked = false));
      const { total } = await admin.request("GET", "/programs/{programId}/events/filter", {
        path: { programId: program },
      });
      await sees(page, `${total.toLocaleString("en")} in all`);
      await page.getByRole("button", { name: "Read more" }).waitFor({ state: "detached" });
      assert.ok(await isOldest());
      await close();
    });
  }

  test("shows no event of a history that was replaced while older ones were read", async () => {
    const program = await makeLongShow(admin, 1_500);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `programs/${program}`);
    await sees(page, "1,000 of 1,500 are here");
    let release = () => {};
    const isReleased = new Promise<void>((resolve) => (release = resolve));
    const isRead = new Promise<void>((resolve) => {
      const hold = async (route: Route) => {
        const response = await route.fetch();
        resolve();
        await isReleased;
        await route.fulfill({ response });
      };
      void page.route("**/events/filter?*skip=999*", hold, { times: 1 });
    });
    const button = page.getByRole("button", { name: "Read more" });
    await button.click();
    await isRead;
    await importNumbered(admin, program, 1_500, 5_000);
    await page.getByRole("option", { name: /"index":6499\}/ }).waitFor();
    release();
    await until(() => button.isEnabled(), "the end of the reading");
    await sees(page, "1,000 of 1,500 are here");
    await close();
  });

  test("leaves no draft of a value that was stored", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin", true);
    await show(page, `projects/${made.project}/values`);
    await page.getByLabel("Value", { exact: true }).fill('{"stored": true}');
    await page.getByRole("button", { name: "Store" }).click();
    await sees(page, "The value was stored");
    assert.deepEqual(JSON.parse(await page.getByLabel("Value", { exact: true }).inputValue()), {
      stored: true,
    });
    await page.reload();
    await settle(page);
    const drafts = await page.evaluate(() =>
      Object.keys(sessionStorage).filter((name) => name.startsWith("onair-draft")),
    );
    assert.deepEqual(drafts, []);
    await close();
  });

  test("does not take projects that could not be read for none, when a program is made", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, "programs");
    const { refused } = await failReads(page);
    await page.getByRole("button", { name: "New program" }).click();
    await refused;
    const dialog = page.getByRole("dialog", { name: "New program" });
    await dialog.getByRole("alert").getByText(BROKEN).waitFor();
    await check(page);
    await page.unroute("**/api/v1/**");
    await dialog.getByRole("button", { name: "Try again" }).click();
    await dialog.getByLabel("Project", { exact: true }).selectOption(made.project);
    await close();
  });
});

/** From now on nothing is read; `refused` resolves with the first. */
async function failReads(page: Page): Promise<{ refused: Promise<void> }> {
  let first = () => {};
  const refused = new Promise<void>((resolve) => (first = resolve));
  await page.route("**/api/v1/**", async (route) => {
    if (route.request().method() !== "GET") return route.continue();
    await route.fulfill({ status: 500, json: { status: 500, error: "internal", error_description: BROKEN } });
    first();
  });
  return { refused };
}

/** How many programs `visitMany` makes: two pages. */
const PROGRAMS = 130;

/** The list of programs that have a prefix, whose first page is read. Nobody notifies it of changes. */
async function visitMany() {
  const prefix = `many-${newId().slice(0, 8)}`;
  const many = { prefix: `${prefix}-`, project: made.project, count: String(PROGRAMS), live: "0" };
  await control("make-programs", many);
  const { page, close } = await visit(browser, { viewport: DESKTOP });
  await enter(page, "admin");
  await page.getByLabel("Search").fill(prefix);
  await sees(page, `${PROGRAMS} found`);
  await isCut(page);
  return { page, prefix, close };
}

/** Scrolls to where the first page of programs ends and the second begins. */
async function lookAtBoth(page: Page): Promise<void> {
  await page.evaluate(() => {
    (document.querySelector(".virtual") as HTMLElement).scrollTop = 92 * 44;
  });
}

/** The programs in a part of the list, by their places, which count from one; what is not there is empty. */
function seenFrom(page: Page, first: number, last: number): Promise<string[]> {
  return page.evaluate(
    ([from, to]) => {
      const rows = [...document.querySelectorAll(".virtual .row")];
      const at = (place: number) => rows.filter((row) => row.getAttribute("aria-posinset") === String(place));
      const places = Array.from({ length: to - from + 1 }, (_, index) => from + index);
      return places.map((place) =>
        at(place)
          .map((row) => row.querySelector("strong")?.textContent ?? "")
          .join(),
      );
    },
    [first, last] as const,
  );
}

/** The page has no WebSocket from now on. */
function isCut(page: Page): Promise<void> {
  return page.evaluate(() => {
    (window as any).sockets.isBlocked = true;
    (window as any).sockets.cut();
  });
}

/** Types an event and publishes it by the keyboard. */
async function press(page: Page, number: number): Promise<void> {
  await page.getByLabel("Event", { exact: true }).fill("Score#update");
  await page.getByLabel("Metadata").fill(JSON.stringify({ pressed: number }));
  await page.keyboard.press("Control+Enter");
}

/** Holds the first request to a path until it is released; `held` resolves when it came. */
async function holdFirst(
  page: Page,
  path: string,
  answer = (route: Route): Promise<void> => route.continue(),
): Promise<{ held: Promise<void>; release: () => void }> {
  let release = () => {};
  const isReleased = new Promise<void>((resolve) => (release = resolve));
  let come = () => {};
  const held = new Promise<void>((resolve) => (come = resolve));
  await page.route(
    path,
    async (route) => {
      come();
      await isReleased;
      await answer(route);
    },
    { times: 1 },
  );
  return { held, release };
}
