/**
 * Graphics for OGraf v1 (https://ograf.ebu.io): a renderer makes the element, calls `load`, and then the actions.
 *
 * With `program` among its data a graphic follows the events of a program while it is played; without, it shows the
 * data itself. A graphic has one step: the first `playAction` brings it in, the next one takes it out.
 */
import { type Graphic as Name, parseConfig } from "../config.js";
import { awaitFonts } from "../fonts.js";
import { IN_MS, OUT_MS } from "../graphic.js";
import { Live, parseBroker } from "../live.js";
import { Overlay } from "../overlay.js";
import { type Fields, fields, number, text } from "../values.js";

export interface Result {
  statusCode: number;
  statusMessage?: string;
}

interface Params {
  data?: unknown;
  skipAnimation?: boolean;
}

const OK: Result = { statusCode: 200 };
const wait = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

export abstract class OGraf extends HTMLElement {
  protected abstract readonly graphic: Name;
  #overlay: Overlay | undefined;
  #live: Live | undefined;
  #data: Fields = {};
  #step: number | undefined;

  /** The events that show a graphic's own data; none where there is nothing to show. */
  protected abstract show(data: Fields): [event: string, metadata: Fields][];

  async load({ data, renderType }: Params & { renderType?: string }): Promise<Result> {
    if (renderType === "non-realtime") return { statusCode: 400, statusMessage: "only real-time rendering" };
    this.#overlay?.close();
    this.#overlay = new Overlay(this, { only: new Set([this.graphic]) });
    this.#data = {};
    this.#step = undefined;
    this.#take(data);
    await awaitFonts();
    return OK;
  }

  async dispose(): Promise<Result> {
    this.#live?.close();
    this.#overlay?.close();
    this.#live = undefined;
    this.#overlay = undefined;
    return OK;
  }

  async updateAction({ data, skipAnimation }: Params): Promise<Result> {
    if (!this.#overlay) return NOT_LOADED;
    this.#take(data);
    this.#overlay.flush(skipAnimation);
    return OK;
  }

  async playAction(
    params: { delta?: number; goto?: number; skipAnimation?: boolean } = {},
  ): Promise<Result & { currentStep: number | undefined }> {
    if (!this.#overlay) return { ...NOT_LOADED, currentStep: undefined };
    const step = params.goto ?? (this.#step ?? -1) + (params.delta ?? 1);
    // There is one step; whatever lies before or behind it is the start or the end, where nothing is seen.
    if (step !== 0) {
      await this.stopAction(params);
      return { ...OK, currentStep: undefined };
    }
    this.#step = 0;
    this.#overlay.play(params.skipAnimation);
    await this.#moved(IN_MS, params.skipAnimation);
    return { ...OK, currentStep: this.#step };
  }

  async stopAction({ skipAnimation }: Params = {}): Promise<Result> {
    if (!this.#overlay) return NOT_LOADED;
    this.#step = undefined;
    this.#overlay.stop(skipAnimation);
    await this.#moved(OUT_MS, skipAnimation);
    return OK;
  }

  async customAction({
    id,
    payload,
  }: {
    id: string;
    payload?: unknown;
    skipAnimation?: boolean;
  }): Promise<Result> {
    if (id !== "position") return { statusCode: 404, statusMessage: `there is no action ${text(id)}` };
    const positionMs = number(fields(payload).positionMs);
    if (positionMs === undefined) return { statusCode: 400, statusMessage: "positionMs is missing" };
    const atMs = performance.now();
    this.#live?.reposition(() => positionMs + performance.now() - atMs);
    return OK;
  }

  async #moved(ms: number, isInstant: boolean | undefined): Promise<void> {
    this.#overlay?.flush(isInstant);
    if (!isInstant) await wait(ms);
  }

  /** Takes data, which may be a part of it. */
  #take(data: unknown): void {
    const overlay = this.#overlay as Overlay;
    this.#data = { ...this.#data, ...fields(data) };
    const { program, project, revision, delay, look } = this.#data;
    if (look) overlay.configure(parseConfig({ overlay: look }));
    for (const [event, metadata] of this.show(this.#data)) overlay.give(event, metadata);
    const source = {
      broker: parseBroker(this.#data.broker ?? import.meta.url),
      program: text(program),
      project: text(project),
      revision: text(revision) || "latest",
      token: "",
      delayMs: number(delay),
    };
    if (!source.program || !source.broker || JSON.stringify(this.#live?.source) === JSON.stringify(source))
      return;
    this.#live?.close();
    this.#live = new Live(overlay, source);
  }
}

const NOT_LOADED: Result = { statusCode: 409, statusMessage: "load comes first" };
