/** The dashboard in a real browser, served by a real instance with its Content-Security-Policy. */
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { Browser, Page } from "playwright-core";
import type { Client } from "../../client/src/index.js";
import { newId } from "../../client/src/storage.js";
import { openAdmin, openBrowser, publish, URL_OF_BROKER, until } from "../../client/test/product/world.js";
import { enter, type Made, makeUser, pathOf, SCREENS, sees, settle, show, visit, words } from "./world.js";

const SHOTS = process.env.ONAIR_SCREENS as string;
const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const DESKTOP = { width: 1440, height: 900 };
const PHONE = { width: 390, height: 844 };

let browser: Browser;
let admin: Client;
let made: Made;
let producer: string;

before(async () => {
  browser = await openBrowser();
  admin = openAdmin();
  made = await makeShow();
  producer = `producer-${newId().slice(0, 8)}`;
  await makeUser(admin, producer, "producer", [made.project]);
});

after(async () => {
  admin.close();
  await browser.close();
});

/** A program on air with events, a poll that was answered, and a draft; in a project of its own unless one is given. */
async function makeShow(name = "The final", given = ""): Promise<Made> {
  const now = Date.now();
  const project = given || `p-${newId()}`;
  const about = { id: project, name: "Football", description: "All matches" };
  if (!given) await admin.request("POST", "/projects", { body: about });
  const body = {
    id: `final-${newId()}`,
    name,
    projectId: project,
    scheduledStartTime: new Date(now - 3_600_000).toISOString(),
    scheduledEndTime: new Date(now + 7_200_000).toISOString(),
  };
  const program = (await admin.request("POST", "/programs", { body })).id;
  const events = Array.from(
    { length: 60 },
    (_, index) => EVENTS[index % EVENTS.length] as (typeof EVENTS)[number],
  );
  await admin.request("POST", "/programs/{programId}/events", {
    path: { programId: program },
    body: { events },
  });
  const poll = await askAudience(program, "Who wins?", ["Home", "Away", "Nobody"]);
  await vote(project, program, poll, "whoWins", 64);
  const path = { projectId: project };
  const revision = await admin.request("POST", "/projects/{projectId}/application/revisions", {
    path,
    body: {
      title: "Season 2026",
      content: { theme: "dark", scoreboard: { x: 80, y: 40 }, colours: ["#c8102e"] },
    },
  });
  return { program, project, revision: revision.id };
}

const EVENTS = [
  { event: "Score#update", metadata: { home: 2, away: 1 } },
  { event: "Clock#tick", metadata: { running: true, seconds: 1312 } },
  { event: "LineUp#show", metadata: { team: "home", players: ["Kim", "Vo", "Ada"] } },
  { event: "LowerThird#show", metadata: { name: "Eileen Collins", role: "Commander", seconds: 8 } },
];

async function askAudience(programId: string, title: string, options: string[]): Promise<string> {
  const body = { event: "Poll#show", metadata: { title, options } };
  const poll = await admin.request("POST", "/programs/{programId}/events", { path: { programId }, body });
  return (poll as { id: string }).id;
}

/** So many visitors answer: two thirds the first option, the others the second. */
async function vote(
  projectId: string,
  programId: string,
  contextId: string,
  measureName: string,
  count: number,
) {
  const responses = Array.from({ length: count }, (_, index) => ({
    measureName,
    contextId,
    measureValue: index % 3 ? 0 : 1,
    visitorId: `${newId()}`,
  }));
  const path = { accountId: "demo", projectId, programId };
  await admin.request("POST", "/responses/{accountId}/{projectId}/{programId}", {
    path,
    body: { responses },
  });
}

