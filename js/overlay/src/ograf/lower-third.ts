/** The lower third as an OGraf graphic. */
import type { Fields } from "../values.js";
import { OGraf } from "./element.js";

export default class extends OGraf {
  protected readonly graphic = "lowerThird";

  protected show({ name, title, team, photo }: Fields): [string, Fields][] {
    return name ? [["LowerThird#show", { name, title, team, photo }]] : [];
  }
}
