import assert from "node:assert/strict";
import { test } from "node:test";
import { Client } from "../../src/index.js";

const SOURCE = "https://cdn.example.com/players/kim.jpg?size=l&v=2#top";

test("the URL of an image names account, options and source, each whole", () => {
  const client = new Client("http://arena.localhost:8000");
  const url = new URL(client.imageUrl(SOURCE, "w=400,h=300,fit=fill:top"));
  assert.equal(url.origin, "http://arena.localhost:8000");
  assert.equal(url.pathname, "/api/v2/imgproxy/arena/w=400,h=300,fit=fill:top");
  assert.deepEqual([...url.searchParams], [["url", SOURCE]]);
  assert.equal(url.hash, "");
  assert.match(client.imageUrl(SOURCE, "a/b?c#d"), /\/arena\/a%2Fb%3Fc%23d\?url=/);
  client.close();
});

test("without options an image is only encoded again, and a client may name its account", () => {
  const client = new Client("http://127.0.0.1:8000", { account: "arena" });
  assert.match(
    client.imageUrl(SOURCE),
    /^http:\/\/127\.0\.0\.1:8000\/api\/v2\/imgproxy\/arena\/-\?url=https%3A/,
  );
  client.close();
});
