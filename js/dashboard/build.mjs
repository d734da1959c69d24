// Makes the pages that the broker serves at /dashboard/; with --tests also the browser's tests.
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename } from "node:path";
import { pathToFileURL } from "node:url";
import { build } from "../client/node_modules/esbuild/lib/main.js";

const OUT = "../../python/broker/dashboard";
const shared = { bundle: true, target: "es2022", legalComments: "none", logLevel: "warning" };

rmSync(OUT, { recursive: true, force: true });
mkdirSync(OUT, { recursive: true });
const { metafile } = await build({
  ...shared,
  entryPoints: { main: "src/main.tsx" },
  outdir: OUT,
  entryNames: "[name]-[hash]", // kept by browsers for a year
  format: "esm",
  minify: true,
  metafile: true,
  jsx: "automatic",
  jsxImportSource: "preact",
  // Its optional WebSocket class is for Node.
  external: ["ws"],
  plugins: [{ name: "plots in English", setup: keepPlotsInEnglish }],
});
let page = readFileSync("src/index.html", "utf8");
for (const path of Object.keys(metafile.outputs)) {
  page = page.replace(path.endsWith(".css") ? "main.css" : "main.js", basename(path));
}
writeFileSync(`${OUT}/index.html`, page);
copyFileSync("src/icon.svg", `${OUT}/icon.svg`);
writeFileSync(`${OUT}/licences.txt`, readLicences(Object.keys(metafile.inputs)));

if (process.argv.includes("--tests")) {
  await build({
    ...shared,
    entryPoints: readdirSync("test")
      .filter((name) => name.endsWith(".test.ts"))
      .map((name) => `test/${name}`),
    outdir: ".build/test",
    outExtension: { ".js": ".mjs" },
    format: "esm",
    platform: "node",
    plugins: [{ name: "the client's browser", setup: useBrowserOfClient }],
  });
}

/** What the authors of the libraries in the bundle ask to be kept with it. */
function readLicences(inputs) {
  const folders = new Set(
    inputs.map((path) => /^node_modules\/(@[^/]+\/)?[^/]+/.exec(path)?.[0]).filter(Boolean),
  );
  const texts = [...folders].sort().map((folder) => {
    const { name, version } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
    return `${name} ${version}\n\n${readFileSync(`${folder}/LICENSE`, "utf8").trim()}\n`;
  });
  return texts.join(`\n${"-".repeat(72)}\n\n`);
}

/** uPlot makes a format of the browser's language as it loads; `en-US@posix` is none, and nothing would start. */
function keepPlotsInEnglish(build) {
  build.onLoad({ filter: /uPlot\.esm\.js$/ }, ({ path }) => {
    const source = readFileSync(path, "utf8");
    const contents = source.replace("domEnv ? nav.language : 'en-US'", "'en'");
    if (contents === source) throw new Error(`${path} asks for the language in another way`);
    return { contents };
  });
}

/** The browser is large: the tests of the dashboard run in the one that the client's tests have. */
function useBrowserOfClient(build) {
  build.onResolve({ filter: /^(playwright-core|@sparticuz\/chromium)$/ }, async ({ path, pluginData }) => {
    if (pluginData === "asked") return undefined;
    const options = {
      resolveDir: `${process.cwd()}/../client`,
      kind: "import-statement",
      pluginData: "asked",
    };
    const found = await build.resolve(path, options);
    return { path: pathToFileURL(found.path).href, external: true };
  });
}
