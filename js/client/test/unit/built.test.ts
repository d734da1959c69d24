/** The built modules, which take what they share from each other by name. */
import assert from "node:assert/strict";
import { test } from "node:test";

const load = (name: string) => import(new URL(`../../../dist/${name}.js`, import.meta.url).href);

test("an error is of the same class in every module", async () => {
  const [index, core] = await Promise.all([load("index"), load("core")]);
  for (const name of Object.keys(index)) if (name !== "Client") assert.equal(index[name], core[name], name);
  const { openShared } = await load("shared");
  assert.equal(typeof openShared, "function");
});
