// NodeCG calls this with its server's API: it follows the program, and keeps what graphics need in replicants.
"use strict";

const WANTED = { Score: ["home", "away", "homeTeam", "awayTeam"], Clock: ["clock"] };

module.exports = async function follow(nodecg) {
  const { Client } = await import("onair-broker");
  const { broker, program } = nodecg.bundleConfig;
  const score = nodecg.Replicant("score");
  const source = nodecg.Replicant("source", { persistent: false });
  source.value = nodecg.bundleConfig;

  const take = ({ event, metadata }) => {
    const [component, action] = event.split("#");
    const names = WANTED[component];
    if (!names) return;
    const told = names.filter((name) => name in metadata).map((name) => [name, metadata[name]]);
    const next = { ...score.value, ...Object.fromEntries(told) };
    if (component === "Score" && action === "show") next.isOn = true;
    if (component === "Score" && action === "hide") next.isOn = false;
    score.value = next;
  };

  const client = new Client(broker);
  nodecg.on?.("serverStopping", () => client.close());
  for (;;) {
    try {
      for await (const event of client.timeline(program, { lookbackMs: 12 * 3_600_000 })) take(event);
      return client; // it was closed
    } catch (error) {
      // The program is not there yet, or was deleted: whoever makes it again is followed again.
      nodecg.log.warn(`${error.name}: ${error.message}`);
      await new Promise((resolve) => setTimeout(resolve, 3_000));
    }
  }
};
