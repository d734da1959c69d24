import assert from "node:assert/strict";
import { test } from "node:test";
import { SseParser } from "../../src/stream.js";

const TEXT =
  ': hello\nretry: 1000\nid: a:1\nevent: event\ndata: {"seq":\ndata:1}\n\n:\n\nevent: closed\r\ndata: {"code":1012}\r\n\r\n';
const EVENTS = [
  ["event", { seq: 1 }],
  ["closed", { code: 1012 }],
];

test("events come out whole wherever the text is cut", () => {
  for (let cut = 0; cut <= TEXT.length; cut++) {
    const events: unknown[] = [];
    const parser = new SseParser((event, data) => events.push([event, data]));
    parser.take(TEXT.slice(0, cut));
    parser.take(TEXT.slice(cut));
    assert.deepEqual(events, EVENTS, `cut at ${cut}`);
  }
});

test("events come out whole from single characters", () => {
  const events: unknown[] = [];
  const parser = new SseParser((event, data) => events.push([event, data]));
  for (const each of TEXT) parser.take(each);
  assert.deepEqual(events, EVENTS);
});
