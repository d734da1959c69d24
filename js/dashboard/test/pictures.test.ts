/** The dashboard's pictures in the documentation: an evening with a final, as a producer sees it. */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import type { Page } from "playwright-core";
import type { Client } from "../../client/src/index.js";
import { newId } from "../../client/src/ids.js";
import { askAudience } from "./show.js";
import {
  admin,
  browser,
  enter,
  makeUser,
  openStage,
  PHONE,
  sees,
  settle,
  SHOTS,
  show,
  visit,
} from "./world.js";

const OUT = join(SHOTS, "docs");
const DESKTOP = { width: 1280, height: 800 };
const GAP_PX = 24; // between two phones

const project = "harbour-cup";
const program = "final";
const producer = "mira";
let revision: string;

openStage(async () => {
  mkdirSync(OUT, { recursive: true });
  await admin.request("POST", "/projects", { body: { id: project, name: "Harbour Cup" } });
  await makeUser(admin, producer, "producer", [project]);
  const path = { projectId: project };
  const body = { title: "Season 2026", content: LOOK };
  revision = (await admin.request("POST", "/projects/{projectId}/application/revisions", { path, body })).id;
  await makeProgram(admin, "quiz-night", "Quiz night", true);
  await makeProgram(admin, "semi-final", "The semi-final", false);
  await makeProgram(admin, program, "The final", true);
  await playFinal(admin);
});

const LOOK = {
  overlay: {
    theme: "dark",
    scoreboard: { position: "top-left" },
    teams: { NOR: { name: "Northport", color: "#2f7bff" }, SOU: { name: "Southvale", color: "#ffb000" } },
  },
};

async function makeProgram(client: Client, id: string, name: string, isLive: boolean): Promise<void> {
  const hours = (count: number) => new Date(Date.now() + count * 3_600_000).toISOString();
  const times = isLive ? [hours(-1), hours(2)] : [hours(-26), hours(-23)];
  const [scheduledStartTime, scheduledEndTime] = times as [string, string];
  const body = { id, name, projectId: project, scheduledStartTime, scheduledEndTime };
  await client.request("POST", "/programs", { body });
}

/** An hour of a match in one batch, and what the audience was asked. */
async function playFinal(client: Client): Promise<void> {
  const teams = { homeTeam: "NOR", awayTeam: "SOU" };
  const goals = [
    { clock: "12:40", player: "Ada Abel", team: "Northport", home: 1, away: 0 },
    { clock: "31:05", player: "Lin Okoye", team: "Southvale", home: 1, away: 1 },
    { clock: "67:12", player: "Ada Abel", team: "Northport", home: 2, away: 1 },
  ];
  const events = [
    { event: "LineUp#show", metadata: { team: "NOR", players: ["Abel", "Kim", "Ruiz", "Berg"] } },
    { event: "LineUp#show", metadata: { team: "SOU", players: ["Okoye", "Vo", "Silva", "Dahl"] } },
    { event: "Score#show", metadata: { ...teams, home: 0, away: 0 } },
    ...goals.flatMap(({ clock, player, team, home, away }) => [
      { event: "Clock#stop", metadata: { clock } },
      { event: "Score#update", metadata: { home, away } },
      { event: "Goal#show", metadata: { player, team, clock } },
      { event: "Goal#hide", metadata: {} },
      { event: "Clock#start", metadata: { clock } },
    ]),
    { event: "LowerThird#show", metadata: { name: "Eileen Collins", title: "Guest of honour" } },
    { event: "LowerThird#hide", metadata: {} },
  ];
  await client.request("POST", "/programs/{programId}/events", {
    path: { programId: program },
    body: { events },
  });
  const closes = Date.now() + 4_000;
  const first = await askAudience(client, program, "Who scores first?", ["Northport", "Southvale"], {
    closes,
  });
  await vote(client, first, "whoScoresFirst", [204, 108]);
  const best = ["Ada Abel", "Lin Okoye", "Jo Ruiz"];
  const player = await askAudience(client, program, "Player of the match?", best);
  await vote(client, player, "playerOfTheMatch", [231, 139, 58]);
  const ends = ["Northport", "Southvale", "A draw"];
  const wins = await askAudience(client, program, "Who wins the final?", ends);
  await vote(client, wins, "whoWinsTheFinal", [463, 334, 74]);
}

