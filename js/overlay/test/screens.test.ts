/** Screenshots of every overlay coming in, on air and going out, over video: to look at, and for the documentation. */
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import type { Client } from "../../client/src/index.js";
import {
  behind,
  type Browser,
  live,
  makeProgram,
  open,
  openAdmin,
  openBrowser,
  type Page,
  says,
  shoot,
  tell,
  turned,
} from "./world.js";

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

const OPTIONS = ["Northport", "Southvale", "Nobody: it ends in a draw"];

async function begin(program: string): Promise<Page> {
  const page = await open(browser, { program, project: await makeLook() });
  await page.route("**/api/v2/imgproxy/**", async (route) =>
    route.fulfill({ body: await readFile(process.env.ONAIR_PORTRAIT as string), contentType: "image/png" }),
  );
  await behind(page, "night");
  await live(page);
  return page;
}

async function makeLook(): Promise<string> {
  const { id } = await admin.request("POST", "/projects", { body: { name: "Screens" } });
  const teams = {
    NOR: { name: "Northport", color: "#2f7bff" },
    SOU: { name: "Southvale", color: "#ffb000" },
  };
  await admin.request("POST", "/projects/{projectId}/application/revisions", {
    path: { projectId: id },
    body: { status: "published", content: { overlay: { teams } } },
  });
  return id;
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

test("screens", { timeout: 120_000 }, async () => {
  const program = await makeProgram(admin);
  const show = (event: string, metadata = {}) => tell(admin, program, event, metadata);
  const page = await begin(program);

  await show("Clock#stop", { clock: "67:12" });
  await show("Score#show", { home: 1, away: 0, homeTeam: "NOR", awayTeam: "SOU" });
  await turned(page, "scoreboard", true);
  await pause(120);
  await shoot(page, "scoreboard-in");
  await pause(900);
  await show("Score#update", { home: 2, away: 0 });
  await says(page, ".goals", "2");
  await pause(500);
  await shoot(page, "scoreboard-goal");

  await show("Goal#show", {
    player: "Ada Abel",
    team: "Northport",
    clock: "67:12",
    photo: "https://example.org/abel.jpg",
  });
  await turned(page, "lowerThird", true);
  await pause(250);
  await shoot(page, "lower-third-in");
  await pause(1_300);
  await shoot(page, "lower-third");
  await behind(page, "day");
  await shoot(page, "lower-third-day");
  await show("Goal#hide");
  await turned(page, "lowerThird", false);
  await pause(200);
  await shoot(page, "lower-third-out");

  await behind(page, "night");
  const closes = Date.now() + 600_000;
  const title = "Who wins the final in Harbour Stadium?";
  const poll = await show("Poll#show", { title, measureName: "winner", options: OPTIONS, closes });
  await turned(page, "poll", true);
  await pause(200);
  await shoot(page, "poll-in");
  const responses = Array.from({ length: 200 }, (_, number) => ({
    measureName: "winner",
    contextId: poll,
    measureValue: number % 7 < 4 ? 0 : number % 7 < 6 ? 1 : 2,
    visitorId: `v-${number}`,
  }));
  await admin.request("POST", "/responses/{accountId}/{projectId}/{programId}", {
    path: { accountId: "demo", projectId: "undefined", programId: program },
    body: { responses },
  });
  await says(page, ".total", "200");
  await pause(1_200);
  await shoot(page, "poll");
  await behind(page, "day");
  await shoot(page, "poll-day");
  await show("Poll#hide");
  await turned(page, "poll", false);
  await pause(150);
  await shoot(page, "poll-out");

  await behind(page, "night");
  await show("LowerThird#show", { name: "أحمد عبد الرحمن", title: "حارس المرمى · الفريق الوطني" });
  await turned(page, "lowerThird", true);
  await pause(1_400);
  await shoot(page, "right-to-left");
  await show("LowerThird#show", {
    name: "Wolfeschlegelsteinhausenbergerdorff-Llanfairpwllgwyngyll von und zu Hohenzollern-Sigmaringen",
    title: "Олександр Вергілійович Петренко · Αλέξανδρος Παπαδόπουλος · דוד בן־גוריון · Nguyễn Thị Minh Khai",
  });
  await pause(2_400);
  await shoot(page, "long-names");
  await show("LowerThird#hide");

  const countries = ["Argentina", "Bosnia and Herzegovina", "Côte d’Ivoire", "Deutschland", "Éire", "Fiji"];
  const votes = [12_345_678, 9_876_543, 7_654_321, 4_321_098, 210_987, 0];
  await show("Score#show", { home: 128, away: 1204, homeTeam: "LAKERS", awayTeam: "CELTICS" });
  await show("Clock#stop", { clock: "120:00 +15" });
  // As many answers as no test sends.
  await page.route("**/responses/demo/song/results?*", (route) =>
    route.fulfill({
      json: {
        contextId: new URL(route.request().url()).searchParams.get("contextId"),
        isDeclared: true,
        results: { ...votes },
      },
    }),
  );
  await show("Poll#show", {
    title: "Which country’s song of the evening would you like to hear once more before the votes close?",
    measureName: "song",
    options: countries,
  });
  await turned(page, "poll", true);
  await says(page, ".total", "34,408,627");
  await pause(2_400);
  await shoot(page, "big-numbers");
  await page.close();
});
