/** Screenshots of every dashboard screen in light, dark and phone width: accessible, no wider than the window. */
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import type { Page } from "playwright-core";
import { makeShow } from "./show.js";
import {
  admin,
  browser,
  check,
  DESKTOP,
  enter,
  IMAGE,
  type Made,
  openStage,
  pathOf,
  PHONE,
  SCREENS,
  SHOTS,
  show,
  visit,
} from "./world.js";

/** By screen, what opens a dialog there, each with the dialog's name in the screenshots. */
const DIALOGS: Record<string, Record<string, (page: Page) => Promise<void>>> = {
  programs: { new: press("New program"), help: (page) => page.keyboard.press("?") },
  projects: { new: press("New project") },
  users: { new: press("New user"), edit: press("admin") },
  settings: { delete: press("Delete the program") },
};

function press(name: string) {
  return (page: Page) => page.getByRole("button", { name, exact: true }).first().click();
}

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
      const lookAt = async (screen: string) => {
        await page.screenshot({ path: join(SHOTS, `${screen}-${look}.png`), animations: "disabled" });
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= options.viewport.width, `${screen} is ${width} px wide`);
        await check(page);
        await seesFocus(page, screen);
      };
      await lookAt("login");
      await enter(page, "admin");
      for (const screen of Object.keys(SCREENS)) {
        await show(page, pathOf(screen, made));
        if (screen === "images") {
          await page.getByLabel("Source").fill(IMAGE);
          await page.getByRole("button", { name: "Show" }).click();
          await page.locator(".image img").waitFor();
        }
        await lookAt(screen);
        for (const [name, open] of Object.entries(DIALOGS[screen] ?? {})) {
          await open(page);
          const dialog = page.getByRole("dialog");
          await dialog.waitFor();
          await lookAt(`${screen}-${name}`);
          await page.keyboard.press("Escape");
          await dialog.waitFor({ state: "detached" });
        }
      }
      await close();
    });
  }
});

/** Goes through the page by Tab: what has the focus is seen, with an outline that stands out (WCAG 2.2, 2.4.7 and 2.4.11). */
async function seesFocus(page: Page, screen: string): Promise<void> {
  const seen = new Set<string>();
  for (let count = 0; count < 200; count++) {
    await page.keyboard.press("Tab");
    const { name, faults } = await page.evaluate(async () => {
      const element = document.activeElement as HTMLElement;
      if (element === document.body) return { name: "", faults: [] };
      const all = ((window as any).numbered ??= new Map<Element, number>());
      if (!all.has(element)) all.set(element, all.size);
      const faults: string[] = [];
      const drawn = getComputedStyle(element.closest(".virtual") ?? element);
      if (drawn.outlineStyle === "none" || Number.parseFloat(drawn.outlineWidth) < 2)
        faults.push("no outline");
      const light = (colour: string) => {
        const [red = 0, green = 0, blue = 0] = (colour.match(/[\d.]+/g) ?? []).map((part) => {
          const share = Number(part) / 255;
          return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
      };
      let behind: Element | null = element.parentElement;
      while (behind && /, 0\)$|transparent/.test(getComputedStyle(behind).backgroundColor))
        behind = behind.parentElement;
      const [one, other] = [
        light(drawn.outlineColor),
        light(getComputedStyle(behind ?? document.documentElement).backgroundColor),
      ];
      const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      if (ratio < 3) faults.push(`an outline of contrast ${ratio.toFixed(1)}`);
      const isInView = () => {
        const box = element.getBoundingClientRect();
        const [left, right] = [Math.max(box.left, 0), Math.min(box.right, innerWidth)];
        const [top, bottom] = [Math.max(box.top, 0), Math.min(box.bottom, innerHeight)];
        const points = [0.1, 0.5, 0.9].flatMap((x) =>
          [0.1, 0.5, 0.9].map((y) => [left + x * (right - left), top + y * (bottom - top)] as const),
        );
        const isSeen = points.some(([x, y]) => {
          const there = document.elementFromPoint(x, y);
          return there !== null && (element.contains(there) || there.contains(element));
        });
        return right > left && bottom > top && isSeen;
      };
      // A busy browser scrolls to the focus some frames after the key.
      for (let looks = 0; looks < 100 && !isInView(); looks++)
        await new Promise((resolve) => setTimeout(resolve, 20));
      if (!isInView()) faults.push(`not in view: ${JSON.stringify(element.getBoundingClientRect())}`);
      return {
        name: String(all.get(element)),
        faults: faults.map((fault) => `${element.outerHTML.slice(0, 200)}: ${fault}`),
      };
    });
    // The fields of a date have the same name; what was first is once around.
    if (seen.size > 1 && name === [...seen][0]) break;
    if (name) seen.add(name);
    assert.deepEqual(faults, [], screen);
  }
  await page.evaluate(() => (document.activeElement as HTMLElement).blur());
  assert.ok(seen.size >= 2, `${screen}: ${seen.size} places`);
}
