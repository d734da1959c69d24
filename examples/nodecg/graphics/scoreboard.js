// The broker's scoreboard, an OGraf graphic, fed by the replicant that the extension keeps.
const score = nodecg.Replicant("score");
const source = nodecg.Replicant("source");
await NodeCG.waitForReplicants(score, source);

const { default: Scoreboard } = await import(`${source.value.broker}/overlay/scoreboard.js`);
customElements.define("onair-scoreboard", Scoreboard);
const graphic = document.createElement("onair-scoreboard");
document.body.append(graphic);
await graphic.load({ data: {}, renderType: "realtime" });

score.on("change", async ({ isOn, ...data }, before) => {
  await graphic.updateAction({ data });
  if (isOn !== before?.isOn) await (isOn ? graphic.playAction({ goto: 0 }) : graphic.stopAction({}));
});
