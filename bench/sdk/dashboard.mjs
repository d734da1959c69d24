// The dashboard in Chromium, and how fast it is: `node dashboard.mjs`.
//
// Says {"ready":true} and answers each line of its input with one of JSON:
//   visit URL                   times of the first visit, and what was loaded (KB, as it came)
//   open USER PASSWORD PROGRAM  logs in, opens the program and reads all of its events; times
//   frames S TOTAL              {"ready":true}; then the frames of S seconds, and the events there once they are TOTAL
import { lines, openBrowser, tell } from "./browser.mjs";

const FRAME_MS = 1000 / 60;

const browser = await openBrowser();
const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
page.setDefaultTimeout(60_000);

/** The number in a text such as “10,000 in all”. */
async function readTotal() {
  const text = await page.getByText(/^[\d,]+ in all$/).innerText();
  return Number(text.replace(/\D/g, ""));
}

const commands = {
  async visit(url) {
    const began = performance.now();
    await page.goto(url);
    await page.getByLabel("User name").waitFor();
    const log_in_ready_ms = performance.now() - began;
    const found = await page.evaluate(
      () =>
        new Promise((resolve) => {
          const observer = new PerformanceObserver((list) => {
            const paint = list.getEntriesByName("first-contentful-paint")[0];
            if (!paint) return;
            const loaded = [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")];
            const bytes = loaded.reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0);
            resolve({ first_paint_ms: paint.startTime, kilobytes: bytes / 1000 });
          });
          observer.observe({ type: "paint", buffered: true });
        }),
    );
    tell({ ...found, log_in_ready_ms });
  },
  async open(username, password, program) {
    await page.getByLabel("User name").fill(username);
    await page.getByLabel("Password").fill(password);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Programs", exact: true }).waitFor();
    const began = performance.now();
    await page.evaluate((hash) => (location.hash = hash), `#/programs/${program}`);
    await page.getByRole("option").first().waitFor();
    const program_to_stream_ms = performance.now() - began;
    const more = page.getByRole("button", { name: "Read 1,000 more" });
    for (let count = 2; count <= 10; count++) {
      await more.click();
      if (count < 10) await page.getByText(`${count},000 of 10,000 are here`).waitFor();
    }
    await more.waitFor({ state: "detached" });
    tell({ program_to_stream_ms, all_read_ms: performance.now() - began });
  },
  async frames(seconds, total) {
    const devtools = await page.context().newCDPSession(page);
    await devtools.send("Performance.enable");
    const busyS = async () => {
      const { metrics } = await devtools.send("Performance.getMetrics");
      return metrics.find(({ name }) => name === "TaskDuration").value;
    };
    const before = await busyS();
    tell({ ready: true });
    const times = await page.evaluate(
      (ms) =>
        new Promise((resolve) => {
          const times = [];
          const count = (time) => {
            times.push(time);
            if (time - times[0] < ms) requestAnimationFrame(count);
            else resolve(times);
          };
          requestAnimationFrame(count);
        }),
      Number(seconds) * 1000,
    );
    const after = await busyS();
    const intervals = times.slice(1).map((time, index) => time - times[index]);
    const lasted = (times.at(-1) - times[0]) / 1000;
    const deadline = performance.now() + 10_000;
    while (Number(total) && (await readTotal()) < Number(total) && performance.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    tell({
      frames_per_s: intervals.length / lasted,
      dropped: intervals.reduce((sum, each) => sum + Math.max(0, Math.round(each / FRAME_MS) - 1), 0),
      longest_ms: Math.max(...intervals),
      main_thread_share: (after - before) / lasted,
      total: await readTotal(),
    });
  },
};

tell({ ready: true });
for await (const line of lines) {
  const [name, ...given] = line.split(" ");
  await commands[name](...given);
}
await browser.close();