/** So many visitors choose each option. */
async function vote(
  client: Client,
  contextId: string,
  measureName: string,
  counts: readonly number[],
): Promise<void> {
  const responses = counts.flatMap((count, measureValue) =>
    Array.from({ length: count }, () => ({ measureName, contextId, measureValue, visitorId: newId() })),
  );
  const path = { accountId: "demo", projectId: project, programId: program };
  await client.request("POST", "/responses/{accountId}/{projectId}/{programId}", {
    path,
    body: { responses },
  });
}

describe("the pictures of the documentation", { timeout: 240_000 }, () => {
  test("at a desk", async () => {
    const { page, close } = await visit(browser, { viewport: DESKTOP, colorScheme: "dark" });
    await enter(page, producer);
    await show(page, `programs/${program}`);
    await page.getByRole("option").first().waitFor();
    await page.getByRole("button", { name: /Score#update/ }).click();
    await sees(page, "Live");
    await page.evaluate(() => scrollTo(0, 0));
    await shoot(page, "dashboard-events");
    await page.emulateMedia({ colorScheme: "light" });
    await show(page, `programs/${program}/polls`);
    await sees(page, "871 answers");
    await page.getByText("Closed", { exact: true }).waitFor();
    await shoot(page, "dashboard-polls");
    await show(page, `projects/${project}/revisions/${revision}`);
    await page
      .getByLabel("Content")
      .fill(JSON.stringify({ overlay: { ...LOOK.overlay, theme: "light" } }, null, 2));
    await page.getByRole("button", { name: "Preview" }).click();
    const stage = page.frameLocator("iframe[title=Overlay]").locator("onair-overlay .stage");
    await stage.locator("[data-graphic=poll].on").waitFor();
    await page.setViewportSize({ width: DESKTOP.width, height: 1_080 });
    await page.locator("iframe").evaluate((frame) => frame.scrollIntoView({ block: "end" }));
    await shoot(page, "dashboard-preview");
    await close();
  });

  test("on a phone", async () => {
    const { page, close } = await visit(browser, { viewport: PHONE });
    await enter(page, producer);
    const shots: Buffer[] = [];
    for (const path of ["programs", `programs/${program}`, `programs/${program}/polls`, "statistics"]) {
      await show(page, path);
      if (path.endsWith("/polls")) {
        const poll = page.getByRole("region", { name: "Who wins the final?" });
        await poll.getByText("871 answers").waitFor();
        await poll.evaluate((element) => element.scrollIntoView({ block: "center" }));
      }
      if (path === `programs/${program}`) {
        await page.getByRole("option").first().waitFor();
        await page.getByRole("listbox").evaluate((list) => list.scrollIntoView({ block: "center" }));
      }
      shots.push(await page.screenshot({ animations: "disabled" }));
    }
    await close();
    // Side by side.
    const width = shots.length * PHONE.width + (shots.length - 1) * GAP_PX;
    const table = await browser.newPage({ viewport: { width, height: PHONE.height } });
    const images = shots.map((shot) => `<img src="data:image/png;base64,${shot.toString("base64")}">`);
    await table.setContent(
      `<style>body { margin: 0; display: flex; gap: ${GAP_PX}px; background: #c8ccd2 }</style>${images.join("")}`,
    );
    await shoot(table, "dashboard-phone");
    await table.close();
  });
});

/** Takes a screenshot when nothing is loading any more and nothing moves. */
async function shoot(page: Page, name: string): Promise<void> {
  if (page.url().includes("/dashboard/")) await settle(page);
  await page.screenshot({ path: join(OUT, `${name}.png`), animations: "disabled" });
}
