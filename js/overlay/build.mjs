// Makes python/broker/overlay/: the page, the OGraf graphics, the template for SPX, and the fonts with their licences.
import { cpSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { build } from "../client/node_modules/esbuild/lib/main.js";

const out = "../../python/broker/overlay";
const shared = {
  bundle: true,
  target: "chrome90", // CasparCG 2.4, OBS 28, vMix 25
  loader: { ".css": "text", ".woff2": "file" },
  logLevel: "warning",
};

rmSync(out, { recursive: true, force: true });
await build({
  ...shared,
  minify: true,
  legalComments: "none",
  entryPoints: {
    overlay: "src/page.ts",
    scoreboard: "src/ograf/scoreboard.ts",
    "lower-third": "src/ograf/lower-third.ts",
    poll: "src/ograf/poll.ts",
  },
  outdir: out,
  format: "esm",
  splitting: true,
  chunkNames: "[name]-[hash]",
  assetNames: "fonts/[name]-[hash]",
});
cpSync("static", out, { recursive: true });
const fonts = "node_modules/@fontsource-variable";
for (const name of readdirSync(fonts)) {
  mkdirSync(`${out}/fonts`, { recursive: true });
  cpSync(`${fonts}/${name}/LICENSE`, `${out}/fonts/${name}.LICENSE.txt`);
}

if (process.argv.includes("--tests")) {
  // Beside the client's tests, whose browser they run in.
  await build({
    ...shared,
    entryPoints: readdirSync("test")
      .filter((name) => name.endsWith(".test.ts") || name === "watch.ts")
      .map((name) => `test/${name}`),
    outdir: "../client/.build/test/overlay",
    outExtension: { ".js": ".mjs" },
    format: "esm",
    platform: "node",
    target: "node20",
    packages: "external",
  });
}
