/** What strangers and careless people store: it is shown as text, and what is too large loses nothing. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Page } from "playwright-core";
import { newId } from "../../client/src/ids.js";
import { logIn, openAdmin, until } from "../../client/test/product/world.js";
import { askAudience, listEvents, makeShow } from "./show.js";
import {
  admin,
  browser,
  DESKTOP,
  enter,
  type Made,
  makeUser,
  openStage,
  pathOf,
  SCREENS,
  sees,
  show,
  visit,
  words,
} from "./world.js";

/** What has run in pages that trusted it. */
const CORPUS = [
  "<script>window.xss=1</script>",
  "<img src=x onerror=window.xss=1>",
  "<svg onload=window.xss=1>",
  "\"><iframe srcdoc='<script>parent.xss=1</script>'>",
  "javascript:window.xss=1",
  "<a href=javascript:window.xss=1>link</a>",
  "</textarea><script>window.xss=1</script>",
  "</title><script>window.xss=1</script>",
  "<details open ontoggle=window.xss=1>",
  "<math><mtext><table><mglyph><style><img src=x onerror=window.xss=1>",
  "<form><button formaction=javascript:window.xss=1>",
  "';window.xss=1;//",
  "`${window.xss=1}`",
  "{{constructor.constructor('window.xss=1')()}}",
  "url(javascript:window.xss=1)",
  "<style>@import 'x'</style><base href=//evil.example>",
];
const MARKUP = CORPUS.join(" ");
const SHOWN = "<img src=x onerror=window.xss=1>";
/** Compact JSON of `{"text":"…"}` around the text. */
const AROUND_BYTES = 11;
const MOST_BYTES = 64 << 10;

openStage();

