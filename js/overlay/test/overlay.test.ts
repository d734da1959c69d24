/** The overlays in a real browser: each host by its own calls, and whatever a show may bring. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { Client } from "../../client/src/index.js";
import {
  BROKER,
  type Browser,
  control,
  live,
  makeProgram,
  open,
  openAdmin,
  openBrowser,
  openElsewhere,
  serveElsewhere,
  type Page,
  read,
  says,
  tell,
  turned,
} from "./world.js";

let browser: Browser;
let admin: Client;
let elsewhere: Awaited<ReturnType<typeof serveElsewhere>>;

before(async () => {
  [browser, elsewhere] = await Promise.all([openBrowser(), serveElsewhere()]);
  admin = openAdmin();
});

after(async () => {
  admin.close();
  elsewhere.close();
  await browser.close();
});

const SCORE = { home: 1, away: 0, homeTeam: "NOR", awayTeam: "SOU" };
/** Calls one of the functions that hosts call as globals. */
const call = (page: Page, name: string, data?: unknown) =>
  page.evaluate(([name, data]) => (window as any)[name as string](data), [name, data] as const);
const host = (page: Page) => page.evaluate(() => document.documentElement.dataset.host);
/** Waits until the page has drawn what it was told before. */
const settled = (page: Page, ms = 50) =>
  page.evaluate((ms) => new Promise((resolve) => setTimeout(resolve, ms)), ms);
/** Longer than the page waits for a host that may not call at all: a timer of the page's own is over by then. */
const PATIENCE_MS = 600;

const NASTY = [
  `<img src=x onerror="window.hacked=1">`,
  `<script>window.hacked=1</script>`,
  `"><svg onload=window.hacked=1>`,
  `</style><script>window.hacked=1</script>`,
  `javascript:window.hacked=1`,
  `{{constructor.constructor('window.hacked=1')()}}`,
  `<iframe srcdoc="<script>parent.hacked=1</script>">`,
  `';window.hacked=1;//`,
  `\u202Egnp.exe`,
];

