import assert from "node:assert/strict";
import { test } from "node:test";
import { Picture, type Position } from "../../src/picture.js";

const START = 1_784_484_000_000;

function open(position: Position, delayMs = 0) {
  const player = { position };
  return { player, picture: new Picture(() => player.position, delayMs, 0) };
}

test("the picture is where the player says, as a number or as a date", () => {
  const { player, picture } = open(START);
  assert.equal(picture.look(0, 0), "none");
  assert.equal(picture.atMs, START);
  player.position = new Date(START + 100.5);
  picture.look(100, 0);
  assert.equal(picture.atMs, START + 100);
});

test("a step back is a seek when it is over a second, else jitter", () => {
  const { player, picture } = open(START);
  picture.look(0, 0);
  player.position = START - 1000;
  assert.deepEqual([picture.look(100, 0), picture.atMs], ["none", START]);
  player.position = START - 1001;
  assert.deepEqual([picture.look(200, 0), picture.atMs], ["back", START - 1001]);
});

test("a step forward is a seek when no speed and no sleep explain it", () => {
  const { player, picture } = open(START);
  picture.look(0, 0);
  player.position = START + 1400;
  assert.equal(picture.look(100, 0), "none");
  player.position = START + 1400 + 1401;
  assert.equal(picture.look(200, 0), "forward");
  player.position = START + 60_000;
  assert.equal(picture.look(60_000, 0), "none");
});

test("a position that is not known stands still for five seconds and then is the clock's", () => {
  for (const unknown of [null, undefined, Number.NaN, new Date("never")]) {
    const { player, picture } = open(START, 3000);
    picture.look(0, START);
    player.position = unknown;
    assert.deepEqual([picture.look(4_999, START + 20_000), picture.atMs], ["none", START]);
    assert.deepEqual([picture.look(5_000, START + 20_000), picture.atMs], ["none", START + 17_000]);
    assert.equal(picture.isFallback, true);
    player.position = START + 10_000;
    assert.equal(picture.look(5_100, START + 20_100), "back");
    assert.equal(picture.isFallback, false);
  }
});

test("a player that throws is not there yet", () => {
  const picture = new Picture(
    () => {
      throw new TypeError("no player");
    },
    0,
    0,
  );
  assert.equal(picture.look(10, START), "none");
  assert.equal(picture.atMs, Number.NEGATIVE_INFINITY);
  picture.look(6_000, START);
  assert.equal(picture.atMs, START);
});

test("without a player the picture is behind the clock at once", () => {
  const picture = new Picture(undefined, 30_000, 0);
  picture.look(0, START);
  assert.deepEqual([picture.isFallback, picture.atMs], [true, START - 30_000]);
});
