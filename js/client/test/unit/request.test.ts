/** What a request does that cannot be sent; `fetch` is scripted, as Node's own or as a browser's. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, ConnectionFailed } from "../../src/index.js";

const URL_OF_BROKER = "http://demo.localhost:8000";

/** Node's error for a request that failed, for this reason. */
function failureOf(code: string, message = `getaddrinfo ${code} demo.localhost`): TypeError {
  return new TypeError("fetch failed", { cause: Object.assign(new Error(message), { code }) });
}

/** A client whose requests fail with these in turn, and then succeed; notes how many there were. */
function openClient(...failures: (Error | undefined)[]) {
  const asked: string[] = [];
  const fetch = async (input: RequestInfo | URL) => {
    const failure = failures[asked.push(String(input)) - 1];
    if (failure) throw failure;
    return new Response('{"name":"broker"}', { headers: { "Content-Type": "application/json" } });
  };
  return { client: new Client(URL_OF_BROKER, { fetch, timing: { baseMs: 1, capMs: 1 } }), asked };
}

test("an error says why there was no connection", async () => {
  const { client } = openClient(failureOf("ECONNREFUSED", ""));
  await assert.rejects(client.request("GET", "/version", { deadlineMs: 0 }), /fetch failed: ECONNREFUSED$/);
  const other = openClient(failureOf("EHOSTUNREACH", "connect EHOSTUNREACH 10.0.0.1:80")).client;
  await assert.rejects(
    other.request("GET", "/version", { deadlineMs: 0 }),
    /fetch failed: connect EHOSTUNREACH 10/,
  );
  const browser = openClient(new TypeError("Failed to fetch")).client;
  await assert.rejects(browser.request("GET", "/version", { deadlineMs: 0 }), /TypeError: Failed to fetch$/);
});

test("a name that does not exist is tried once", async () => {
  const { client, asked } = openClient(failureOf("ENOTFOUND"));
  await assert.rejects(client.request("GET", "/version"), (error) => {
    assert.ok(error instanceof ConnectionFailed);
    assert.match(error.message, /getaddrinfo ENOTFOUND demo\.localhost$/);
    return true;
  });
  assert.equal(asked.length, 1);
});

test("a subscription to a name that does not exist fails at once, and so does a call", async () => {
  const { client, asked } = openClient(failureOf("ENOTFOUND"), failureOf("ENOTFOUND"));
  await assert.rejects(client.subscribe("p").ready, /ENOTFOUND demo\.localhost$/);
  await assert.rejects(client.call("servertime", {}), /ENOTFOUND demo\.localhost$/);
  assert.equal(asked.length, 2);
  client.close();
});

test("a name server that does not answer is asked again", async () => {
  const { client, asked } = openClient(failureOf("EAI_AGAIN"));
  await client.request("GET", "/version");
  assert.equal(asked.length, 2);
});

test("a name that was there is tried again", async () => {
  const { client, asked } = openClient(undefined, failureOf("ENOTFOUND"));
  await client.request("GET", "/version");
  await client.request("GET", "/version");
  assert.equal(asked.length, 3);
});

test("an address without http is refused by the constructor", () => {
  for (const url of ["demo.localhost:8000", "ws://demo.localhost:8000", "ftp://demo.example.org"]) {
    assert.throws(() => new Client(url), { name: "TypeError", message: /http:\/\/ or https:\/\/: / });
  }
});

test("a path without one of its parameters is refused, and nothing is sent", async () => {
  const { client, asked } = openClient();
  for (const path of [undefined, {}, { programId: undefined }, { programId: null }]) {
    await assert.rejects(client.request("GET", "/programs/{programId}", { path } as never), {
      name: "TypeError",
      message: "the path parameter programId of /programs/{programId} is missing",
    });
  }
  assert.deepEqual(asked, []);
});
