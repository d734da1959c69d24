/**
 * A browser for tests in Python: reads lines of JSON, does what each says, and writes a line for it when it is done.
 *
 * `{"open": url}` opens a page in place of the one before; `{"says": selector, "text": text}` waits until an element
 * of the page, also one in a shadow tree, shows the text and no other, or any where there is no text. The end of the
 * input closes the browser.
 */
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { openBrowser } from "../../client/test/product/world.js";
import type { Page } from "./world.js";

interface Wanted {
  open?: string;
  says?: string;
  text?: string;
}

const browser = await openBrowser();
let page: Page = await browser.newPage();
const faults: string[] = [];

for await (const line of createInterface({ input: process.stdin })) {
  const wanted = JSON.parse(line) as Wanted;
  if (wanted.open !== undefined) {
    await page.close();
    page = await browser.newPage({ viewport: { width: 1920, height: 1080 } });
    page.on("pageerror", (error) => faults.push(String(error)));
    await page.goto(wanted.open);
  } else {
    const { text } = wanted;
    const shown = page.locator(wanted.says as string);
    await (text === undefined ? shown : shown.filter({ hasText: exactly(text) })).first().waitFor();
  }
  assert.deepEqual(faults, []);
  process.stdout.write("done\n");
}
await browser.close();

function exactly(text: string): RegExp {
  return new RegExp(`^\\s*${text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}\\s*$`);
}
