/** What events make of the graphics, without a browser. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { parseConfig, parseGraphics } from "../src/config.js";
import { findHost } from "../src/hosts.js";
import { clockText, percentages, State } from "../src/state.js";
import { bounded, colour, inkOn, text } from "../src/values.js";
import MEASURES from "../../../tests/voting/measures.json" with { type: "json" };

function tell(state: State, event: string, metadata: Record<string, unknown> = {}): void {
  state.apply({ id: event, event, timestamp: 1_000, metadata });
}

test("a score is shown, changed and hidden, and what an update leaves out stays", () => {
  const state = new State();
  tell(state, "Score#update", { home: 1, homeTeam: "NOR", away: 0, awayTeam: "SOU" });
  assert.equal(state.isScoreOn, false);
  tell(state, "Score#show");
  tell(state, "Score#update", { home: 2 });
  assert.deepEqual(
    [state.isScoreOn, state.home, state.away.code],
    [true, { code: "NOR", goals: "2" }, "SOU"],
  );
  tell(state, "Score#hide");
  assert.equal(state.isScoreOn, false);
});

test("of several lower thirds the one that was shown last is seen, and after it the one before", () => {
  const state = new State();
  tell(state, "Card#show", { player: "Ada", colour: "red", team: "Northport" });
  tell(state, "Goal#show", { player: "Ben", team: "Northport", clock: "12:00" });
  assert.deepEqual([state.banner?.kind, state.banner?.line], ["goal", "Northport · 12:00"]);
  tell(state, "Goal#hide", { team: "Northport" });
  assert.deepEqual([state.banner?.kind, state.banner?.name], ["redCard", "Ada"]);
  tell(state, "Overlay#clear");
  assert.equal(state.banner, undefined);
});

test("counts of another poll change nothing", () => {
  const state = new State();
  state.apply({
    id: "p",
    event: "Poll#show",
    timestamp: 0,
    metadata: { title: "Who's the FIFA cup's MVP?", options: ["A", { label: "B" }] },
  });
  assert.deepEqual([state.poll?.measure, state.poll?.options], ["whosTheFifaCupsMvp", ["A", "B"]]);
  state.count("q", true, { 0: 5 });
  state.count("p", false, { 0: 5 });
  state.count("p", undefined, { 0: 5 });
  assert.deepEqual(state.poll?.counts, [0, 0]);
  state.count("p", true, { 0: 5, 1: 7, 9: 1 });
  assert.deepEqual(state.poll?.counts, [5, 7]);
});

test("an option without a label is shown as its index", () => {
  const labels = (options: unknown) => {
    const state = new State();
    tell(state, "Poll#show", { title: "Who wins?", options });
    return [state.isPollOn, state.poll?.options];
  };
  const odd = ["a", 2, null, {}, { label: null }, { label: 1.5 }, [1], true];
  assert.deepEqual(labels(odd), [true, ["a", "2", "2", "3", "4", "1.5", "6", "7"]]);
  assert.deepEqual(labels(Array(1_000).fill("x")), [true, Array(8).fill("x")]);
  for (const none of [Array(1_001).fill("x"), "ab", {}, [], null])
    assert.deepEqual(labels(none), [false, []]);
});

test("a poll's votes are looked for under the name that the broker counts them by", () => {
  for (const { metadata, measure } of MEASURES) {
    const state = new State();
    tell(state, "Poll#show", { ...metadata, options: ["A", "B"] });
    assert.equal(state.poll?.measure, measure, JSON.stringify(metadata));
  }
  const state = new State();
  tell(state, "Poll#show", { title: " ", measureName: 5, options: ["A"] });
  assert.equal(state.poll?.measure, "");
});

test("a poll closes at the time that its metadata names, and is closed when that cannot be read", () => {
  const closing = (closes: unknown) => {
    const state = new State();
    tell(state, "Poll#show", { title: "Who wins?", options: ["A", "B"], closes });
    return state.poll?.closesMs;
  };
  for (const closes of [
    1_577_836_800_000,
    "1577836800000",
    "2020-01-01T01:00:00+01:00",
    "2020-01-01T00:00:00",
  ])
    assert.equal(closing(closes), 1_577_836_800_000, String(closes));
  for (const closes of ["soon", "soon 1", "2020-13-01T00:00:00Z", false, {}])
    assert.equal(closing(closes), Number.NEGATIVE_INFINITY, String(closes));
  for (const closes of [null, undefined, ""]) assert.equal(closing(closes), Number.POSITIVE_INFINITY);
});

test("metadata of any shape is no fault", () => {
  const state = new State();
  const odd: unknown[] = [null, 1, "x", [], [[]], {}, { toString: null }, "#".repeat(70_000)];
  for (const name of [
    "Score",
    "Clock",
    "Poll",
    "Goal",
    "Card",
    "Substitution",
    "Title",
    "Winner",
    "Lineup",
    "LowerThird",
  ]) {
    for (const action of ["show", "update", "start", "stop", "hide"]) {
      for (const value of odd) {
        const keys = [
          "home",
          "homeTeam",
          "clock",
          "options",
          "title",
          "team",
          "player",
          "players",
          "score",
          "photo",
        ];
        tell(state, `${name}#${action}`, Object.fromEntries(keys.map((key) => [key, value])));
        state.apply({ id: "x", event: `${name}#${action}`, timestamp: 0, metadata: value as never });
      }
    }
  }
});

test("percentages add up to a hundred", () => {
  assert.deepEqual(percentages([1, 1, 1]), [34, 33, 33]);
  assert.deepEqual(percentages([0, 0]), [0, 0]);
  assert.deepEqual(percentages([]), []);
  for (let round = 0; round < 200; round++) {
    const counts = Array.from(
      { length: 1 + (round % 8) },
      (_, index) => (round * 7919 * (index + 3)) % 1_001,
    );
    const sum = percentages(counts).reduce((total, share) => total + share, 0);
    assert.equal(sum, counts.some(Boolean) ? 100 : 0);
  }
});

test("a clock that runs goes on between its updates, and one that is stopped stands", () => {
  const clock = { text: "44:50", isRunning: true, atMs: 10_000 };
  assert.equal(clockText(clock, 22_400), "45:02");
  assert.equal(clockText(clock, 9_000), "44:50");
  assert.equal(clockText({ ...clock, isRunning: false }, 22_400), "44:50");
  assert.equal(clockText({ ...clock, text: "half time" }, 22_400), "half time");
});

test("texts are bounded, and turn no other text's direction", () => {
  assert.equal(text("a\u202Eb\u0000c"), "a b c");
  assert.equal(Array.from(text("😀".repeat(70_000))).length, 161);
  assert.equal(text({}), "");
});

test("a colour is a colour and nothing else", () => {
  assert.equal(colour("#FFF"), "#fff");
  for (const bad of ["red", "url(x)", "#12345", "#fff;background:url(x)", 7, null])
    assert.equal(colour(bad), undefined);
  assert.deepEqual([inkOn("#ffb000"), inkOn("#0a1020"), inkOn("#fff")], ["#0b1020", "#ffffff", "#0b1020"]);
});

test("a configuration is taken as far as it is right", () => {
  const config = parseConfig({
    overlay: {
      graphics: ["poll", "lower-third", "nothing"],
      poll: { position: "left" },
      scoreboard: { position: "behind you" },
      colors: { accent: "url(x)" },
      delayMs: -4,
      safeArea: "3.5",
      teams: { NOR: { name: "Northport", color: "#2f7bff" }, SOU: null },
      locale: "no such thing",
      labels: { goal: "Tor", votes: 9 },
    },
  });
  assert.deepEqual([...config.graphics], ["poll", "lowerThird"]);
  assert.deepEqual(config.positions, { scoreboard: "top-left", lowerThird: "bottom-left", poll: "left" });
  assert.deepEqual(
    [config.accent, config.delayMs, config.safeArea, config.locale],
    ["#e6193c", 0, 3.5, "en"],
  );
  assert.deepEqual([config.labels.goal, config.labels.votes, config.labels.poll], ["Tor", "9", "Vote now"]);
  assert.equal(parseConfig(null).graphics.size, 3);
  assert.deepEqual([...parseGraphics("scoreboard")], ["scoreboard"]);
  assert.equal(bounded("x", 0, 1, 0.5), 0.5);
});

test("each host is known by what it puts into the page", () => {
  const navigator = { userAgent: "Mozilla/5.0 Chrome/120" };
  assert.equal(findHost({ navigator }), "browser");
  assert.equal(findHost({ navigator, obsstudio: {} }), "obs");
  assert.equal(findHost({ navigator, remove: () => {} }), "casparcg");
  assert.equal(findHost({ navigator, SPXGCTemplateDefinition: {} }), "spx");
  assert.equal(findHost({ navigator: { userAgent: `${navigator.userAgent} vMix/27` } }), "vmix");
});
