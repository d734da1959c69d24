/** Every screen of the dashboard in light, dark and phone width: accessible, no wider than the window, pictured. */
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { Browser } from "playwright-core";
import type { Client } from "../../client/src/index.js";
import { openAdmin, openBrowser } from "../../client/test/product/world.js";
import { makeShow } from "./show.js";
import { check, DESKTOP, enter, type Made, pathOf, PHONE, SCREENS, SHOTS, show, visit } from "./world.js";

let browser: Browser;
let admin: Client;
let made: Made;

before(async () => {
  browser = await openBrowser();
  admin = openAdmin();
  made = await makeShow(admin);
});

after(async () => {
  admin.close();
  await browser.close();
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
