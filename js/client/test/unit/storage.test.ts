import assert from "node:assert/strict";
import { test } from "node:test";
import { newId } from "../../src/ids.js";
import { keptId } from "../../src/storage.js";

test("an id is kept where there is storage", () => {
  const kept = new Map<string, string>();
  const store = {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, id: string) => kept.set(key, id),
  };
  const id = keptId(() => store, "visitor");
  assert.equal(
    keptId(() => store, "visitor"),
    id,
  );
});

test("storage that throws makes an id for now", () => {
  const denied = () => {
    throw new DOMException("denied", "SecurityError");
  };
  assert.match(keptId(denied, "visitor"), /^[0-9a-f]{32}$/);
  assert.match(
    keptId(() => undefined, "visitor"),
    /^[0-9a-f]{32}$/,
  );
  const full = { getItem: () => null, setItem: denied };
  assert.match(
    keptId(() => full, "visitor"),
    /^[0-9a-f]{32}$/,
  );
});

test("no two ids are the same", () => {
  assert.equal(new Set(Array.from({ length: 1000 }, newId)).size, 1000);
});
