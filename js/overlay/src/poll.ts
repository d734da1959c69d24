/** The poll: the question, and a bar for each option that moves as votes come in. */
import { element, line, write } from "./dom.js";
import { Graphic, type Look, paint, teamOf } from "./graphic.js";
import { percentages, type Poll as Asked, type State } from "./state.js";

/** What three lines of a question have room for. */
const LONG_CHARACTERS = 66;

interface Row {
  root: HTMLElement;
  label: HTMLElement;
  share: HTMLElement;
  fill: HTMLElement;
}

export class Poll extends Graphic {
  readonly #panel: HTMLElement;
  readonly #label = line("");
  readonly #question = element("question rise");
  readonly #options = element("options");
  readonly #total = element("total rise");
  #rows: Row[] = [];
  #drawn = "";

  constructor(readonly again: (afterMs: number) => void) {
    const panel = element("panel poll");
    super("poll", panel);
    this.#panel = panel;
    panel.append(
      element("kicker rise", element("live"), this.#label),
      this.#question,
      this.#options,
      this.#total,
    );
  }

  draw(state: State, look: Look, isWanted: boolean): void {
    const { poll } = state;
    const isOn = isWanted && state.isPollOn && poll !== undefined;
    if (isOn) this.#fill(poll, look);
    this.turn(isOn, look);
  }

  #fill(poll: Asked, look: Look): void {
    const { config } = look;
    const leftMs = poll.closesMs - look.nowMs;
    const isClosed = leftMs <= 0;
    if (!isClosed && Number.isFinite(leftMs)) this.again(Math.min(leftMs + 10, 60_000));
    this.#panel.classList.toggle("closed", isClosed);
    write(this.#label, config.labels[isClosed ? "closed" : "poll"]);
    write(this.#question, poll.title);
    this.#question.classList.toggle("long", poll.title.length > LONG_CHARACTERS);
    const key = `${poll.id} ${poll.options.join("\n")}`;
    if (key !== this.#drawn) {
      this.#drawn = key;
      this.#rows = poll.options.map(makeRow);
      this.#options.replaceChildren(...this.#rows.map((row) => row.root));
      this.fitted.splice(0, Number.POSITIVE_INFINITY, ...this.#rows.map((row) => row.label));
      this.refit();
    }
    const shares = percentages(poll.counts);
    const most = Math.max(...poll.counts);
    const total = poll.counts.reduce((sum, count) => sum + count, 0);
    const asText = new Intl.NumberFormat(config.locale, { style: "percent" });
    this.#rows.forEach((row, index) => {
      const count = poll.counts[index] ?? 0;
      const share = total ? count / total : 0;
      const team = teamOf(config, poll.options[index] ?? "");
      write(row.share, asText.format((shares[index] ?? 0) / 100));
      row.root.classList.toggle("leads", count > 0 && count === most);
      row.root.classList.toggle("team-coloured", team.colour !== undefined);
      paint(row.root, "--kit", team.colour);
      const empty = (1 - share) * (config.direction === "rtl" ? 100 : -100);
      row.fill.style.transform = `translateX(${empty}%)`;
    });
    write(this.#total, `${new Intl.NumberFormat(config.locale).format(total)} ${config.labels.votes}`);
  }
}

function makeRow(option: string): Row {
  const [label, share, fill] = [line(""), element("share"), element("fill")];
  write(label, option);
  const root = element("option rise", element("caption", label, share), element("track", fill));
  return { root, label, share, fill };
}
