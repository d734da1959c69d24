/** What a graphic is: an element that comes in, changes and goes out. */
import type { Config, Graphic as Name } from "./config.js";
import { element, fit } from "./dom.js";
import type { State } from "./state.js";

/** What graphics are drawn with. */
export interface Look {
  config: Config;
  /** The moment that the video shows, in milliseconds since 1970. */
  nowMs: number;
  /** Whether nothing is to move. */
  isInstant: boolean;
  /** The URL of a player's portrait; empty where there is none. */
  portrait(photo: string, portrait: string): string;
}

/** How long a graphic takes to go out; then another one may come. */
export const OUT_MS = 450;
/** How long a graphic takes to come in. */
export const IN_MS = 950;

/**
 * One graphic. Movement is that of style sheets, transform and opacity alone, which the compositor makes.
 * Nothing waits for the end of one: a page that is reported as hidden draws no frames, and must go on.
 */
export abstract class Graphic {
  readonly root: HTMLElement;
  /** The lines that are made to fit. */
  protected readonly fitted: HTMLElement[] = [];
  #isOn = false;

  protected constructor(
    readonly name: Name,
    content: HTMLElement,
  ) {
    this.root = element("graphic", content);
    this.root.dataset.graphic = name;
  }

  /** Draws a state; nothing of it where the graphic is not `wanted`. */
  abstract draw(state: State, look: Look, isWanted: boolean): void;

  /** Fits all lines anew, as after fonts have come. */
  refit(): void {
    for (const line of this.fitted) fit(line);
  }

  get isOn(): boolean {
    return this.#isOn;
  }

  protected turn(isOn: boolean, look: Look): void {
    this.root.dataset.at = look.config.positions[this.name];
    this.root.classList.toggle("instant", look.isInstant);
    if (isOn === this.#isOn) return;
    this.#isOn = isOn;
    // The browser must know how it stands before, or it would not move.
    void this.root.offsetWidth;
    this.root.classList.toggle("on", isOn);
  }
}

/** The colour and the name that the configuration has for a team; the events' own name where it has none. */
export function teamOf(config: Config, code: string): { name: string; colour: string | undefined } {
  const found =
    config.teams.get(code) ?? [...config.teams.values()].find((team) => team.name && team.name === code);
  return { name: found?.name || code, colour: found?.colour };
}

/** Sets or takes away a custom property. */
export function paint(of: HTMLElement, name: string, value: string | undefined): void {
  if (value) of.style.setProperty(name, value);
  else of.style.removeProperty(name);
}
