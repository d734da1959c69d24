/** What people do with the dashboard all day: by keys alone, on a phone, each role, with figures that are right. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Locator, Page } from "playwright-core";
import { Client } from "../../client/src/index.js";
import { newId } from "../../client/src/ids.js";
import { control, makeProgram, publish, URL_OF_BROKER, until } from "../../client/test/product/world.js";
import { askAudience, contentOf, listEvents, makeShow, vote, voteFrom } from "./show.js";
import {
  admin,
  browser,
  check,
  DESKTOP,
  enter,
  IMAGE,
  type Made,
  makeUser,
  openStage,
  PASSWORD,
  PHONE,
  saved,
  sees,
  settle,
  show,
  visit,
} from "./world.js";

let made: Made;
let producer: string;

openStage(async () => {
  made = await makeShow(admin, "The final", "", "Rugby"); // no other project has this name
  producer = `producer-${newId().slice(0, 8)}`;
  await makeUser(admin, producer, "producer", [made.project]);
});

describe("the dashboard", { concurrency: 5, timeout: 240_000 }, () => {
  test("by keys alone: a whole show from the log-in to the log-out", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    const { keyboard } = page;
    const programId = `keys-${newId()}`;
    await page.waitForFunction(() => document.activeElement?.tagName === "INPUT");
    await keyboard.type(producer);
    await tabTo(page, "Password");
    await keyboard.type(PASSWORD);
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "Programs", exact: true }).waitFor();
    await leaveField(page);

    await keyboard.press("n");
    await page.getByRole("dialog", { name: "New program" }).waitFor();
    await tabTo(page, "Name");
    await keyboard.type("By keys");
    await tabTo(page, "Id");
    await keyboard.press("Control+A");
    await keyboard.type(programId);
    await tabTo(page, "Project");
    await keyboard.type("Rugby");
    await tabTo(page, "Hours on air");
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "By keys" }).waitFor();
    await page.getByText("No events yet.").waitFor();

    await keyboard.press("e");
    await keyboard.type("Score#update");
    await tabTo(page, "Metadata");
    await keyboard.press("Control+A");
    await keyboard.type('{"home": 1}');
    await keyboard.press("Control+Enter");
    await page.getByRole("option", { name: /Score#update/ }).waitFor();
    await leaveField(page);
    await keyboard.press("1");
    await keyboard.press("Control+A");
    await keyboard.type('{"home": 2}');
    await keyboard.press("Control+Enter");
    await until(async () => (await page.getByRole("option").count()) === 2, "the second event");
    // One was wrong: it is found in the list and deleted.
    await leaveField(page);
    await tabTo(page, "Events, the newest first");
    await keyboard.press("ArrowDown");
    await tabTo(page, "Delete");
    await keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await tabTo(page, "Delete");
    await keyboard.press("Enter");
    await until(async () => (await listEvents(admin, programId)).length === 1, "the deletion");

    await leaveField(page);
    await keyboard.press("]");
    await page.getByText("Nothing was asked yet.").waitFor();
    await keyboard.press("a");
    await keyboard.type("Who scores?");
    await tabTo(page, "Options, one on each line");
    await keyboard.type("Kim\nVo");
    await tabTo(page, "Ask");
    await keyboard.press("Enter");
    const poll = page.getByRole("region", { name: "Who scores?" });
    await poll.waitFor();
    const asked = (await listEvents(admin, programId)).at(-1) as { id: string };
    await vote(admin, made.project, programId, asked.id, "whoScores", 9);
    await until(async () => (await poll.innerText()).includes("9 answers"), "the answers");
    await leaveField(page);
    await keyboard.press("c");
    await poll.getByText("Closed").waitFor();

    await keyboard.press("g");
    await keyboard.press("j");
    await page.getByRole("heading", { name: "Projects" }).waitFor();
    await settle(page);
    await tabTo(page, "Rugby");
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "Rugby" }).waitFor();
    await settle(page);
    await tabTo(page, "Revisions");
    await keyboard.press("Enter");
    await settle(page);
    await tabTo(page, /^New draft/);
    await keyboard.press("Enter");
    await page.getByLabel("Content").waitFor();
    await tabTo(page, "Content");
    await keyboard.press("Control+A");
    await keyboard.type('{"by": "keys"}');
    await keyboard.press("Control+S");
    await sees(page, "Saved");
    const revision = page.url().split("/").at(-1) as string;
    assert.deepEqual(await contentOf(admin, made.project, revision), { by: "keys" });
    await tabTo(page, "Publish…");
    await keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await tabTo(page, "Publish");
    await keyboard.press("Enter");
    await page.getByText("published", { exact: true }).waitFor();

    await leaveField(page);
    await tabTo(page, "Log out");
    await keyboard.press("Enter");
    await page.getByRole("button", { name: "Log in", exact: true }).waitFor();
    await close();
  });

  test("on a phone: every action by its button", async () => {
    const { page, close } = await visit(browser, { viewport: PHONE, hasTouch: true, acceptDownloads: true });
    await page.context().grantPermissions(["clipboard-write"]);
    const button = (name: string | RegExp, within: Page | Locator = page) =>
      press(within.getByRole("button", { name, exact: typeof name === "string" }));
    const link = (name: string | RegExp) => press(page.getByRole("link", { name }).first());
    const agree = (name: string) => button(name, page.getByRole("dialog"));
    const fill = (label: string, text: string, within: Page | Locator = page) =>
      within.getByLabel(label, { exact: true }).last().fill(text);
    const programId = `phone-${newId()}`;

    await fill("User name", "admin");
    await fill("Password", PASSWORD);
    await button("Log in");
    await button("New program");
    await fill("Name", "On a phone");
    await fill("Id", programId);
    await page.getByLabel("Project", { exact: true }).selectOption(made.project);
    await agree("Make it");
    await page.getByRole("heading", { name: "On a phone" }).waitFor();

    await fill("Event", "Score#update");
    await fill("Metadata", '{"home": 1}');
    await button("Tidy");
    await button(/^Publish/);
    await page.getByRole("option").first().waitFor();
    // The row may come before the answer, and until then the same event would be published once.
    await page.getByRole("button", { name: "Publish", exact: true }).waitFor();
    await button("Clear");
    await button(/Score#update/); // the template
    await button(/^Publish/);
    await until(async () => (await page.getByRole("option").count()) === 2, "the second event");
    await press(page.getByRole("option").first());
    await button("Close");
    await press(page.getByRole("option").first());
    await button("Delete");
    await agree("Delete");
    await until(async () => (await listEvents(admin, programId)).length === 1, "the deletion");

    await link("Polls");
    await fill("Question", "Who scores?");
    await fill("Options, one on each line", "Kim\nVo");
    await press(page.getByLabel("Answers may be changed"));
    await button("Ask");
    const poll = page.getByRole("region", { name: "Who scores?" });
    await button("Close", poll);
    await poll.getByText("Closed").waitFor();
    await button("Open again", poll);
    await poll.getByText("Open", { exact: true }).waitFor();

    await link("Numbers");
    await button("1 day");
    await settle(page);
    await link("Import and export");
    const download = await saved(page, () => button("JSON"));
    await page.getByLabel("Exported file").setInputFiles(await download.path());
    await button(/^Import/);
    await agree("Import");
    await sees(page, "2 events imported");
    await button("Delete all events");
    await fill(`Type ${programId} to go on`, programId);
    await agree("Delete all");
    await until(async () => (await listEvents(admin, programId)).length === 0, "the deletion of all");
    await link("Settings");
    await fill("Name", "On a small phone");
    await button("Save");
    await page.getByRole("heading", { name: "On a small phone" }).waitFor();
    await button("End it now");
    await sees(page, "The program has ended");
    await button("Delete the program");
    await fill(`Type ${programId} to go on`, programId);
    await agree("Delete");
    await page.getByRole("heading", { name: "Programs", exact: true }).waitFor();

    await button("Menu");
    await link(/^Projects/);
    await fill("Search", made.project);
    await link("Rugby");
    await link("Members");
    await settle(page);
    await link("Settings");
    await fill("Description", "All matches, by thumb");
    await button("Save");
    await sees(page, "Saved");
    await link("Analytics");
    await button("Create");
    await page.getByText("ok", { exact: true }).waitFor();
    await loseReport(page);
    await button("Check again");
    await button("Complete");
    await page.getByText("ok", { exact: true }).waitFor();
    await button("Copy");
    await sees(page, "Copied");
    await link("Stored values");
    await fill("Id", `phone-${newId()}`);
    await fill("Value", '{"kept": true}');
    await button("Store");
    await sees(page, "The value was stored");
    await button("Read");
    await button("Delete");
    await agree("Delete");
    await link("Revisions");
    await button(/^New draft/);
    await fill("Content", '{"by": "thumb"}');
    await button("Throw away");
    await fill("Content", '{"by": "a thumb"}');
    await button(/^Save the draft/);
    await sees(page, "Saved");
    await button("Preview");
    await page.frameLocator("iframe[title=Overlay]").locator("[data-graphic=scoreboard].on").waitFor();
    await button("Preview");
    await button("Publish…");
    await agree("Publish");
    await page.getByText("published", { exact: true }).waitFor();

    const username = `phone-${newId().slice(0, 8)}`;
    await button("Menu");
    await link(/^Users/);
    await button("New user");
    await fill("User name", username);
    await fill("Password", PASSWORD);
    await agree("Save");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.getByLabel("Search").fill(username);
    await button(username);
    await agree("Delete");
    await page.getByLabel(`Type ${username} to go on`).fill(username);
    await button("Delete", page.getByRole("dialog").last());
    await sees(page, "No user is like this.");
    await button("Menu");
    await link(/^Account/);
    await fill("What it is for", "A phone");
    await button("Make a token");
    await button("Hide");
    await press(page.getByRole("row", { name: /A phone/ }).getByRole("button", { name: "Revoke" }));
    await agree("Revoke");
    await page.getByRole("row", { name: /A phone/ }).waitFor({ state: "detached" });

    await button("Menu");
    await link(/^Audit log/);
    await fill("Search", username);
    await page
      .getByRole("cell", { name: /deleteUser|user/ })
      .first()
      .waitFor();
    await button("Menu");
    await link(/^Health/);
    await page.getByText("ok", { exact: true }).nth(2).waitFor();
    await button("Menu");
    await link(/^Statistics/);
    await button("1 day");
    await settle(page);
    await button("Menu");
    await link(/^Images/);
    await fill("Source", "http://127.0.0.1:1/none.jpg");
    await page.getByLabel("Width").selectOption("200");
    await page.getByLabel("Crop").selectOption("face");
    await fill("Padding", "2");
    await button("Copy URL");
    await button("Show");
    await page.locator(".split .failure").waitFor(); // no address of this machine is fetched
    await button("Menu");
    const isDark = () => page.evaluate(() => document.documentElement.dataset.theme);
    for (const look of ["light", "dark", undefined]) {
      await button(/: colours$/);
      await until(async () => (await isDark()) === look, `the colours ${look}`);
    }
    await button(/keyboard help/);
    await page.getByRole("dialog").last().waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").first().waitFor({ state: "detached" });
    await button("Log out", page.locator("#menu")); // the form of who is asked to log in again has one too
    await page.getByRole("button", { name: "Log in", exact: true }).waitFor();
    await close();
  });

  const ROLES = {
    admin: {
      places: ["Programs", "Statistics", "Projects", "Images", "Users", "Audit log", "Health", "Account"],
      program: ["Events", "Polls", "Numbers", "Import and export", "Settings"],
      project: ["Programs", "Revisions", "Stored values", "Analytics", "Members", "Settings"],
    },
    producer: {
      places: ["Programs", "Statistics", "Projects", "Images", "Health", "Account"],
      program: ["Events", "Polls", "Numbers", "Import and export", "Settings"],
      project: ["Programs", "Revisions", "Stored values", "Analytics", "Members"],
    },
    user: {
      places: ["Programs", "Statistics", "Projects", "Images", "Health", "Account"],
      program: ["Events", "Polls", "Numbers", "Export"],
      project: ["Programs", "Revisions", "Stored values"],
    },
    client: {
      places: ["Programs", "Images", "Health", "Account"],
      program: ["Events", "Polls", "Export"],
      project: [],
    },
  };
  for (const [role, { places, program, project }] of Object.entries(ROLES)) {
    test(`role ${role} sees what it may, and no more`, async () => {
      const username = role === "admin" ? "admin" : `${role}-${newId().slice(0, 8)}`;
      if (role !== "admin") await makeUser(admin, username, role, [made.project]);
      const { page, close } = await visit(browser, { viewport: DESKTOP });
      await enter(page, username);
      assert.deepEqual(await linksOf(page, "Main"), places);
      await settle(page);
      const mayPublish = role === "admin" || role === "producer";
      const count = (name: string | RegExp) => page.getByRole("button", { name }).count();
      assert.equal(await count("New program"), mayPublish ? 1 : 0);
      await show(page, `programs/${made.program}`);
      await page.getByRole("option").first().waitFor();
      assert.deepEqual(await linksOf(page, "Parts of the program"), program);
      assert.equal(await count(/Publish/), mayPublish ? 1 : 0);
      await page.getByRole("option").first().click();
      await page.getByRole("button", { name: "Copy metadata" }).waitFor();
      assert.equal(await count("Delete"), mayPublish ? 1 : 0);
      await show(page, `programs/${made.program}/polls`);
      await page.getByRole("region", { name: "Who wins?" }).waitFor();
      assert.equal(await count(/^(Ask|Close)$/), mayPublish ? 2 : 0);
      await show(page, `programs/${made.program}/history`);
      await page.getByRole("button", { name: "JSON" }).waitFor();
      assert.equal(await count(/^(Import|Delete all)/), mayPublish ? 2 : 0);
      if (role === "client") {
        // What the navigation does not show is refused by the broker, in words.
        for (const path of ["users", "audit", "statistics", "projects", `projects/${made.project}`]) {
          await show(page, path);
          await page.getByRole("alert").first().waitFor();
          assert.match(await page.getByRole("alert").first().innerText(), /role|not found/i, path);
        }
      } else {
        await show(page, `projects/${made.project}/revisions`);
        assert.deepEqual(await linksOf(page, "Parts of the project"), project);
        assert.equal(await count(/New draft/), mayPublish ? 1 : 0);
        await show(page, `projects/${made.project}/revisions/${made.revision}`);
        assert.equal(await page.getByLabel("Content").isEditable(), mayPublish);
        await show(page, `projects/${made.project}/values`);
        assert.equal(await count(/^(Store|Delete)$/), mayPublish ? 2 : 0);
        await show(page, "projects");
        assert.equal(await count("New project"), role === "admin" ? 1 : 0);
      }
      await close();
    });
  }

  test("an analytics site is created, found incomplete, and completed", async () => {
    const { project } = await makeShow(admin, "Measured");
    const username = `producer-${newId().slice(0, 8)}`;
    await makeUser(admin, username, "producer", [project]);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, username);
    await show(page, `projects/${project}/analytics`);
    const create = page.getByRole("button", { name: /^Creat/ });
    const complete = page.getByRole("button", { name: /^Complet/ });
    await page.getByText("not-created", { exact: true }).waitFor();
    assert.deepEqual([await create.isEnabled(), await complete.isEnabled()], [true, false]);
    await create.click();
    await page.getByText("ok", { exact: true }).waitFor();
    assert.deepEqual([await create.isEnabled(), await complete.isEnabled()], [false, false]);
    await page.getByLabel("Script", { exact: true }).waitFor();
    await check(page);
    const lost = await loseReport(page);
    await page.getByRole("button", { name: "Check again" }).click();
    await page.getByText("incomplete", { exact: true }).waitFor();
    const faults = page.getByRole("group", { name: "What is missing or wrong" });
    assert.match(await faults.innerText(), new RegExp(`Report\\s+${lost}\\s+missing`));
    assert.deepEqual([await create.isEnabled(), await complete.isEnabled()], [false, true]);
    await check(page);
    await complete.click();
    await page.getByText("ok", { exact: true }).waitFor();
    await faults.waitFor({ state: "detached" });
    await close();
  });

  test("an image is shown as each option makes it, and its URL gives the same", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, "images");
    await page.getByLabel("Source").fill(IMAGE);
    const choose = (label: string, value: string) => page.getByLabel(label).selectOption(value);
    /** Presses the button; width, height and type of what the page shows then, which its URL gives as well. */
    const made = async () => {
      const [reply] = await Promise.all([
        page.waitForResponse(/\/imgproxy\//),
        page.getByRole("button", { name: "Show" }).click(),
      ]);
      await page.getByRole("button", { name: "Show" }).waitFor(); // and not “Making it…”
      const size = await page.locator(".image img").evaluate(async (image: HTMLImageElement) => {
        await image.decode();
        return [image.naturalWidth, image.naturalHeight];
      });
      const path = await page.locator(".made code").innerText();
      const given = await page.evaluate(async (path) => {
        const { width, height } = await createImageBitmap(await (await fetch(path)).blob());
        return [width, height];
      }, path);
      assert.deepEqual(given, size);
      return [...size, reply.headers()["content-type"]];
    };
    await choose("Width", "200");
    await choose("Height", "100");
    await choose("Position", "top");
    assert.deepEqual(await made(), [200, 100, "image/jpeg"]);
    await choose("Crop", "scale");
    await choose("Height", "any");
    await choose("Format", "webp");
    assert.deepEqual(await made(), [200, 200, "image/webp"]);
    await choose("Width", "100");
    await choose("Height", "100");
    await choose("Crop", "face-and-shoulders");
    await page.getByLabel("Padding").fill("2.5");
    await choose("Format", "png");
    assert.deepEqual(await made(), [100, 100, "image/png"]);
    assert.match(await page.locator(".made code").innerText(), /fit=face-and-shoulders,f=png,padding=2\.5\?/);
    await choose("Format", "json");
    await page.getByRole("button", { name: "Show" }).click();
    assert.match(await page.getByLabel("Description").innerText(), /512/);
    await check(page);
    await close();
  });

  test("an import and an export show how far they are", async () => {
    const programId = await makeProgram(admin);
    const { page, close } = await visit(browser, { viewport: DESKTOP, acceptDownloads: true });
    await enter(page, "admin");
    await show(page, `programs/${programId}/history`);
    const events = Array.from({ length: 2_000 }, (_, index) => ({
      event: "Text#show",
      metadata: { index, text: "x".repeat(900) },
    }));
    const buffer = Buffer.from(JSON.stringify({ events }));
    const file = page.getByLabel("Exported file");
    await file.setInputFiles({ name: "long.json", mimeType: "application/json", buffer });
    // As slow as a line at a venue.
    const line = await page.context().newCDPSession(page);
    const slowly = { offline: false, latency: 0, downloadThroughput: 1_000_000, uploadThroughput: 1_000_000 };
    await line.send("Network.enable");
    await line.send("Network.emulateNetworkConditions", slowly);
    const told = page.getByText(/ of [\d.]+ MB sent/).waitFor(); // it is gone with the last of it
    await page.getByRole("button", { name: /^Import/ }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Import" }).click();
    const bar = page.getByRole("progressbar", { name: "Sent" });
    const sent = () => bar.evaluate((element) => (element as HTMLProgressElement).value);
    await bar.waitFor();
    const first = await grown(sent, 0);
    const second = await grown(sent, first);
    assert.ok(second < buffer.length);
    await told;
    await sees(page, "2,000 events imported, 0 replaced");
    assert.equal((await listEvents(admin, programId)).length, 1000); // a page of them

    const download = await saved(page, async () => {
      await page.getByRole("button", { name: "JSON" }).click();
      const status = page.getByText(/received…/);
      const received = async () => Number.parseFloat(((await status.textContent()) ?? "0").replace(/,/g, ""));
      await status.waitFor();
      await grown(received, await grown(received, 0));
    });
    assert.equal(download.suggestedFilename(), `${programId}.json`);
    await sees(page, "The export is complete");
    await close();
  });

  test("the plots show the figures of the statistics and of /metrics", async () => {
    const programId = await makeProgram(admin);
    const delivered = async () =>
      Number(
        /^broker_gateway_deliveries_total(?:\{[^}]*\})? (\S+)$/m.exec(await control("metrics"))?.[1] ?? 0,
      );
    const before = await delivered();
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `programs/${programId}/numbers`);
    const viewers = [1, 2].map(() => new Client(URL_OF_BROKER, { transport: "sse" }));
    for (const viewer of viewers) await viewer.subscribe(programId).ready;
    // Three follow before anything is published: the page itself and two viewers; each gets each of the twelve.
    const plotted = (holds: () => Promise<boolean>, whatFor: string) => until(holds, whatFor, 60_000, 1_000); // a look passes over a quarter of a plot
    await plotted(async () => (await drawn(page, "Viewers", "Subscribers")).most === 3, "the viewers");
    const beganMs = Date.now();
    for (let number = 0; number < 12; number++) await publish(admin, programId, 1, number);
    const latency = page.getByRole("figure").filter({ hasText: "Milliseconds" });
    await latency.waitFor();
    const latest = Number(/On its way\s+(\d+)/.exec(await latency.innerText())?.[1]);
    assert.ok(latest >= 0 && latest <= Date.now() - beganMs, String(latest));
    await plotted(async () => (await drawn(page, "Events a minute", "Events")).sum === 12, "the events");
    await plotted(
      async () => (await drawn(page, "Deliveries a minute", "Deliveries")).sum === 36,
      "the deliveries",
    );
    const query = {
      from: new Date(beganMs - 3_600_000).toISOString(),
      to: new Date().toISOString(),
      programId,
    };
    const { series } = await admin.request("GET", "/statistics/filtered", {
      query: { ...query, interval: "minute" },
    });
    assert.equal(
      series.reduce((sum, point) => sum + point.events, 0),
      12,
    );
    assert.equal(
      series.reduce((sum, point) => sum + point.deliveries, 0),
      36,
    );
    assert.ok((await delivered()) - before >= 36);
    for (const viewer of viewers) viewer.close();
    await close();
  });

  test("how the votes of a watched poll came is plotted with the figures of the report", async () => {
    const watched = await makeShow(admin, "Watched", made.project);
    const settings = { visitors: "any", watched: true };
    const poll = await askAudience(admin, watched.program, "Is it fair?", ["Yes", "No"], settings);
    const inRows = Array.from({ length: 40 }, (_, index) => `bot-${index}`);
    const others = (count: number) => Array.from({ length: count }, () => newId());
    const votesBy = { "203.0.113.7": inRows, "198.51.100.7": others(60), "192.0.2.7": others(3) };
    for (const [address, names] of Object.entries(votesBy))
      await voteFrom(address, watched, poll, "isItFair", names);
    const path = { accountId: "demo", projectId: watched.project, programId: watched.program };
    const report = async () =>
      (
        await admin.request("GET", "/responses/{accountId}/{projectId}/{programId}/integrity", { path })
      ).polls.find(({ contextId }) => contextId === poll);
    await until(async () => (await report())?.votes === 103, "the report");
    const told = await report();
    assert.deepEqual([told?.networks, told?.otherVotes, told?.inRow], [[60, 40], 3, 39]);
    assert.equal(told?.findings.length, 2);

    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, producer);
    await show(page, `programs/${watched.program}/polls`);
    const region = page.getByRole("region", { name: "Is it fair?" });
    await region.getByText("2 unusual").waitFor();
    await region.getByText("How votes came").click();
    for (const finding of told?.findings ?? []) await region.getByText(finding).waitFor();
    const bars = region.getByRole("list", { name: "Votes by network" });
    assert.deepEqual(
      (await bars.getByRole("listitem").allInnerTexts()).map((text) => text.split(/\s*\n\s*/)),
      [
        ["Network 1", "58.3 %", "60"],
        ["Network 2", "38.8 %", "40"],
        ["All others", "2.9 %", "3"],
      ],
    );
    const widths = await bars
      .locator(".bar i")
      .evaluateAll((all) =>
        all.map((bar) => Math.round(Number.parseFloat((bar as HTMLElement).style.width))),
      );
    assert.deepEqual(widths, [58, 39, 3]);
    const [votes, rows] = [
      await drawn(page, "Votes by minute", "Votes"),
      await drawn(page, "Votes by minute", "Names in rows"),
    ];
    assert.deepEqual([votes.sum, rows.sum], [103, 39]);
    // A minute without votes is drawn as one, though the report leaves it out.
    assert.ok(votes.minutes > (told?.minutes.length ?? 0), `${votes.minutes} minutes`);
    await check(page);
    await close();
  });

  test("what is live now is seen as it begins and as it ends", async () => {
    const project = `p-${newId()}`;
    await admin.request("POST", "/projects", { body: { id: project, name: "Live" } });
    const username = `user-${newId().slice(0, 8)}`;
    await makeUser(admin, username, "user", [project]);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, username);
    await page.getByText("No program is on air.").waitFor();
    const names = ["The first match", "The second match"];
    const scheduledStartTime = new Date(Date.now() - 60_000).toISOString();
    const programs = [];
    for (const name of names) {
      const scheduledEndTime = new Date(Date.now() + 3_600_000).toISOString();
      programs.push(
        await makeProgram(admin, { name, projectId: project, scheduledStartTime, scheduledEndTime }),
      );
    }
    const cards = page.locator(".cards");
    for (const name of names) await cards.getByRole("link", { name }).waitFor();
    assert.equal(await cards.getByText("Live", { exact: true }).count(), 2);
    const [first = "", second = ""] = programs;
    const viewer = new Client(URL_OF_BROKER, { transport: "sse" });
    await viewer.subscribe(second).ready;
    await until(
      async () => /1\s+viewer/.test(await cards.getByRole("link", { name: names[1] as string }).innerText()),
      "the viewer",
    );
    const body = {
      id: first,
      name: names[0] as string,
      scheduledStartTime,
      scheduledEndTime: new Date().toISOString(),
    };
    await admin.request("PUT", "/programs/{programId}", { path: { programId: first }, body });
    await cards.getByRole("link", { name: names[0] as string }).waitFor({ state: "detached" });
    assert.equal(await cards.getByRole("link", { name: names[1] as string }).count(), 1);
    viewer.close();
    await close();
  });
});

