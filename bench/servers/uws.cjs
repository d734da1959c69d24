// uWebSockets: `publish` to a topic that every viewer is subscribed to.
//
//     node bench/servers/uws.cjs PORT PATH_OF_THE_MODULE
//
// The library batches what it publishes to a topic until its loop's turn ends, so messages without a pause between
// them come in slices of one turn each.
"use strict";

const { dirname } = require("node:path");
const { createInterface } = require("node:readline");

const [port, module_path] = process.argv.slice(2);
const uws = require(dirname(module_path));
const { version } = require(module_path);
const MESSAGES_A_TURN = 32;

let seq = 0;

const app = uws
  .App()
  .ws("/*", {
    compression: uws.DISABLED,
    idleTimeout: 0,
    // A viewer may fall behind by as much as a burst has; the default of 64 KiB drops messages.
    maxBackpressure: 0,
    open: (viewer) => viewer.subscribe("bench"),
    message: () => {},
  })
  .listen("127.0.0.1", Number(port), (socket) => {
    if (!socket) process.exit(1);
    console.log(JSON.stringify({ version: `${version}, Node.js ${process.versions.node}`, pids: [] }));
  });

function buildMessage(bytes, sent_s) {
  seq += 1;
  const fields = `{"jsonrpc":"2.0","method":"event","params":{"seq":${seq},"epoch":"bench","programId":"bench","sent":${Math.round(sent_s * 1e9)},"filler":"`;
  return fields + "x".repeat(bytes - fields.length - 3) + '"}}';
}

// Seconds of the monotonic clock, as the load client reads it.
const now = () => Number(process.hrtime.bigint()) / 1e9;

async function publish(count, bytes, interval_s) {
  const began = now();
  for (let turn = 0; turn < count; turn += 1) {
    const due = began + turn * interval_s;
    if (interval_s > 0) {
      const pause_ms = (due - now()) * 1000;
      await new Promise((go) => (pause_ms > 0 ? setTimeout(go, pause_ms) : setImmediate(go)));
    } else if (turn % MESSAGES_A_TURN === 0) {
      await new Promise(setImmediate);
    }
    app.publish("bench", buildMessage(bytes, interval_s > 0 ? due : now()));
  }
  console.log(JSON.stringify({ published: count, seconds: now() - began }));
}

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    const [name, count, bytes, interval_us] = line.split(" ");
    if (name !== "publish") process.exit(2);
    await publish(Number(count), Number(bytes), Number(interval_us) / 1e6);
  }
  process.exit(0);
}

main();
