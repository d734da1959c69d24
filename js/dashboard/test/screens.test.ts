/** Every screen of the dashboard in light, dark and phone width: accessible, no wider than the window, pictured. */
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { makeShow } from "./show.js";
import {
  admin,
  browser,
  check,
  DESKTOP,
  enter,
  type Made,
  openStage,
  pathOf,
  PHONE,
  SCREENS,
  SHOTS,
  show,
  visit,
} from "./world.js";

let made: Made;

openStage(async () => {
  made = await makeShow(admin);
});

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
      await page.screenshot({ path: join(SHOTS, `login-${look}.png`), animations: "disabled" });
      await enter(page, "admin");
      for (const screen of Object.keys(SCREENS)) {
        await show(page, pathOf(screen, made));
        await page.screenshot({ path: join(SHOTS, `${screen}-${look}.png`), animations: "disabled" });
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= options.viewport.width, `${screen} is ${width} px wide`);
        await check(page, look === "dark" ? ["color-contrast"] : undefined);
      }
      await close();
    });
  }
});
