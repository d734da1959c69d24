/** The dashboard in a real browser, served by a real instance with its Content-Security-Policy. */
import assert from "node:assert/strict";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import type { Page } from "playwright-core";
import { newId } from "../../client/src/ids.js";
import { openBrowser, publish, URL_OF_BROKER, until } from "../../client/test/product/world.js";
import { askAudience, contentOf, listEvents, makeLongShow, makeShow, vote } from "./show.js";
import {
  admin,
  browser,
  check,
  DESKTOP,
  enter,
  logsInByHand,
  type Made,
  makeUser,
  openStage,
  pass,
  PASSWORD,
  saved,
  sees,
  settle,
  SHOTS,
  show,
  visit,
  words,
} from "./world.js";

let made: Made;
let producer: string;

openStage(async () => {
  made = await makeShow(admin);
  producer = `producer-${newId().slice(0, 8)}`;
  await makeUser(admin, producer, "producer", [made.project]);
});

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
    const stored = await listEvents(admin, programId);
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
    await page.getByLabel("Who may vote").selectOption("any");
    await page.getByText("a script can invent names").waitFor();
    await page.getByLabel("Watch how votes come").check();
    await page.getByRole("button", { name: "Ask", exact: true }).press("Enter");
    const poll = page.getByRole("region", { name: "Who scores next?" });
    await poll.waitFor();
    const asked = (await listEvents(admin, programId)).at(-1) as {
      id: string;
      metadata: Record<string, unknown>;
    };
    assert.deepEqual([asked.metadata.visitors, asked.metadata.watched], ["any", true]);
    await vote(admin, made.project, programId, asked.id, "whoScoresNext", 30);
    await until(async () => (await poll.innerText()).includes("30 answers"), "the answers");
    await poll.getByText("How votes came").press("Enter");
    await poll.getByRole("list", { name: "Votes by network" }).waitFor();
    await poll.getByText("Votes by minute").waitFor();
    await check(page);
    assert.match(await poll.innerText(), /Kim\s+66\.7 %\s+20\s+Vo\s+33\.3 %\s+10/);
    await page.keyboard.press("Escape");
    await page.evaluate(() => (document.activeElement as HTMLElement).blur());
    await page.keyboard.press("c");
    await poll.getByText("Closed").waitFor();
    // Within a second no answer is taken any more.
    const isRefused = () =>
      vote(admin, made.project, programId, asked.id, "whoScoresNext", 1).then(
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

    await hasNoToken(page);
    await page.locator("#menu").getByRole("button", { name: "Log out" }).click();
    await page.getByRole("button", { name: "Log in", exact: true }).waitFor();
    await hasNoToken(page);
    assert.ok(urls.some((url) => url.startsWith("ws:")));
    assert.deepEqual(
      urls.filter((url) => /token=|eyJ/.test(url)),
      [],
    );
    await close();
  });

  test("nothing is lost while the network is away", async () => {
    const { program } = await makeShow(admin, "Cut off", made.project);
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
    const events = await listEvents(admin, program);
    assert.equal(events.filter(({ metadata }) => metadata.typed === "before").length, 1);
    await sees(page, `${events.length} in all`);
    const shown = await page.getByRole("option").locator(".seq").allInnerTexts();
    const expected = events.map(({ seq }) => String(seq)).reverse();
    assert.deepEqual(shown.slice(0, 6), expected.slice(0, 6));
    assert.equal(await page.getByLabel("Metadata").inputValue(), '{"typed": "before"}');
    await close();
  });

  test("an event that was sent and not answered is published once", async () => {
    const { program } = await makeShow(admin, "Unanswered", made.project);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, producer, true);
    await show(page, `programs/${program}`);
    await page.getByRole("option").first().waitFor();
    await page.getByLabel("Event", { exact: true }).fill("Score#update");
    await page.getByLabel("Metadata").fill('{"typed": "once"}');
    const publish = page.getByRole("button", { name: /^Publish/ });
    const stored = async () =>
      (await listEvents(admin, program)).filter(({ metadata }) => metadata.typed === "once").length;

    // Without a stream nobody tells the page that it is there; pressed again, it is the same event.
    await page.evaluate(() => {
      (window as any).sockets.isBlocked = true;
      (window as any).sockets.cut();
    });
    await page.getByText("Connection lost, coming back…").waitFor();
    await withoutAnswer(page, `**/programs/${program}/events`, async () => {
      await publish.click();
      await sees(page, "may or may not be done");
    });
    await sees(page, "It may have been published: checking…");
    assert.equal(await stored(), 1);
    await publish.click();
    await sees(page, "Published Score#update");
    assert.equal(await stored(), 1);

    // The key outlives a reload as the draft does, and the stream tells that it is there, however well the page
    // knows the broker's clock.
    await withoutAnswer(page, `**/programs/${program}/events`, async () => {
      await publish.click();
      await sees(page, "may or may not be done");
    });
    assert.equal(await stored(), 2);
    await page.addInitScript(LEARN_THE_TIME_BADLY);
    await page.reload();
    await sees(page, "Published Score#update");
    assert.equal(await page.getByText("It may have been published").count(), 0);
    // What is known is no longer unconfirmed: the next one is another event.
    await page.getByRole("button", { name: /^Publish/ }).click();
    await until(async () => (await stored()) === 3, "the next event");
    await close();
  });

  test("a change that was sent and not answered is the same one when it is sent again", async () => {
    const { program, project, revision } = await makeShow(admin, "Unanswered changes");
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    const sent: string[] = [];
    page.on("request", (request) => {
      const key = request.headers()["idempotency-key"];
      if (key) sent.push(`${request.method()} ${key} ${request.postData()}`);
    });
    /** Does it twice, the first time without an answer: all that is sent is one request. */
    const isOne = async (what: string, doIt: () => Promise<void>) => {
      sent.length = 0;
      await withoutAnswer(page, "**/api/v1/**", async () => {
        await doIt();
        await sees(page, "may or may not be done");
      });
      await doIt();
      await page.getByText("may or may not be done").waitFor({ state: "detached" });
      assert.ok(sent.length > 1, what);
      assert.equal(new Set(sent).size, 1, `${what}: ${sent.map((text) => text.slice(0, 300)).join("\n")}`);
    };
    await show(page, `programs/${program}/polls`);
    const poll = page.getByRole("region", { name: "Who wins?" });
    const events = await listEvents(admin, program);
    await page.evaluate(() => {
      (window as any).sockets.isBlocked = true;
      (window as any).sockets.cut();
    });
    await isOne("closing a poll", () => poll.getByRole("button", { name: "Close" }).click());
    await page.getByLabel("Question").fill("Asked once?");
    await page.getByLabel("Options, one on each line").fill("Yes\nNo");
    await page.getByLabel("Open for seconds").fill("600");
    await isOne("asking", () => page.getByRole("button", { name: "Ask", exact: true }).click());
    assert.equal((await listEvents(admin, program)).length, events.length + 1);

    await show(page, `programs/${program}/history`);
    const file = join(await mkdtemp(join(tmpdir(), "import-")), "a.json");
    await writeFile(file, JSON.stringify({ events: [{ event: "Score#update", metadata: {} }] }));
    await isOne("importing", async () => {
      // Who has been elsewhere chooses the file anew.
      await show(page, `programs/${program}/settings`);
      await show(page, `programs/${program}/history`);
      await page.getByLabel("Exported file").setInputFiles(file);
      await page.getByRole("button", { name: /^Import/ }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Import" }).click();
    });

    await show(page, `projects/${project}/revisions/${revision}`);
    await page.getByLabel("Content").fill('{"saved": "once"}');
    await isOne("publishing a revision", async () => {
      await page.getByRole("button", { name: "Publish…" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Publish" }).click();
    });
    await page.getByText("published", { exact: true }).waitFor();
    assert.deepEqual(await contentOf(admin, project, revision), { saved: "once" });
    await close();
  });

  test("a revision is seen in the overlay before it is published, with no token in a URL", async () => {
    const { program, project, revision } = await makeShow(admin, "Previewed");
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
    assert.deepEqual((await contentOf(admin, project, revision)).theme, "dark");
    await check(page);
    await page.screenshot({ path: join(SHOTS, "preview-light.png"), fullPage: true, animations: "disabled" });

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
    const { project, revision } = await makeShow(admin);
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
    assert.deepEqual(await contentOf(admin, project, revision), { by: "one" });
    await check(other);
    await other.getByRole("button", { name: /Go on with mine/ }).click();
    await other.getByRole("button", { name: /Save the draft/ }).click();
    await sees(other, "Saved");
    assert.deepEqual(await contentOf(admin, project, revision), { by: "other" });
    // The first one stands on what is gone; it takes the other's.
    await one.getByLabel("Content").fill('{"by": "one again"}');
    await one.getByRole("button", { name: /Save the draft/ }).click();
    await one.getByRole("button", { name: /Take theirs/ }).click();
    assert.match(await one.getByLabel("Content").inputValue(), /"by": "other"/);
    for (const { close } of people) await close();
  });

  test("a log-in that ends in the middle of an edit loses nothing", async () => {
    const { project, revision } = await makeShow(admin);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await logsInByHand(page);
    await enter(page, "admin", true);
    await show(page, `projects/${project}/revisions/${revision}`);
    await page.getByLabel("Content").fill('{"typed": 1}');
    // The token of these tests lives for seconds.
    const form = page.getByRole("form", { name: "Log in again" });
    await form.getByRole("alert").waitFor();
    await page.getByLabel("Content").fill('{"typed": 2}');
    await page.getByRole("button", { name: /Save the draft/ }).click();
    await page.getByRole("button", { name: "Saving…" }).waitFor();
    assert.notDeepEqual(await contentOf(admin, project, revision), { typed: 2 });
    await form.getByLabel(/Password/).fill("not the password");
    await form.getByRole("button", { name: "Log in" }).click();
    await form.locator(".failure").waitFor();
    await form.getByLabel(/Password/).fill(PASSWORD);
    await form.getByRole("button", { name: "Log in" }).click();
    await sees(page, "Saved");
    assert.deepEqual(await contentOf(admin, project, revision), { typed: 2 });
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
    // The report, which the page reads now and then, has them too: only what is pushed is looked at.
    await page.route("**/report", (route) => route.abort());
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

  test("only the measure that an event declares is the result of its poll", async () => {
    const { program, project } = await makeShow(admin, "Disturbed");
    const poll = await askAudience(admin, program, "Who counts?", ["Yes", "No"], { watched: true });
    // A stranger's measure is the first that is answered, and the last.
    await vote(admin, project, program, poll, "strange", 90);
    await vote(admin, project, program, poll, "whoCounts", 3);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `programs/${program}/polls`);
    const bars = page.getByRole("region", { name: "Who counts?" });
    await until(async () => (await bars.innerText()).includes("3 answers"), "the answers of the report");
    await vote(admin, project, program, poll, "whoCounts", 4);
    await until(async () => (await bars.innerText()).includes("7 answers"), "the answers that are pushed");
    await vote(admin, project, program, poll, "strange", 1);
    await page.waitForTimeout(2_500); // two pushes of results
    assert.match(await bars.innerText(), /7 answers/);
    await close();
  });

  test("ten thousand events cost as many elements as thirty", async () => {
    const program = await makeLongShow(admin, 10_000);
    const { page, close } = await visit(browser, { viewport: DESKTOP });
    await enter(page, "admin");
    await show(page, `programs/${program}`);
    // Each page meets the one before it in one event.
    for (let here = 1_999; here < 10_999; here += 999) {
      await page.getByRole("button", { name: "Read more" }).click();
      if (here < 10_000) await sees(page, `${here.toLocaleString("en")} of 10,000 are here`);
    }
    await page.getByRole("button", { name: "Read more" }).waitFor({ state: "detached" });
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
    const { program } = await makeShow(admin, "Exported");
    const before = await listEvents(admin, program);
    const { page, close } = await visit(browser, { viewport: DESKTOP, acceptDownloads: true });
    await enter(page, "admin");
    await show(page, `programs/${program}/history`);
    const download = await saved(page, () => page.getByRole("button", { name: "JSON" }).click());
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
    const after = await listEvents(admin, program);
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

  test("a log-in that ends while files are on their way loses none of them", async () => {
    const { program } = await makeShow(admin, "Sent slowly");
    const { page, close } = await visit(browser, { viewport: DESKTOP, acceptDownloads: true });
    await logsInByHand(page);
    await enter(page, "admin");
    await show(page, `programs/${program}/history`);
    const form = page.getByRole("form", { name: "Log in again" });
    // Both requests leave with a token that is good, and arrive when it is not.
    let isOver = false;
    await page.route(/events\/(export|import)$/, async (route) => {
      if (!isOver) await form.getByRole("alert").waitFor();
      isOver = true;
      await route.continue();
    });
    const replies: string[] = [];
    page.on("response", (reply) => {
      const [, name] = /events\/(export|import)$/.exec(reply.url()) ?? [];
      if (name) replies.push(`${name} ${reply.status()}`);
    });
    const download = await saved(page, async () => {
      await page.getByRole("button", { name: "JSON" }).click();
      const buffer = Buffer.from(JSON.stringify({ events: [{ event: "Score#update", metadata: {} }] }));
      await page
        .getByLabel("Exported file")
        .setInputFiles({ name: "a.json", mimeType: "application/json", buffer });
      await page.getByRole("button", { name: /^Import/ }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Import" }).click();
      await until(
        async () => replies.length === 2,
        () => `two replies, not only ${replies}`,
      );
      assert.deepEqual(replies.sort(), ["export 401", "import 401"]);
      await form.getByLabel(/Password/).fill(PASSWORD);
      await form.getByRole("button", { name: "Log in" }).click();
      await sees(page, "1 events imported");
      await sees(page, "The export is complete");
    });
    const file = await readFile(await download.path());
    assert.ok(JSON.parse(file.toString()).events.length > 0);
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

/** Nothing that the browser keeps is a token. */
async function hasNoToken(page: Page): Promise<void> {
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
  assert.ok(!kept.includes("eyJ"), kept);
}

/** Has a page's question for the time be long on its way, so that it takes the broker's clock to be ahead, and shows events after that. */
const LEARN_THE_TIME_BADLY = `
  const { prototype } = Object.getPrototypeOf(window.WebSocket);
  const { send } = prototype;
  prototype.send = function (text) {
    setTimeout(() => send.call(this, text), text.includes('"servertime"') ? 400 : 600);
  };
  window.requestAnimationFrame = (show) => setTimeout(show, 1_000, performance.now());`;

/**
 * Does something while the answers to changes below a path are lost: the broker makes them, and the page hears
 * nothing. The minute and a half for which it tries is over at once.
 */
async function withoutAnswer(page: Page, path: string, doIt: () => Promise<void>): Promise<void> {
  let isMade = false;
  await page.route(path, async (route) => {
    if (route.request().method() === "GET") return route.fallback();
    if (!isMade) await route.fetch();
    isMade = true;
    await pass(page, 90_000);
    await route.abort();
  });
  await doIt();
  await page.unroute(path);
}