/** Has Matomo forget a report of the site that the page shows; the name of the report. */
async function loseReport(page: Page): Promise<string> {
  const site = await page.locator("div:has(> dt:text-is('Site')) > dd").innerText();
  return control("lose-report", { site });
}

/** What the links of a navigation say. */
async function linksOf(page: Page, navigation: string): Promise<string[]> {
  const links = await page.getByRole("navigation", { name: navigation }).getByRole("link").allInnerTexts();
  return links.map((text) => text.split("\n")[0] as string);
}

/** Leaves the field that has the focus, so that single keys do something. */
async function leaveField(page: Page): Promise<void> {
  await page.keyboard.press("Escape");
}

/** Presses Tab until what has the focus has the name; fails where the keyboard does not get there. */
async function tabTo(page: Page, name: string | RegExp): Promise<void> {
  const passed: string[] = [];
  for (let count = 0; count < 120; count++) {
    const focused = await page.evaluate(() => {
      const element = document.activeElement as HTMLInputElement;
      const isField = /^(INPUT|SELECT|TEXTAREA)$/.test(element.tagName);
      const text = isField ? element.labels?.[0]?.innerText : element.innerText;
      const name = (element.getAttribute("aria-label") ?? text ?? "").trim();
      return { name: name.split("\n")[0] as string, isHere: element !== document.body };
    });
    if (focused.isHere && (typeof name === "string" ? focused.name === name : name.test(focused.name)))
      return;
    passed.push(focused.name);
    await page.keyboard.press("Tab");
  }
  assert.fail(`the keyboard does not get to ${name}; it passed ${passed.join(" | ")}`);
}

