// As much of NodeCG's server as a bundle's extension sees: prints the replicant `score` once it has the whole story.
import { createRequire } from "node:module";
import { join } from "node:path";

const [bundle, broker, program] = process.argv.slice(2);
const score = { isOn: false, clock: "", homeTeam: "", awayTeam: "", home: 0, away: 0 };
const replicants = { score: { value: score }, source: { value: undefined } };
const nodecg = {
  bundleConfig: { broker, program, project: "" },
  log: { warn: (text) => process.stderr.write(`${text}\n`) },
  on() {},
  Replicant: (name) => replicants[name],
};
createRequire(import.meta.url)(join(bundle, "extension", "index.js"))(nodecg);
for (let tries = 0; tries < 500 && replicants.score.value.home !== 3; tries++) {
  await new Promise((resolve) => setTimeout(resolve, 100));
}
process.stdout.write(JSON.stringify(replicants.score.value), () => process.exit(0));
