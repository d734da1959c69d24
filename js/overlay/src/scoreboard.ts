/** The scoreboard: clock, teams and goals in one line. */
import { element, fit, line, write } from "./dom.js";
import { Graphic, type Look, paint, teamOf } from "./graphic.js";
import { clockText, type Side, type State } from "./state.js";
import { inkOn } from "./values.js";

const FLASH_MS = 1_400;
/** Of a score: runs of cricket, points of a league. */
const MOST_CHARACTERS = 7;

class Team {
  readonly code = line("code");
  readonly goals = element("goals", element(""));
  readonly root: HTMLElement;
  readonly #flash = element("flash");
  #told = "";

  constructor(classes: string) {
    this.root = element(`team ${classes}`, element("kit"), this.code, this.#flash);
    this.goals.replaceChildren(numeral("0"));
  }

  draw({ code, goals }: Side, look: Look, isOn: boolean): void {
    const { colour } = teamOf(look.config, code);
    paint(this.root, "--kit", colour);
    paint(this.root, "--on-kit", colour && inkOn(colour));
    write(this.#flash, look.config.labels.goal);
    if (write(this.code, code)) fit(this.code);
    if (goals === this.#told) return;
    const isNews = isOn && this.#told !== "" && !look.isInstant;
    this.#told = goals;
    const next = numeral(goals);
    this.goals.replaceChildren(next);
    if (!isNews) return;
    next.animate([{ transform: "translateY(100%)" }, { transform: "none" }], {
      duration: 500,
      easing: "cubic-bezier(0.16, 1, 0.3, 1)",
    });
    this.#flash.animate(
      [
        { transform: "scaleX(0)", transformOrigin: "0 50%" },
        { transform: "scaleX(1)", transformOrigin: "0 50%", offset: 0.3 },
        { transform: "scaleX(1)", transformOrigin: "100% 50%", offset: 0.6 },
        { transform: "scaleX(0)", transformOrigin: "100% 50%" },
      ],
      { duration: FLASH_MS, easing: "ease-in-out" },
    );
  }
}

export class Scoreboard extends Graphic {
  readonly #time: HTMLElement;
  readonly #home: Team;
  readonly #away: Team;

  constructor() {
    const [time, home, away] = [element("time"), new Team("home"), new Team("away")];
    super("scoreboard", element("panel score", time, home.root, home.goals, away.goals, away.root));
    [this.#time, this.#home, this.#away] = [time, home, away];
    this.fitted.push(home.code, away.code);
  }

  draw(state: State, look: Look, isWanted: boolean): void {
    const isOn = isWanted && state.isScoreOn;
    this.tick(state, look.nowMs);
    if (isOn || !this.isOn) {
      this.#home.draw(state.home, look, this.isOn);
      this.#away.draw(state.away, look, this.isOn);
    }
    this.turn(isOn, look);
  }

  /** Only the clock. */
  tick(state: State, nowMs: number): void {
    write(this.#time, clockText(state.clock, nowMs));
  }
}

function numeral(text: string): HTMLElement {
  const made = document.createElement("span");
  made.textContent = text.slice(0, MOST_CHARACTERS);
  return made;
}