describe("the dashboard", { concurrency: 3, timeout: 240_000 }, () => {
  test("a whole show is run from it", async () => {
    const { page, urls, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, producer);
    const programId = `show-${newId()}`;
    await page.getByRole("button", { name: "New program" }).click();
    await page.getByLabel("Name", { exact: true }).fill("Evening show");
    assert.equal(await page.getByLabel("Id", { exact: true }).inputValue(), "evening-show");
    await page.getByLabel("Id", { exact: true }).fill(programId);
    await page.getByLabel("Project", { exact: true }).selectOption(made.project);
    await page.getByRole("button", { name: "Make it" }).click();
    await page.getByRole("heading", { name: "Evening show" }).waitFor();

    // From here on by the keyboard alone.
    await page.getByText("No events yet.").waitFor();
    await page.keyboard.press("e");
    await page.keyboard.type("Score#update");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Control+A");
    await page.keyboard.type('{"home": 1, "away": 0}');
    await page.keyboard.press("Control+Enter");
    await page.getByRole("option", { name: /Score#update/ }).waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("1"); // the template
    await page.keyboard.press("Control+A");
    await page.keyboard.type('{"home": 2, "away": 0}');
    await page.keyboard.press("Control+Enter");
    await until(async () => (await page.getByRole("option").count()) === 2, "the second event");
    const stored = await listEvents(programId);
    assert.deepEqual(
      stored.map(({ event, metadata }) => [event, metadata]),
      [
        ["Score#update", { home: 1, away: 0 }],
        ["Score#update", { home: 2, away: 0 }],
      ],
    );

    await page.keyboard.press("Escape");
    await page.keyboard.press("]");
    await page.getByText("Nothing was asked yet.").waitFor();
    await page.keyboard.press("a");
    await page.keyboard.type("Who scores next?");
    await page.keyboard.press("Tab");
    await page.keyboard.type("Kim\nVo");
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Ask", exact: true }).press("Enter");
    const poll = page.getByRole("region", { name: "Who scores next?" });
    await poll.waitFor();
    const asked = (await listEvents(programId)).at(-1) as { id: string };
    await vote(made.project, programId, asked.id, "whoScoresNext", 30);
    await until(async () => (await poll.innerText()).includes("30 answers"), "the answers");
    assert.match(await poll.innerText(), /Kim\s+66\.7 %\s+20\s+Vo\s+33\.3 %\s+10/);
    await page.keyboard.press("Escape");
    await page.evaluate(() => (document.activeElement as HTMLElement).blur());
    await page.keyboard.press("c");
    await poll.getByText("Closed").waitFor();
    // Within a second no answer is taken any more.
    const isRefused = () =>
      vote(made.project, programId, asked.id, "whoScoresNext", 1).then(
        () => false,
        ({ status }) => status === 409,
      );
    await until(isRefused, "the refusal");

    await show(page, `projects/${made.project}/revisions`);
    await page.getByRole("button", { name: /New draft/ }).click();
    const content = page.getByLabel("Content");
    await content.waitFor();
    await content.fill('{"theme": "light"}');
    await page.getByText("What you changed").waitFor();
    await page.keyboard.press("Control+S");
    await sees(page, "Saved");
    await page.getByRole("button", { name: "Publish…" }).click();
    await page.getByRole("button", { name: "Publish", exact: true }).click();
    await page.getByText("published", { exact: true }).waitFor();

    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("button", { name: "Log in", exact: true }).waitFor();
    assert.ok(urls.some((url) => url.startsWith("ws:")));
    assert.deepEqual(
      urls.filter((url) => /token=|eyJ/.test(url)),
      [],
    );
    const storage = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
    assert.ok(!storage.includes("eyJ"), storage);
    await close();
  });

  test("each role sees what it may", async () => {
    const places = {
      admin: ["Programs", "Statistics", "Projects", "Pictures", "Users", "Audit log", "Health", "Account"],
      producer: ["Programs", "Statistics", "Projects", "Pictures", "Health", "Account"],
      user: ["Programs", "Statistics", "Projects", "Pictures", "Health", "Account"],
      client: ["Programs", "Pictures", "Health", "Account"],
    };
    for (const [role, expected] of Object.entries(places)) {
      const username = role === "admin" ? "admin" : `${role}-${newId().slice(0, 8)}`;
      if (role !== "admin") await makeUser(admin, username, role, [made.project]);
      const { page, close } = await visit(browser, { viewport: DESKTOP });
      await enter(page, username);
      const links = await page.getByRole("navigation", { name: "Main" }).getByRole("link").allInnerTexts();
      assert.deepEqual(
        links.map((text) => text.split("\n")[0]),
        expected,
        role,
      );
      await settle(page);
      const mayPublish = role === "admin" || role === "producer";
      assert.equal(await page.getByRole("button", { name: "New program" }).count(), mayPublish ? 1 : 0);
      await show(page, `programs/${made.program}`);
      await page.getByRole("option").first().waitFor();
      assert.equal(await page.getByRole("button", { name: /Publish/ }).count(), mayPublish ? 1 : 0);
      if (role === "client") {
        // What the navigation does not show is refused by the broker, in words.
        await show(page, "users");
        await page.getByRole("alert").waitFor();
        assert.match(await page.getByRole("alert").innerText(), /role/);
      } else {
        await show(page, `projects/${made.project}/revisions/${made.revision}`);
        assert.equal(await page.getByLabel("Content").isEditable(), mayPublish);
        assert.equal(await page.getByRole("link", { name: "Members" }).count(), mayPublish ? 1 : 0);
      }
      await close();
    }
  });

  test("nothing is lost while the network is away", async () => {
    const { program } = await makeShow("Cut off", made.project);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, producer);
    await show(page, `programs/${program}`);
    await page.getByRole("option").first().waitFor();
    await page.getByLabel("Event", { exact: true }).fill("Score#update");
    await page.getByLabel("Metadata").fill('{"typed": "before"}');
    await page.context().setOffline(true);
    await page.evaluate(() => (window as any).sockets.cut());
    await page.getByText("Connection lost, coming back…").waitFor();
    await page.getByRole("button", { name: /^Publish/ }).click();
    await publish(admin, program, 5);
    await sees(page, "Not confirmed yet");
    await page.context().setOffline(false);
    await sees(page, "Published Score#update");
    await until(async () => /Live/.test(await words(page)), "the connection");
    const events = await listEvents(program);
    assert.equal(events.filter(({ metadata }) => metadata.typed === "before").length, 1);
    await sees(page, `${events.length} in all`);
    const shown = await page.getByRole("option").locator(".seq").allInnerTexts();
    const expected = events.map(({ seq }) => String(seq)).reverse();
    assert.deepEqual(shown.slice(0, 6), expected.slice(0, 6));
    assert.equal(await page.getByLabel("Metadata").inputValue(), '{"typed": "before"}');
    await close();
  });

  test("a revision is seen in the overlay before it is published, with no token in a URL", async () => {
    const { program, project, revision } = await makeShow("Previewed");
    const { page, urls, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `projects/${project}/revisions/${revision}`);
    await page.getByRole("button", { name: "Preview" }).click();
    const stage = page.frameLocator("iframe[title=Overlay]").locator("onair-overlay .stage");
    const board = stage.locator("[data-graphic=scoreboard]");
    const isAt = (place: string) => stage.locator(`[data-graphic=scoreboard].on[data-at=${place}]`).waitFor();
    await isAt("top-left");
    await stage.locator("[data-graphic=poll].on").waitFor();
    await page
      .getByLabel("Content")
      .fill('{"overlay": {"theme": "light", "scoreboard": {"position": "top-right"}}}');
    await isAt("top-right");
    assert.match((await stage.getAttribute("class")) ?? "", /light/);
    // What is no JSON changes nothing, and nothing of it was saved.
    await page.getByLabel("Content").fill('{"overlay": ');
    await page.getByText("this is how it was before").waitFor();
    await isAt("top-right");
    assert.deepEqual((await contentOf(project, revision)).theme, "dark");
    await check(page);
    await page.screenshot({ path: join(SHOTS, "preview-light.png"), fullPage: true });

    await page.getByLabel("With the events of").selectOption(program);
    const body = { event: "Score#show", metadata: { home: 7, away: 5, homeTeam: "EAS", awayTeam: "WES" } };
    await admin.request("POST", "/programs/{programId}/events", { path: { programId: program }, body });
    await until(async () => /EAS[^]*7/.test(await board.innerText()), "the program's own score");
    assert.deepEqual(
      urls.filter((url) => /token=|eyJ/.test(url)),
      [],
    );
    await close();
  });

  test("two people who edit one revision are shown both versions", async () => {
    const { project, revision } = await makeShow();
    const path = `projects/${project}/revisions/${revision}`;
    const people = [await visit(browser, { viewport: DESKTOP }), await visit(browser, { viewport: DESKTOP })];
    const [one, other] = people.map(({ page }) => page) as [Page, Page];
    for (const page of [one, other]) {
      await enter(page, "admin");
      await show(page, path);
      await page.getByLabel("Content").waitFor();
    }
    await one.getByLabel("Content").fill('{"by": "one"}');
    await other.getByLabel("Content").fill('{"by": "other"}');
    await one.getByRole("button", { name: /Save the draft/ }).click();
    await sees(one, "Saved");
    await other.getByRole("button", { name: /Save the draft/ }).click();
    await other.getByText("Somebody else has changed this revision").waitFor();
    assert.match(await other.getByLabel("Their version").innerText(), /"by": "one"/);
    assert.match(await other.getByLabel("Your version").innerText(), /"by": "other"/);
    assert.equal(await other.getByLabel("Content").inputValue(), '{"by": "other"}');
    assert.deepEqual(await contentOf(project, revision), { by: "one" });
    await check(other);
    await other.getByRole("button", { name: /Go on with mine/ }).click();
    await other.getByRole("button", { name: /Save the draft/ }).click();
    await sees(other, "Saved");
    assert.deepEqual(await contentOf(project, revision), { by: "other" });
    // The first one stands on what is gone; it takes the other's.
    await one.getByLabel("Content").fill('{"by": "one again"}');
    await one.getByRole("button", { name: /Save the draft/ }).click();
    await one.getByRole("button", { name: /Take theirs/ }).click();
    assert.match(await one.getByLabel("Content").inputValue(), /"by": "other"/);
    for (const { close } of people) await close();
  });

  test("a log-in that ends in the middle of an edit loses nothing", async () => {
    const { project, revision } = await makeShow();
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await page.evaluate(() => {
      (window as any).logsInAgain = false;
    });
    await enter(page, "admin", true);
    await show(page, `projects/${project}/revisions/${revision}`);
    await page.getByLabel("Content").fill('{"typed": 1}');
    // The token of these tests lives for seconds.
    const form = page.getByRole("form", { name: "Log in again" });
    await form.getByRole("alert").waitFor();
    await page.getByLabel("Content").fill('{"typed": 2}');
    await page.getByRole("button", { name: /Save the draft/ }).click();
    await page.getByRole("button", { name: "Saving…" }).waitFor();
    assert.notDeepEqual(await contentOf(project, revision), { typed: 2 });
    await form.getByLabel(/Password/).fill("not the password");
    await form.getByRole("button", { name: "Log in" }).click();
    await form.locator(".failure").waitFor();
    await form.getByLabel(/Password/).fill(process.env.ONAIR_PASSWORD as string);
    await form.getByRole("button", { name: "Log in" }).click();
    await sees(page, "Saved");
    assert.deepEqual(await contentOf(project, revision), { typed: 2 });
    // A reload keeps the log-in, for the user wished so, and what is typed.
    await page.getByLabel("Content").fill('{"typed": 3}');
    await page.reload();
    await page.evaluate(() => {
      (window as any).logsInAgain = true;
    });
    await settle(page);
    assert.equal(await page.getByLabel("Content").inputValue(), '{"typed": 3}');
    await close();
  });

  test("nothing that is stored becomes part of the page", async () => {
    const markup = CORPUS.join(" ");
    const { program, project } = await makeShow(`name ${markup}`.slice(0, 1000));
    const poisoned: Made = { program, project, revision: "" };
    await admin.request("PUT", "/projects/{projectId}", {
      path: { projectId: project },
      body: { name: `project ${markup}`.slice(0, 1000), description: markup, metadata: { [markup]: markup } },
    });
    poisoned.revision = (
      await admin.request("POST", "/projects/{projectId}/application/revisions", {
        path: { projectId: project },
        body: { title: markup, description: markup, content: { [markup]: markup } },
      })
    ).id;
    const user = await makeUser(admin, `${CORPUS[0]}${newId().slice(0, 8)}`, "user", [project]);
    await admin.request("PUT", "/users/{userId}", { path: { userId: user.id }, body: { name: markup } });
    await askAudience(program, markup, CORPUS);
    const body = {
      event: "Text#show",
      metadata: { [markup]: markup, large: `${CORPUS[1]}${"ä".repeat(31_000)}` },
    };
    await admin.request("POST", "/programs/{programId}/events", { path: { programId: program }, body });
    const token = await admin.request("POST", "/users/me/tokens", { body: { name: markup } });
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    page.on("dialog", () => assert.fail("a script ran"));
    await enter(page, "admin");
    for (const screen of Object.keys(SCREENS)) {
      await show(page, pathOf(screen, poisoned));
      if (screen === "events") {
        await page.getByRole("option", { name: /Text#show/ }).click();
        await page.getByLabel("Metadata").last().waitFor();
      }
      if (screen === "values") {
        await sees(page, "Live");
        await admin.request("POST", "/storage/{projectId}", {
          path: { projectId: project },
          body: { metadata: { [markup]: markup } },
        });
        await page.locator("td.meta").waitFor();
      }
      // No element of the page is one of the corpus.
      const found = await page.evaluate(() => ({
        ran: (window as any).xss,
        elements: document.querySelectorAll(
          "main :is(script, iframe, object, embed, svg, style, base, marquee, [onerror], [onload])",
        ).length,
        links: [...document.querySelectorAll("a")].filter((link) => !/^(http|blob)/.test(link.href)).length,
      }));
      assert.deepEqual(found, { ran: undefined, elements: 0, links: 0 }, screen);
    }
    await show(page, `programs/${program}`);
    assert.ok((await words(page)).includes("<img src=x onerror=window.xss=1>"));
    await admin.request("DELETE", "/users/me/tokens/{tokenId}", { path: { tokenId: token.id } });
    await admin.request("DELETE", "/users/{userId}", { path: { userId: user.id } });
    await close();
  });

  test("ten thousand events cost as many elements as thirty", async () => {
    const { program } = await makeShow("Long");
    const events = Array.from({ length: 10_000 }, (_, index) => ({
      event: "Score#update",
      metadata: { index },
    }));
    const path = { programId: program };
    await admin.request("POST", "/programs/{programId}/events/import", { path, body: { events } });
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `programs/${program}`);
    for (let count = 2; count <= 10; count++) {
      await page.getByRole("button", { name: "Read 1,000 more" }).click();
      if (count < 10) await sees(page, `${count},000 of 10,000 are here`);
    }
    await page.getByRole("button", { name: "Read 1,000 more" }).waitFor({ state: "detached" });
    const list = page.getByRole("listbox");
    await list.focus();
    await page.keyboard.press("End");
    await page.getByRole("option", { name: /"index":0\}/ }).waitFor();
    assert.ok((await page.getByRole("option").count()) < 80);
    // What comes meanwhile does not move what is looked at, and is there at the top.
    const before = await page.getByRole("option", { name: /"index":0\}/ }).boundingBox();
    await publish(admin, program, 500, 20_000);
    await sees(page, "10,500 in all");
    const now = await page.getByRole("option", { name: /"index":0\}/ }).boundingBox();
    assert.equal(now?.y, before?.y);
    await list.focus();
    await page.keyboard.press("Home");
    await page.getByRole("option", { name: /"number":20499/ }).waitFor();
    assert.ok((await page.getByRole("option").count()) < 80);
    await close();
  });

  test("events go out as a file and come in again", async () => {
    const { program } = await makeShow("Exported");
    const before = await listEvents(program);
    const { page, close } = await visit(browser, { viewport: DESKTOP, acceptDownloads: true });
    await enter(page, "admin");
    await show(page, `programs/${program}/history`);
    const [download] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("button", { name: "JSON" }).click(),
    ]);
    assert.equal(download.suggestedFilename(), `${program}.json`);
    const file = await readFile(await download.path());
    assert.equal(JSON.parse(file.toString()).events.length, before.length);
    await publish(admin, program, 3);
    const buffer = Buffer.from(file);
    await page
      .getByLabel("Exported file")
      .setInputFiles({ name: "a.json", mimeType: "application/json", buffer });
    await page.getByRole("button", { name: /^Import/ }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Import" }).click();
    await sees(page, `${before.length} events imported, ${before.length + 3} replaced`);
    const after = await listEvents(program);
    const said = (all: typeof before) =>
      all.map(({ event, metadata, timecode }) => [event, metadata, timecode]);
    assert.deepEqual(said(after), said(before));
    // A file with a fault changes nothing and says where it is.
    const faulty = {
      name: "b.json",
      mimeType: "application/json",
      buffer: Buffer.from('{"events":[{"event":"no name"}]}'),
    };
    await page.getByLabel("Exported file").setInputFiles(faulty);
    await page.getByRole("button", { name: /^Import/ }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Import" }).click();
    await page.getByText("events[0].event").waitFor();
    await close();
  });

  test("programs beyond the first page are read when they are looked at", async () => {
    const prefix = `many-${newId().slice(0, 8)}`;
    const all = Array.from({ length: 130 }, (_, index) => `${prefix}-${String(index).padStart(3, "0")}`);
    for (let from = 0; from < all.length; from += 10) {
      const some = all
        .slice(from, from + 10)
        .map((id) => admin.request("POST", "/programs", { body: { id, name: id } }));
      await Promise.all(some);
    }
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await page.keyboard.press("/");
    await page.keyboard.type(prefix);
    await sees(page, "130 found");
    await page.getByRole("listbox", { name: "Programs" }).focus();
    await page.keyboard.press("End");
    await page
      .getByRole("option", { name: new RegExp(`${prefix}-00\\d`) })
      .last()
      .waitFor();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: new RegExp(prefix) }).waitFor();
    await close();
  });

  test("it starts where the browser's language is not one", async () => {
    const posix = await openBrowser({ ...process.env, LANGUAGE: "", LC_ALL: "C", LANG: "C" });
    const page = await posix.newPage();
    await page.goto(`${URL_OF_BROKER}/dashboard/`);
    assert.equal(await page.evaluate(() => navigator.language), "en-US@posix");
    await page.getByLabel("User name").waitFor();
    await posix.close();
  });

  test("keys are listed, navigate, and can be switched off", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await settle(page);
    await page.evaluate(() => (document.activeElement as HTMLElement).blur());
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard" }).waitFor();
    await check(page);
    await page.keyboard.press("Escape");
    await page.keyboard.press("g");
    await page.keyboard.press("s");
    await page.getByRole("heading", { name: "Statistics" }).waitFor();
    await page.waitForFunction(() => document.activeElement?.tagName === "H1");
    await page.keyboard.press("?");
    await page.getByLabel("Single keys do something").uncheck();
    await page.keyboard.press("Escape");
    await page.keyboard.press("g");
    await page.keyboard.press("p");
    assert.equal(await page.getByRole("heading", { name: "Statistics" }).count(), 1);
    await close();
  });
});

