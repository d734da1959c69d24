// Makes dist/: the ES modules, the one file for <script>, and the SharedWorker's script. The types are tsc's.
import { readdirSync, rmSync } from "node:fs";
import { join, relative } from "node:path";
import { build } from "esbuild";

// Members that no caller, no message and no browser sees, under shorter names: 4 % of the core.
const internal =
  "aliveMs|api|attempt|begin|capacity|carrier|check|clock|confirm|doubt|drained|draw|drop|emit|ended|fail|feeds|finish|handed|" +
  "hasRoom|heardMs|hub|" +
  "isAborted|isFallback|isKnown|isOn|isTold|isWaiting|isWanted|joinHere|known|leave|link|linkFor|lose|lost|members|move|nextMs|" +
  "onGap|onHeard|onNotification|onState|openStream|opened|pump|renewInMs|sample|socket|socketClass|source|streaming|streams|" +
  "take|tell|tick|tokens|tracker|update|waiting";

const shared = { bundle: true, minify: true, target: "es2022", legalComments: "none", logLevel: "warning" };
const shipped = { ...shared, mangleProps: new RegExp(`^(${internal})$`) };

/** Leaves `./streams.js` out of the core, which loads it where WebSocket is blocked. */
const streamsApart = {
  name: "streams apart",
  setup: ({ onResolve }) =>
    onResolve({ filter: /^\.\/streams\.js$/ }, ({ path }) => ({ path, external: true })),
};

/** Takes what the core has from its file: two copies of an error would be two classes. */
const coreApart = (files) => ({
  name: "core apart",
  setup: ({ onResolve }) =>
    onResolve({ filter: /^\.\// }, ({ path, resolveDir }) => {
      const file = relative(".", join(resolveDir, path)).replace(/\.js$/, ".ts");
      return files.has(file) ? { path: "./core.js", external: true } : undefined;
    }),
});

for (const file of readdirSync("dist", { recursive: true })) {
  if (file.endsWith(".js")) rmSync(`dist/${file}`);
}
const core = await build({
  ...shipped,
  entryPoints: ["src/core-parts.ts"],
  outfile: "dist/core.js",
  format: "esm",
  plugins: [streamsApart],
  metafile: true,
  mangleCache: {},
});
await build({
  ...shipped,
  entryPoints: {
    index: "src/index.ts",
    streams: "src/streams.ts",
    shared: "src/shared.ts",
    react: "src/react.ts",
    vue: "src/vue.ts",
  },
  outdir: "dist",
  format: "esm",
  splitting: true,
  // Beside the core, so that `./core.js` is its address for all of them.
  chunkNames: "chunk-[hash]",
  external: ["react", "vue"],
  plugins: [coreApart(new Set(Object.keys(core.metafile.inputs)))],
  mangleCache: core.mangleCache,
});
await build({ ...shipped, entryPoints: ["src/worker.ts"], outfile: "dist/worker.js", format: "iife" });
await build({
  ...shipped,
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
