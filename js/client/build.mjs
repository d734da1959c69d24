// Makes dist/: the ES modules, the one file for <script>, and the SharedWorker's script. The types are tsc's.
import { readdirSync, rmSync } from "node:fs";
import { build } from "esbuild";

const shared = { bundle: true, minify: true, target: "es2022", legalComments: "none", logLevel: "warning" };

for (const file of readdirSync("dist", { recursive: true })) {
  if (file.endsWith(".js")) rmSync(`dist/${file}`);
}
await build({
  ...shared,
  entryPoints: {
    index: "src/index.ts",
    core: "src/core-entry.ts",
    shared: "src/shared.ts",
    react: "src/react.ts",
    vue: "src/vue.ts",
  },
  outdir: "dist",
  format: "esm",
  splitting: true,
  chunkNames: "chunks/[hash]",
  external: ["react", "vue"],
});
await build({ ...shared, entryPoints: ["src/worker.ts"], outfile: "dist/worker.js", format: "iife" });
await build({
  ...shared,
  entryPoints: ["src/script.ts"],
  outfile: "dist/onair-broker.min.js",
  format: "iife",
  globalName: "OnAir",
});

if (process.argv.includes("--tests")) {
  const list = (folder) => readdirSync(`test/${folder}`).map((name) => `test/${folder}/${name}`);
  await build({
    ...shared,
    minify: false,
    entryPoints: [...list("unit"), ...list("product")],
    outbase: "test",
    outdir: ".build/test",
    outExtension: { ".js": ".mjs" },
    format: "esm",
    platform: "node",
    packages: "external",
  });
  await build({
    ...shared,
    entryPoints: list("pages"),
    outdir: ".build/test/pages",
    format: "iife",
    jsx: "automatic",
    define: { "process.env.NODE_ENV": '"production"', __VUE_OPTIONS_API__: "false" },
  });
}