describe("the dashboard", { concurrency: 2, timeout: 240_000 }, () => {
  test("shows what is stored as text on every screen, and runs none of it", async () => {
    const { program, project } = await makeShow(admin, `name ${MARKUP}`.slice(0, 1000));
    const poisoned: Made = { program, project, revision: "" };
    await admin.request("PUT", "/projects/{projectId}", {
      path: { projectId: project },
      body: { name: `project ${MARKUP}`.slice(0, 1000), description: MARKUP, metadata: { [MARKUP]: MARKUP } },
    });
    const path = { programId: program };
    const { id, name, scheduledStartTime, scheduledEndTime } = await admin.request(
      "GET",
      "/programs/{programId}",
      { path },
    );
    await admin.request("PUT", "/programs/{programId}", {
      path,
      body: { id, name, scheduledStartTime, scheduledEndTime, metadata: { [MARKUP]: MARKUP } },
    });
    poisoned.revision = (
      await admin.request("POST", "/projects/{projectId}/application/revisions", {
        path: { projectId: project },
        body: { title: MARKUP, description: MARKUP, content: { [MARKUP]: MARKUP } },
      })
    ).id;
    const user = await makeUser(admin, `${SHOWN}${newId().slice(0, 8)}`, "user", [project]);
    await admin.request("PUT", "/users/{userId}", { path: { userId: user.id }, body: { name: MARKUP } });
    await askAudience(admin, program, MARKUP, CORPUS);
    const body = { event: "Text#show", metadata: { [MARKUP]: MARKUP, large: "ä".repeat(30_000) } };
    await admin.request("POST", "/programs/{programId}/events", { path: { programId: program }, body });
    const token = await admin.request("POST", "/users/me/tokens", { body: { name: MARKUP } });
    const editor = await makeUser(admin, `${SHOWN}${newId().slice(0, 8)}`, "admin", []);
    const hostile = openAdmin({ token: () => logIn(editor.username) });
    await hostile.request("PUT", "/projects/{projectId}", {
      path: { projectId: project },
      body: { name: `project ${MARKUP}`.slice(0, 1000) },
    });
    hostile.close();
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    page.on("dialog", () => assert.fail("a script ran"));
    await enter(page, "admin");
    const shownOn: string[] = [];
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
          body: { metadata: { [MARKUP]: MARKUP } },
        });
        await page.locator("td.meta").waitFor();
      }
      if (screen === "audit") await page.getByRole("cell", { name: editor.username }).first().waitFor();
      if (screen === "images") {
        for (const text of [...CORPUS, `https://127.0.0.1/${SHOWN}`]) {
          await page.getByLabel("Source").fill(text);
          await page.getByLabel("Source").press("Enter"); // the browser itself refuses what is no address
          assert.ok((await textOf(page)).includes(text));
          await isInert(page, screen);
        }
        await page.getByRole("alert").waitFor();
      }
      await isInert(page, screen);
      if ((await textOf(page)).includes(SHOWN)) shownOn.push(screen);
    }
    assert.deepEqual(
      Object.keys(SCREENS).filter((screen) => !shownOn.includes(screen)),
      ["statistics", "health"], // which show no text of anybody's
    );
    await admin.request("DELETE", "/users/me/tokens/{tokenId}", { path: { tokenId: token.id } });
    for (const made of [user, editor])
      await admin.request("DELETE", "/users/{userId}", { path: { userId: made.id } });
    await close();
  });

  test("shows what is stored as text in the preview of the overlay, and runs none of it", async () => {
    const { program, project, revision } = await makeShow(admin, MARKUP.slice(0, 1000));
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    page.on("dialog", () => assert.fail("a script ran"));
    await enter(page, "admin");
    await show(page, `projects/${project}/revisions/${revision}`);
    await page.getByRole("button", { name: "Preview" }).click();
    const stage = page.frameLocator("iframe[title=Overlay]").locator("onair-overlay .stage");
    await stage.locator("[data-graphic=scoreboard].on").waitFor();
    const overlay = {
      theme: MARKUP,
      accent: "url(javascript:window.xss=1)",
      panel: MARKUP,
      locale: MARKUP,
      scoreboard: { position: MARKUP },
      teams: { [SHOWN]: { name: MARKUP, colour: MARKUP } },
      labels: { goal: MARKUP, final: MARKUP },
    };
    await page.getByLabel("Content").fill(JSON.stringify({ overlay, [MARKUP]: MARKUP }));
    await page.getByText("What you changed").waitFor();
    await page.getByLabel("With the events of").selectOption(program);
    for (const text of CORPUS) {
      const events = [
        { event: "Score#show", metadata: { home: text, away: text, homeTeam: SHOWN, awayTeam: text } },
        { event: "Clock#start", metadata: { clock: text } },
        { event: "LowerThird#show", metadata: { name: text, title: text, team: SHOWN, photo: text } },
        { event: "Poll#show", metadata: { title: text, options: [text, { label: text }] } },
      ];
      await admin.request("POST", "/programs/{programId}/events", {
        path: { programId: program },
        body: { events },
      });
    }
    const last = { event: "LowerThird#show", metadata: { name: `Shown ${SHOWN}`, title: SHOWN } };
    await admin.request("POST", "/programs/{programId}/events", { path: { programId: program }, body: last });
    await stage.getByText(`Shown ${SHOWN}`).first().waitFor();
    await isInert(page, "revision", 1);
    const frame = page.frames().find((each) => each.url().includes("/overlay/"));
    assert.ok(frame);
    const found = await frame.evaluate(() => {
      const root = document.querySelector("onair-overlay")?.shadowRoot ?? document;
      return {
        ran: (window as any).xss,
        elements: root.querySelectorAll(
          ":is(script, iframe, object, embed, base, math, form, details, a, [onerror], [onload], [ontoggle])",
        ).length,
        addresses: [...root.querySelectorAll("[src], [href]")]
          .map((element) => element.getAttribute("src") ?? element.getAttribute("href"))
          .filter((address) => /^(javascript|data:text)/i.test(address ?? "")),
      };
    });
    assert.deepEqual(found, { ran: undefined, elements: 0, addresses: [] });
    await close();
  });

  test("publishes metadata of 64 KiB; a byte more is refused in words, and nothing typed is lost", async () => {
    const { program } = await makeShow(admin, "Large");
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `programs/${program}`);
    await page.getByRole("option").first().waitFor();
    const ofBytes = (bytes: number) =>
      JSON.stringify({ text: `${"ä".repeat(100)}${"x".repeat(bytes - 200 - AROUND_BYTES)}` });
    assert.equal(Buffer.byteLength(ofBytes(MOST_BYTES)), MOST_BYTES);
    const tooLarge = ofBytes(MOST_BYTES + 1);
    await page.getByLabel("Event", { exact: true }).fill("Text#show");
    await page.getByLabel("Metadata").fill(tooLarge);
    await page.getByRole("button", { name: /^Publish/ }).click();
    const failure = page.getByRole("alert");
    await failure.waitFor();
    assert.match(await failure.innerText(), /metadata.*(65,?536|64 KiB)/);
    assert.equal(await page.getByLabel("Metadata").inputValue(), tooLarge);
    assert.equal(await page.getByLabel("Event", { exact: true }).inputValue(), "Text#show");
    assert.equal((await listEvents(admin, program)).filter(({ event }) => event === "Text#show").length, 0);

    await page.getByLabel("Metadata").fill(ofBytes(MOST_BYTES));
    await page.getByRole("button", { name: /^Publish/ }).click();
    await sees(page, "Published Text#show");
    await failure.waitFor({ state: "detached" });
    const row = page.getByRole("option", { name: /Text#show/ });
    await row.click();
    await until(async () => (await words(page)).includes(`${"ä".repeat(100)}xxx`), "the metadata");
    const [stored] = (await listEvents(admin, program)).filter(({ event }) => event === "Text#show");
    assert.equal(JSON.stringify(stored?.metadata), ofBytes(MOST_BYTES));
    await close();
  });
});

/** No script has run, and no element of the page is one of the corpus. */
async function isInert(page: Page, screen: string, frames = 0): Promise<void> {
  const found = await page.evaluate(() => ({
    ran: (window as any).xss,
    frames: document.querySelectorAll("main iframe").length,
    elements: document.querySelectorAll(
      "main :is(script, object, embed, svg, style, base, math, [onerror], [onload], [ontoggle], [formaction])",
    ).length,
    links: [...document.querySelectorAll("a")].filter((link) => !/^(http|blob)/.test(link.href)).length,
  }));
  assert.deepEqual(found, { ran: undefined, frames, elements: 0, links: 0 }, screen);
}

/** What is read on the page, that in fields too. */
function textOf(page: Page): Promise<string> {
  return page.evaluate(() => {
    const fields = [...document.querySelectorAll<HTMLInputElement | HTMLTextAreaElement>("input, textarea")];
    return [document.body.innerText, ...fields.map((field) => field.value)].join("\n");
  });
}
