import assert from "node:assert/strict";
import { test } from "node:test";
import { Playback, type Position } from "../../src/playback.js";

const START = 1_784_484_000_000;

function open(position: Position, delayMs = 0) {
  const player = { position };
  return { player, playback: new Playback(() => player.position, delayMs, 0) };
}

test("the video is where the player says, as a number or as a date", () => {
  const { player, playback } = open(START);
  assert.equal(playback.look(0, 0), "none");
  assert.equal(playback.atMs, START);
  player.position = new Date(START + 100.5);
  playback.look(100, 0);
  assert.equal(playback.atMs, START + 100);
});

test("a step back is a seek when it is over a second, else jitter", () => {
  const { player, playback } = open(START);
  playback.look(0, 0);
  player.position = START - 1000;
  assert.deepEqual([playback.look(100, 0), playback.atMs], ["none", START]);
  player.position = START - 1001;
  assert.deepEqual([playback.look(200, 0), playback.atMs], ["back", START - 1001]);
});

test("a step forward is a seek when no speed and no sleep explain it", () => {
  const { player, playback } = open(START);
  playback.look(0, 0);
  player.position = START + 1400;
  assert.equal(playback.look(100, 0), "none");
  player.position = START + 1400 + 1401;
  assert.equal(playback.look(200, 0), "forward");
  player.position = START + 60_000;
  assert.equal(playback.look(60_000, 0), "none");
});

test("a position that is not known stands still for five seconds and then is the clock's", () => {
  for (const unknown of [null, undefined, Number.NaN, new Date("never")]) {
    const { player, playback } = open(START, 3000);
    playback.look(0, START);
    player.position = unknown;
    assert.deepEqual([playback.look(4_999, START + 20_000), playback.atMs], ["none", START]);
    assert.deepEqual([playback.look(5_000, START + 20_000), playback.atMs], ["none", START + 17_000]);
    assert.equal(playback.isFallback, true);
    player.position = START + 10_000;
    assert.equal(playback.look(5_100, START + 20_100), "back");
    assert.equal(playback.isFallback, false);
  }
});

test("a player that throws is not there yet", () => {
  const playback = new Playback(
    () => {
      throw new TypeError("no player");
    },
    0,
    0,
  );
  assert.equal(playback.look(10, START), "none");
  assert.equal(playback.atMs, Number.NEGATIVE_INFINITY);
  playback.look(6_000, START);
  assert.equal(playback.atMs, START);
});

test("without a player the video is behind the clock at once", () => {
  const playback = new Playback(undefined, 30_000, 0);
  playback.look(0, START);
  assert.deepEqual([playback.isFallback, playback.atMs], [true, START - 30_000]);
});