/** After the others: what they make is not in its pictures. */
describe("every screen", { concurrency: 3, timeout: 240_000 }, () => {
  for (const [look, options] of Object.entries({
    light: { viewport: DESKTOP, colorScheme: "light" },
    dark: { viewport: DESKTOP, colorScheme: "dark" },
    phone: { viewport: PHONE, colorScheme: "light" },
  } as const)) {
    test(`is accessible: ${look}`, async () => {
      mkdirSync(SHOTS, { recursive: true });
      const { page, close } = await visit(browser, options);
      await check(page);
      await page.screenshot({ path: join(SHOTS, `login-${look}.png`) });
      await enter(page, "admin");
      for (const screen of Object.keys(SCREENS)) {
        await show(page, pathOf(screen, made));
        await page.screenshot({ path: join(SHOTS, `${screen}-${look}.png`) });
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= options.viewport.width, `${screen} is ${width} px wide`);
        await check(page, look === "dark" ? ["color-contrast"] : undefined);
      }
      await close();
    });
  }
});

/** axe finds no fault. */
async function check(page: Page, rules?: string[]): Promise<void> {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(await readFile(AXE, "utf8"));
  const found = await page.evaluate(async (only) => {
    const options = only ? { runOnly: { type: "rule", values: only } } : {};
    const { violations } = await (window as any).axe.run(document, {
      ...options,
      resultTypes: ["violations"],
    });
    return violations.map(
      (each: any) =>
        `${each.id}: ${each.nodes
          .map((node: any) => node.html)
          .join(" ")
          .slice(0, 500)}`,
    );
  }, rules);
  assert.deepEqual(found, [], page.url());
}

async function listEvents(programId: string) {
  const query = { limit: 1000, sort: "seq", order: "asc" } as const;
  return (await admin.request("GET", "/programs/{programId}/events/filter", { path: { programId }, query }))
    .items;
}

async function contentOf(projectId: string, revisionId: string) {
  const path = { projectId, revisionId };
  return (await admin.request("GET", "/projects/{projectId}/application/revisions/{revisionId}", { path }))
    .content;
}

/** What has run in pages that trusted it. */
const CORPUS = [
  "<script>window.xss=1</script>",
  "<img src=x onerror=window.xss=1>",
  "<svg onload=window.xss=1>",
  "\"><iframe srcdoc='<script>parent.xss=1</script>'>",
  "javascript:window.xss=1",
  "<a href=javascript:window.xss=1>link</a>",
  "</textarea><script>window.xss=1</script>",
  "{{constructor.constructor('window.xss=1')()}}",
  "<style>@import 'x'</style><base href=//evil.example>",
];
