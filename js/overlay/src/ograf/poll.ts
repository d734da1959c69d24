/** The poll as an OGraf graphic. */
import type { Fields } from "../values.js";
import { OGraf } from "./element.js";

export default class extends OGraf {
  protected readonly graphic = "poll";

  protected show({ question, options }: Fields): [string, Fields][] {
    return question ? [["Poll#show", { title: question, options }]] : [];
  }
}