/** Taps on what is wholly within the screen's width, and large enough for a finger (WCAG 2.2, 2.5.8). */
async function press(target: Locator): Promise<void> {
  await target.waitFor();
  await target.scrollIntoViewIfNeeded();
  const box = await target.boundingBox();
  assert.ok(box);
  const what = `${await target.innerText()} at ${JSON.stringify(box)}`;
  assert.ok(box.x >= 0 && box.x + box.width <= PHONE.width, `beyond the screen: ${what}`);
  const isInText = await target.evaluate((element) => element.matches("a, .link, label input"));
  assert.ok(isInText || Math.min(box.width, box.height) >= 24, `too small: ${what}`);
  await target.tap();
}

/** Waits until a number is larger than `than`. */
async function grown(read: () => Promise<number>, than: number): Promise<number> {
  let value = 0;
  await until(async () => (value = await read()) > than, `more than ${than}`);
  return value;
}

interface Drawn {
  sum: number;
  most: number;
  /** How many of them the pointer passed over. */
  minutes: number;
}

/** What a plot says of its newest minutes, as the pointer passes over them. */
async function drawn(page: Page, title: string, label: string): Promise<Drawn> {
  const figure = page.getByRole("figure").filter({ has: page.getByText(title, { exact: true }) });
  const over = figure.locator(".u-over");
  await over.scrollIntoViewIfNeeded();
  const box = await over.boundingBox();
  assert.ok(box);
  const found = new Map<string, number>();
  for (let right = 1; right < box.width / 4; right += 2) {
    await page.mouse.move(box.x + box.width - right, box.y + box.height / 2);
    const said = await figure.locator(".legend").innerText();
    const at = /at (\S+)/.exec(said)?.[1];
    const value = new RegExp(`${label}\\s+([\\d,]+)`).exec(said)?.[1];
    if (at && value) found.set(at, Number(value.replace(/,/g, "")));
  }
  await page.mouse.move(box.x - 5, box.y - 5);
  const values = [...found.values()];
  const sum = values.reduce((sum, each) => sum + each, 0);
  return { sum, most: Math.max(0, ...values), minutes: values.length };
}
