/** The scoreboard as an OGraf graphic. */
import type { Fields } from "../values.js";
import { OGraf } from "./element.js";

export default class extends OGraf {
  protected readonly graphic = "scoreboard";

  protected show({ home, away, homeTeam, awayTeam, clock }: Fields): [string, Fields][] {
    if (!homeTeam && !awayTeam) return [];
    const score: [string, Fields] = ["Score#show", { home, away, homeTeam, awayTeam }];
    return clock === undefined ? [score] : [score, ["Clock#update", { clock }]];
  }
}
