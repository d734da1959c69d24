/** The lower third: a name, what is to be said of it, and a face. One goes out before the next comes in. */
import type { Label } from "./config.js";
import { element, line, write } from "./dom.js";
import { Graphic, type Look, OUT_MS, paint, teamOf } from "./graphic.js";
import type { Banner, State } from "./state.js";
import { inkOn } from "./values.js";

const KICKERS: Partial<Record<Banner["kind"], Label>> = {
  goal: "goal",
  yellowCard: "yellowCard",
  redCard: "redCard",
  substitution: "substitution",
  winner: "winner",
  lineup: "lineup",
};

export class LowerThird extends Graphic {
  readonly #third: HTMLElement;
  readonly #face: HTMLElement;
  readonly #kicker: HTMLElement;
  readonly #label = line("");
  readonly #name = line("name rise");
  readonly #under = line("under rise");
  #seen: Banner | undefined;
  #leavingUntilMs = 0;

  /** @param again Has the state drawn again, after so many milliseconds. */
  constructor(readonly again: (afterMs: number) => void) {
    const face = element("face");
    const third = element("third");
    super("lowerThird", third);
    this.#third = third;
    this.#face = face;
    this.#kicker = element("kicker rise", element("card"), this.#label);
    const words = element("words", this.#kicker, this.#name, this.#under);
    const body = element("body panel", face, words);
    third.append(element("bar"), element("mask", body));
    this.fitted.push(this.#name, this.#under);
  }

  draw(state: State, look: Look, isWanted: boolean): void {
    const banner = isWanted ? this.#current(state, look) : undefined;
    const isLeaving = performance.now() < this.#leavingUntilMs && !look.isInstant;
    if (!banner || (this.#seen && this.isOn && banner.id !== this.#seen.id && !look.isInstant)) {
      if (this.isOn) {
        this.#leavingUntilMs = performance.now() + OUT_MS;
        this.turn(false, look);
        if (banner) this.again(OUT_MS + 10);
      }
      return;
    }
    if (isLeaving && !this.isOn) return this.again(this.#leavingUntilMs - performance.now() + 10);
    this.#fill(banner, look);
    this.turn(true, look);
  }

  /** The banner that is on; none once its time is over. */
  #current(state: State, look: Look): Banner | undefined {
    const { banner } = state;
    const forS = banner && (banner.seconds || look.config.lowerThirdS);
    if (!banner || !forS) return banner;
    const leftMs = banner.shownMs + forS * 1_000 - look.nowMs;
    if (leftMs <= 0) return undefined;
    this.again(leftMs + 10);
    return banner;
  }

  #fill(banner: Banner, look: Look): void {
    this.#seen = banner;
    const { config } = look;
    const team = teamOf(config, banner.team);
    paint(this.root, "--kit", team.colour);
    // On a dark panel a dark colour cannot be read as text: then the text has the panel's own ink.
    const colour = team.colour ?? config.accent;
    const isReadable = (inkOn(colour) === "#ffffff") === (config.theme === "light");
    paint(this.root, "--kicker", isReadable ? colour : "var(--ink)");
    this.#third.dataset.kind = banner.kind;
    const label = KICKERS[banner.kind];
    write(this.#label, label ? config.labels[label] : "");
    this.#kicker.classList.toggle("empty", !label);
    const isTeam = banner.kind === "winner" || banner.kind === "lineup";
    const isNew = write(this.#name, isTeam ? team.name : banner.name);
    const under = banner.kind === "substitution" && banner.line ? `↓ ${banner.line}` : banner.line;
    if (write(this.#under, under) || isNew) this.refit();
    this.#portray(look.portrait(banner.photo, banner.portrait));
  }

  #portray(url: string): void {
    const before = this.#face.querySelector("img");
    if ((before?.src ?? "") === url) return;
    this.#face.replaceChildren();
    this.#face.classList.toggle("there", !!url);
    if (!url) return;
    const image = document.createElement("img");
    image.alt = "";
    image.onload = () => image.classList.add("loaded");
    image.onerror = () => {
      // A name without a face, rather than a hole.
      if (image.isConnected) this.#face.classList.remove("there");
    };
    image.src = url;
    this.#face.append(image);
  }
}