describe("overlays", { concurrency: 5, timeout: 100_000 }, () => {
  test("a browser shows what the program says, also what it said before", async () => {
    const program = await makeProgram(admin);
    await tell(admin, program, "Score#show", SCORE);
    await tell(admin, program, "Clock#stop", { clock: "45:00" });
    const page = await open(browser, { program });
    assert.equal(await host(page), "browser");
    await turned(page, "scoreboard", true);
    await says(page, ".time", "45:00");
    await tell(admin, program, "Score#update", { home: 2 });
    await says(page, ".goals", "2");
    await tell(admin, program, "Substitution#show", { team: "NOR", in: "Ada Abel", out: "Ben Berg" });
    await turned(page, "lowerThird", true);
    assert.deepEqual([await read(page, ".name"), await read(page, ".under")], ["Ada Abel", "↓ Ben Berg"]);
    // One goes out before the next comes in.
    await tell(admin, program, "Card#show", { team: "NOR", player: "Cleo Castro", colour: "yellow" });
    await says(page, ".name", "Cleo Castro");
    await turned(page, "lowerThird", true);
    await tell(admin, program, "Card#hide");
    await says(page, ".name", "Ada Abel");
    await tell(admin, program, "Overlay#clear");
    for (const graphic of ["scoreboard", "lowerThird", "poll"]) await turned(page, graphic, false);
    const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(background, "rgba(0, 0, 0, 0)");
    await page.close();
  });

  test("a poll has its votes, those of before too, and is headed as the result once it has closed", async () => {
    const program = await makeProgram(admin);
    const options = ["Home", { label: "Away" }];
    const closes = Date.now() + 600_000;
    // Votes are counted under the name as it is, and a stranger's do not count.
    const measureName = ` 5 /${"who wins? ".repeat(17)}`;
    const asked = { title: "Who wins?", measureName, options, closes };
    const poll = await tell(admin, program, "Poll#show", asked);
    const vote = (from: number, count: number, value: number, measure = measureName) =>
      admin.request("POST", "/responses/{accountId}/{projectId}/{programId}", {
        path: { accountId: "demo", projectId: "undefined", programId: program },
        body: {
          responses: Array.from({ length: count }, (_, number) => ({
            measureName: measure,
            contextId: poll,
            measureValue: value,
            visitorId: `v-${from + number}`,
          })),
        },
      });
    await vote(0, 3, 0);
    const page = await open(browser, { program });
    await says(page, ".total", "3 votes");
    await vote(0, 9, 1, "whoWins");
    await vote(3, 1, 1);
    await says(page, ".total", "4 votes");
    const shares = await page.locator("onair-overlay .share").allInnerTexts();
    assert.deepEqual(shares, ["75%", "25%"]);
    assert.equal((await read(page, ".poll .kicker")).toLowerCase(), "vote now");
    await tell(admin, program, "Poll#update", { closes: Date.now() - 60_000 });
    await says(page, ".poll .kicker", "Result");
    await page.close();
  });

  test("OBS may report the page as hidden: it goes on without a single frame", async () => {
    const program = await makeProgram(admin);
    const hidden = `
      window.obsstudio = { pluginVersion: "2.24.0" };
      Object.defineProperty(document, "hidden", { get: () => true });
      Object.defineProperty(document, "visibilityState", { get: () => "hidden" });
      window.requestAnimationFrame = () => 0;`;
    const page = await open(browser, { program }, hidden);
    await live(page);
    await page.evaluate(() => {
      document.dispatchEvent(new Event("visibilitychange"));
      window.dispatchEvent(new CustomEvent("obsSourceVisibleChanged", { detail: { visible: false } }));
      window.dispatchEvent(new CustomEvent("obsSourceActiveChanged", { detail: { active: false } }));
    });
    await tell(admin, program, "Score#show", SCORE);
    await turned(page, "scoreboard", true);
    await tell(admin, program, "Score#hide");
    await turned(page, "scoreboard", false);
    assert.equal(await host(page), "obs");
    await page.close();
  });

  test("vMix is a browser", async () => {
    const program = await makeProgram(admin);
    await tell(admin, program, "Score#show", SCORE);
    const context = await browser.newContext({ userAgent: "Mozilla/5.0 Chrome/120.0 vMix/27" });
    const page = await open(context, { program });
    assert.equal(await host(page), "vmix");
    await turned(page, "scoreboard", true);
    await context.close();
  });

  test("CasparCG updates before it plays, in XML and in JSON, and nothing is seen before", async () => {
    const program = await makeProgram(admin);
    await tell(admin, program, "Score#show", SCORE);
    const fields = { f1: program, f3: "scoreboard,lowerThird", f5: "Zoë <b>&amp;", f6: "Captain" };
    const escape = (text: string) =>
      text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
    const components = Object.entries(fields).map(
      ([id, value]) => `<componentData id="${id}"><data id="text" value="${escape(value)}"/></componentData>`,
    );
    for (const data of [`<templateData>${components.join("")}</templateData>`, JSON.stringify(fields)]) {
      // It calls once the page is loaded.
      const adding = `window.remove = () => {}; addEventListener("load", () => update(${JSON.stringify(data)}));`;
      const page = await open(browser, {}, adding);
      assert.equal(await host(page), "casparcg");
      await live(page);
      await settled(page, PATIENCE_MS);
      await turned(page, "scoreboard", false);
      await call(page, "play");
      await turned(page, "scoreboard", true);
      await turned(page, "lowerThird", true);
      assert.equal(await read(page, ".name"), "Zoë <b>&amp;");
      await call(page, "update", JSON.stringify({ f5: "Ada" }));
      await says(page, ".name", "Ada");
      await call(page, "next");
      await turned(page, "lowerThird", false);
      await call(page, "stop");
      await turned(page, "scoreboard", false);
      await page.close();
    }
  });

  test("CasparCG that only loads the page has it play", async () => {
    const program = await makeProgram(admin);
    await tell(admin, program, "Score#show", SCORE);
    const page = await open(browser, { program }, "window.remove = () => {};");
    await turned(page, "scoreboard", true);
    for (const odd of ["", "{", "<templateData", "null", "[1]", undefined]) await call(page, "update", odd);
    await settled(page);
    await turned(page, "scoreboard", true);
    await page.close();
  });

  test("SPX fills the fields of its own copy of the template, and plays", async () => {
    const program = await makeProgram(admin);
    await tell(admin, program, "Score#show", SCORE);
    const page = await openElsewhere(browser, `${elsewhere.url}/spx.html`);
    const definition = await page.evaluate(() => (window as any).SPXGCTemplateDefinition);
    assert.deepEqual(
      definition.DataFields.map(({ field }: { field: string }) => field),
      ["f0", "f1", "f2", "f3", "f4", "f5", "f6"],
    );
    const data = { f0: BROKER, f1: program, f2: "", f3: "scoreboard", f4: "0", f5: "", f6: "" };
    await call(page, "update", JSON.stringify(data));
    await live(page);
    assert.equal(await host(page), "spx");
    await settled(page);
    await turned(page, "scoreboard", false);
    await call(page, "play");
    await turned(page, "scoreboard", true);
    await call(page, "stop");
    await turned(page, "scoreboard", false);
    await page.close();
  });

  test("OGraf drives each graphic by the interface, with data and with a program", async () => {
    const program = await makeProgram(admin);
    await tell(admin, program, "Score#show", SCORE);
    const page = await openElsewhere(browser, elsewhere.url);
    const seen = await page.evaluate(
      async ({ broker, program }) => {
        const add = async (name: string, data: unknown) => {
          const { default: Graphic } = await import(`${broker}/overlay/${name}.js`);
          const tag = `x-${name}-${customElements.get(`x-${name}-a`) ? "b" : "a"}`;
          customElements.define(tag, Graphic);
          const element = document.createElement(tag) as any;
          document.body.append(element);
          const renderCharacteristics = { resolution: { width: 1920, height: 1080 } };
          const loaded = await element.load({ data, renderType: "realtime", renderCharacteristics });
          const isOn = () => !!element.shadowRoot.querySelector(".on");
          const reads = (part: string) => element.shadowRoot.querySelector(part).textContent;
          return { element, loaded, isOn, reads };
        };
        const found: unknown[] = [];
        const third = await add("lower-third", { name: "Ada", title: "Captain" });
        found.push(third.loaded.statusCode, third.isOn());
        found.push((await third.element.playAction({})).currentStep, third.isOn(), third.reads(".name"));
        await third.element.updateAction({ data: { name: "Ben" }, skipAnimation: true });
        found.push(third.reads(".name"), third.reads(".under"));
        found.push(await third.element.playAction({ skipAnimation: true }), third.isOn());
        found.push(
          (await third.element.playAction({ goto: 0, skipAnimation: true })).currentStep,
          third.isOn(),
        );
        await third.element.stopAction({});
        found.push(third.isOn(), (await third.element.customAction({ id: "dance" })).statusCode);
        await third.element.dispose({});
        found.push(third.element.shadowRoot.childElementCount);
        found.push((await third.element.load({ data: {}, renderType: "non-realtime" })).statusCode);

        const poll = await add("poll", {
          question: "Who?",
          options: [
            { label: "A", votes: 3 },
            { label: "B", votes: 1 },
          ],
        });
        await poll.element.playAction({ skipAnimation: true });
        found.push(poll.reads(".share"), poll.reads(".total"));

        const score = await add("scoreboard", { broker, program });
        await score.element.playAction({ delta: 1 });
        for (let tries = 0; tries < 200 && !score.isOn(); tries++)
          await new Promise((r) => setTimeout(r, 50));
        found.push(score.reads(".code"), score.isOn());
        // A call before the last one has ended is not ignored.
        await Promise.all([score.element.stopAction({}), score.element.playAction({})]);
        found.push(score.isOn());
        return found;
      },
      { broker: BROKER, program },
    );
    assert.deepEqual(seen, [
      ...[200, false, 0, true, "Ada", "Ben", "Captain"],
      ...[{ statusCode: 200, currentStep: undefined }, false, 0, true, false, 404, 0, 400],
      ...["75%", "4 votes", "NOR", true, true],
    ]);
    await page.close();
  });

  test("markup in every field is text, and 64 KiB of it are cut to what fits", async () => {
    const program = await makeProgram(admin);
    const page = await open(browser, { program });
    await live(page);
    const everything = NASTY.join(" ");
    await tell(admin, program, "Score#show", { ...SCORE, homeTeam: everything, home: everything });
    await tell(admin, program, "Clock#start", { clock: everything });
    await tell(admin, program, "Poll#show", { title: everything, options: NASTY.slice(0, 8) });
    for (const nasty of NASTY) {
      await tell(admin, program, "LowerThird#show", {
        name: nasty,
        title: nasty,
        photo: nasty,
        portrait: nasty,
      });
    }
    const long = "x".repeat(60_000);
    await tell(admin, program, "LowerThird#show", { name: long, title: `${NASTY[0]}` });
    await says(page, ".name", "xxx");
    assert.equal(await read(page, ".under"), NASTY[0]);
    const found = await page.evaluate(() => {
      const root = document.querySelector("onair-overlay")?.shadowRoot as ShadowRoot;
      const widest = [...root.querySelectorAll(".name, .code, .caption .text")].map(
        (each) => each.clientWidth,
      );
      return {
        foreign: root.querySelectorAll("script, iframe, svg, b, img, style").length,
        hacked: (window as any).hacked,
        widest: Math.max(...widest),
        length: root.querySelector(".name")?.textContent?.length,
      };
    });
    assert.deepEqual([found.foreign, found.hacked, found.length], [0, undefined, 161]);
    assert.ok(found.widest <= 1_060, String(found.widest));
    await page.close();
  });

  test("a score of four digits is seen with all of them", async () => {
    const program = await makeProgram(admin);
    await tell(admin, program, "Score#show", { ...SCORE, home: 128, away: 1204 });
    const page = await open(browser, { program });
    await turned(page, "scoreboard", true);
    await says(page, ".goals", "1204");
    const seen = await page.locator("onair-overlay .goals").evaluateAll((all) =>
      all.map((box) => {
        const digits = document.createRange();
        digits.selectNodeContents(box);
        const [inner, outer] = [digits.getBoundingClientRect(), box.getBoundingClientRect()];
        return [box.textContent, inner.left >= outer.left && inner.right <= outer.right];
      }),
    );
    assert.deepEqual(seen, [
      ["128", true],
      ["1204", true],
    ]);
    await page.close();
  });

  test("long names fit and right-to-left names run from the right", async () => {
    const page = await open(browser, {});
    const shown = async (name: string) => {
      await call(page, "update", { name, title: "Captain" });
      await says(page, ".name", name);
      await settled(page);
      return page.evaluate(async () => {
        await document.fonts.ready;
        const line = document
          .querySelector("onair-overlay")
          ?.shadowRoot?.querySelector(".name") as HTMLElement;
        const { fontStretch, direction } = getComputedStyle(line);
        return { fits: line.scrollWidth <= line.clientWidth + 1, fontStretch, direction };
      });
    };
    assert.deepEqual(await shown("Ada Abel"), { fits: true, fontStretch: "100%", direction: "ltr" });
    const long = await shown("Maria-Magdalena von Hohenlohe-Waldenburg-Schillingsfürst");
    assert.ok(long.fits && Number.parseInt(long.fontStretch) < 100, JSON.stringify(long));
    assert.equal((await shown("أحمد عبد الرحمن")).direction, "rtl");
    await page.close();
  });

  test("the published revision is the configuration, and another one is taken while on air", async () => {
    const { id: project } = await admin.request("POST", "/projects", { body: { name: "A look" } });
    const publish = (overlay: Record<string, unknown>) =>
      admin.request("POST", "/projects/{projectId}/application/revisions", {
        path: { projectId: project },
        body: { status: "published", content: { overlay } },
      });
    const teams = { NOR: { name: "Northport", color: "#2f7bff" } };
    await publish({ teams, scoreboard: { position: "top-right" }, labels: { goal: "Tor" } });
    const program = await makeProgram(admin, { projectId: project });
    await tell(admin, program, "Score#show", SCORE);
    await tell(admin, program, "Goal#show", { team: "NOR", player: "Ada" });
    const page = await open(browser, { program, project });
    await says(page, ".third .kicker", "Tor");
    const looks = () =>
      page.evaluate(() => {
        const root = document.querySelector("onair-overlay")?.shadowRoot as ShadowRoot;
        const score = root.querySelector<HTMLElement>("[data-graphic=scoreboard]");
        const kit = root.querySelector<HTMLElement>(".home")?.style.getPropertyValue("--kit");
        return [score?.dataset.at, kit, root.querySelector(".light") !== null];
      });
    assert.deepEqual(await looks(), ["top-right", "#2f7bff", false]);
    await publish({ theme: "light", graphics: ["scoreboard"] });
    await turned(page, "lowerThird", false);
    assert.deepEqual(await looks(), ["top-left", "", true]);
    await page.close();
  });

  test("framed beside a video it comes with the video, again after a seek", async () => {
    const program = await makeProgram(admin);
    const start = 1_784_484_000_000;
    const events = [
      { event: "Score#show", timecode: start, metadata: SCORE },
      { event: "Score#update", timecode: start + 60_000, metadata: { home: 2 } },
    ];
    await admin.request("POST", "/programs/{programId}/events", {
      path: { programId: program },
      body: { events },
    });
    const page = await openElsewhere(browser, elsewhere.url);
    await page.evaluate((url) => {
      const frame = document.createElement("iframe");
      frame.src = url;
      document.body.append(frame);
    }, `${BROKER}/overlay/?program=${program}`);
    const frame = page.frameLocator("iframe").locator("onair-overlay");
    const goals = (count: string) =>
      frame.locator(".goals").first().filter({ hasText: count }).waitFor({ state: "attached" });
    // Its script has run; what it is told is heard.
    await frame.first().waitFor({ state: "attached" });
    const seek = (positionMs: number) =>
      page.evaluate((positionMs) => {
        const told = { type: "onair:position", positionMs, isPlaying: false };
        document.querySelector("iframe")?.contentWindow?.postMessage(told, "*");
      }, positionMs);
    await seek(start + 30_000);
    await goals("1");
    await seek(start + 61_000);
    await goals("2");
    await seek(start + 30_000);
    await goals("1");
    await page.close();
  });

  test("a page of another origin puts nothing into the overlay", async () => {
    const page = await openElsewhere(browser, elsewhere.url);
    await page.evaluate((url) => {
      const frame = document.createElement("iframe");
      frame.src = url;
      document.body.append(frame);
    }, `${BROKER}/overlay/`);
    await page.frameLocator("iframe").locator("onair-overlay").waitFor({ state: "attached" });
    const frame = page.frames()[1] as ReturnType<typeof page.mainFrame>;
    const heard = frame.evaluate(
      () => new Promise((resolve) => addEventListener("message", () => setTimeout(resolve, 500))),
    );
    await page.evaluate(() => {
      const told = {
        type: "onair:preview",
        events: [{ id: "1", event: "Score#show", metadata: { home: 9 } }],
      };
      const send = () => document.querySelector("iframe")?.contentWindow?.postMessage(told, "*");
      setInterval(send, 100);
    });
    await heard;
    const isOn = () => page.frameLocator("iframe").locator("[data-graphic=scoreboard].on").count();
    assert.equal(await isOn(), 0);
    await page.close();
  });

  test("a program that comes later, and again after it was deleted, is followed", async () => {
    const program = `later-${Date.now()}`;
    const page = await open(browser, { program });
    await page.waitForFunction(() => document.documentElement.dataset.state === "lost");
    for (const team of ["ONE", "TWO"]) {
      await admin.request("POST", "/programs", { body: { id: program, name: "Later" } });
      await tell(admin, program, "Score#show", { ...SCORE, homeTeam: team });
      await says(page, ".code", team);
      await admin.request("DELETE", "/programs/{programId}", { path: { programId: program } });
    }
    await page.close();
  });
});

test(
  "it goes on after its gateway was killed, and what was missed is seen",
  { timeout: 100_000 },
  async () => {
    const program = await makeProgram(admin);
    const page = await open(browser, { program });
    await live(page);
    await tell(admin, program, "Score#show", SCORE);
    await turned(page, "scoreboard", true);
    await control("kill-gateway");
    for (let home = 2; home <= 5; home++) await tell(admin, program, "Score#update", { home });
    await says(page, ".goals", "5");
    await turned(page, "scoreboard", true);
    await page.close();
  },
);
