import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, HistoryLost, ProtocolError } from "../../src/errors.js";
import { parseApiError, parseRpcError } from "../../src/refusals.js";
import { packError, unpackError } from "../../src/port.js";

const BODY = {
  error: "invalid_request",
  error_description: "no",
  status: 400,
  errors: [{ field: "id", message: "bad" }],
};

test("an error body becomes a typed error", () => {
  const headers = new Headers({ "Retry-After": "3", "X-Request-Id": "r" });
  const error = parseApiError(400, BODY, headers);
  assert.ok(error instanceof ApiError);
  assert.deepEqual(
    [error.status, error.code, error.message, error.fields, error.requestId, error.retryAfterMs],
    [400, "invalid_request", "no", [{ field: "id", message: "bad" }], "r", 3000],
  );
});

test("what is not the broker's body is no answer of the broker", () => {
  for (const body of [undefined, "<html>", {}, { error: "x" }, { error: "x", status: 502 }]) {
    assert.equal(parseApiError(400, body), undefined);
  }
});

test("a JSON-RPC error is the REST error that it carries", () => {
  const error = parseRpcError({ code: 400, message: "invalid_request", data: BODY });
  assert.ok(error instanceof ApiError && error.fields.length === 1);
  assert.ok(parseRpcError({ code: 429, message: "slow_down" }) instanceof ApiError);
  assert.ok(parseRpcError({ code: -32601, message: "there is no such method" }) instanceof ProtocolError);
});

test("a refusal over the socket says how long to wait, as one over HTTP does", () => {
  const wait = (retryAfter: unknown) => {
    const data = { error: "slow_down", error_description: "no", status: 429, retryAfter };
    return (parseRpcError({ code: 429, message: "slow_down", data }) as ApiError).retryAfterMs;
  };
  assert.deepEqual([2, 0, -1, "x", undefined, 1e9].map(wait), [2_000, 0, 0, 0, 0, 0]);
});

test("errors keep their class and fields through a worker's port", () => {
  const lost = new HistoryLost("p", { epoch: "b", seq: 1 }, { epoch: "a", seq: 9 });
  const back = unpackError(structuredClone(packError(lost)));
  assert.ok(back instanceof HistoryLost && back instanceof Error);
  assert.deepEqual([back.message, back.programId, back.cursor], [lost.message, "p", { epoch: "b", seq: 1 }]);
});
