// sharp, from npm: one thread, no cache. `node sharp.cjs DIRECTORY [careful]`, which has its node_modules;
// careful, it shrinks while decoding no more than libvips does by itself.
"use strict";
const { readFileSync } = require("node:fs");
const { createInterface } = require("node:readline");
const sharp = require(require.resolve("sharp", { paths: [process.argv[2]] }));

const fastShrinkOnLoad = process.argv[3] !== "careful";
sharp.concurrency(1);
sharp.cache(false);

function transform(source, format) {
  const image = sharp(source, { failOn: "truncated" }).resize(800, 600, { fit: "fill", fastShrinkOnLoad });
  const made = format === "jpg" ? image.jpeg({ quality: 85 }) : image.webp({ quality: 85 });
  return made.toBuffer();
}

async function main() {
  console.log(JSON.stringify({ version: `${sharp.versions.sharp}, libvips ${sharp.versions.vips}` }));
  for await (const line of createInterface({ input: process.stdin })) {
    const [, file, format, count] = line.split(" ");
    const source = readFileSync(file);
    const before = process.cpuUsage();
    let made;
    for (let number = 0; number < Number(count); number += 1) made = await transform(source, format);
    const used = process.cpuUsage(before);
    console.log(JSON.stringify({ cpu_s: (used.user + used.system) / 1e6, bytes: made.length }));
  }
}

main();
