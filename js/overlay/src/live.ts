/**
 * Drives an overlay by a program: its events in time with the video, the counts of its polls, and the published
 * revision of its project as configuration.
 *
 * It never gives up. A program that is not there yet, a token that ended, a broker that is away: it tries again,
 * what is seen stays, and nothing about it is shown on air; `onState` is called.
 */
import {
  ApiError,
  Client,
  type ClientOptions,
  type LiveResults,
  type ProgramEvent,
} from "../../client/src/index.js";
import { parseConfig } from "./config.js";
import type { Overlay } from "./overlay.js";
import { fields, text } from "./values.js";

/** Where an overlay's events and configuration come from. */
export interface Source {
  /** Such as `https://demo.example.org`; its first label is the account. */
  broker: string;
  program: string;
  /** Whose published revision configures; none does without. */
  project: string;
  /** Which revision: a version, an id, or `latest`. */
  revision: string;
  token: string;
  /** How far the video is behind; the configuration says it where it is absent. */
  delayMs: number | undefined;
}

/** The origin of a broker's address; empty for what is none, as of a graphic that was copied to a disk. */
export function parseBroker(value: unknown): string {
  try {
    const { origin, protocol } = new URL(text(value));
    return /^https?:$/.test(protocol) ? origin : "";
  } catch {
    return "";
  }
}

export type LiveState = "connecting" | "live" | "lost";

const AGAIN_MS = 3_000;
const CONFIG_MS = 5_000;
/** How far back an overlay that is loaded in the middle of a show looks for what is on. */
const LOOKBACK_MS = 12 * 3_600_000;
const PORTRAIT = "w=400,h=400,fit=face-and-shoulders,f=webp";

export class Live {
  readonly client: Client;
  /** What the video shows, where a player says it. */
  position: (() => number | undefined) | undefined;
  readonly #end = new AbortController();
  #restart: AbortController | undefined;
  #polled = "";

  /** Begins at once, and goes on until `close`. */
  constructor(
    readonly overlay: Overlay,
    readonly source: Source,
    readonly onState: (state: LiveState, why?: unknown) => void = () => {},
    options: ClientOptions = {},
  ) {
    this.client = new Client(source.broker, { token: source.token || undefined, ...options });
    overlay.portrait = (photo, portrait) =>
      portraitOf(new URL(source.broker).origin, this.client.account, photo, portrait);
    overlay.now = () => this.position?.() ?? this.client.now() - this.#delayMs;
    this.client.addEventListener("state", () => {
      if (this.client.state === "connecting") onState("lost");
    });
    this.#configure().then(() => {
      this.#forever(() => this.#follow());
      this.#forever(() => this.#count());
      if (source.project) this.#forever(() => this.#watch());
    });
  }

  /** Reads the events anew, for a player that begins or ends to say where the video is. */
  reposition(position: (() => number | undefined) | undefined): void {
    this.position = position;
    this.#restart?.abort();
  }

  close(): void {
    this.#end.abort();
    this.#restart?.abort();
    this.client.close();
  }

  get #delayMs(): number {
    return this.source.delayMs ?? this.overlay.config.delayMs;
  }

  async #forever(work: () => Promise<void>): Promise<void> {
    const { signal } = this.#end;
    while (!signal.aborted) {
      let why: unknown;
      try {
        await work();
      } catch (error) {
        why = error;
      }
      if (signal.aborted) return;
      if (why) {
        this.onState("lost", why);
        await wait(AGAIN_MS, signal);
      }
    }
  }

  /** Follows the events until something ends that, or they are to be read anew. */
  async #follow(): Promise<void> {
    this.#restart = new AbortController();
    const { signal } = this.#restart;
    this.overlay.reset();
    const timeline = this.client.timeline(this.source.program, {
      signal,
      position: this.position && (() => this.position?.()),
      delayMs: this.#delayMs,
      lookbackMs: LOOKBACK_MS,
      onSeek: ({ reason }) => {
        if (reason !== "forward") this.overlay.reset();
      },
    });
    timeline.ready.then(
      () => this.onState("live"),
      () => {},
    );
    for await (const event of timeline) this.#take(event);
  }

  #take(event: ProgramEvent): void {
    this.overlay.apply({ ...event, metadata: fields(event.metadata) });
    const { poll } = this.overlay;
    if (!poll?.measure || poll.id === this.#polled) return;
    this.#polled = poll.id;
    this.#readCounts(poll).catch((error: unknown) => this.onState("live", error));
  }

  /** The counts from before this overlay saw the poll; a poll without votes has none. */
  async #readCounts({ id, measure }: { id: string; measure: string }): Promise<void> {
    try {
      this.#tell(
        await this.client.request("GET", "/responses/{accountId}/{responseName}/results", {
          path: { accountId: this.client.account, responseName: measure },
          query: { programId: this.source.program, contextId: id },
        }),
      );
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
    }
  }

  async #count(): Promise<void> {
    const { signal } = this.#end;
    for await (const result of this.client.results(this.source.program, { signal })) {
      // The viewer's video is behind the votes as it is behind the events.
      setTimeout(() => this.#tell(result), this.#delayMs);
    }
    if (!signal.aborted) await wait(AGAIN_MS, signal);
  }

  #tell({ contextId, isDeclared, results }: LiveResults): void {
    this.overlay.count(contextId, isDeclared, fields(results));
  }

  /** Looks every few seconds whether another revision has been published. */
  async #watch(): Promise<void> {
    await wait(CONFIG_MS, this.#end.signal);
    const delayMs = this.#delayMs;
    await this.#configure();
    if (this.#delayMs !== delayMs) this.#restart?.abort();
  }

  async #configure(): Promise<void> {
    const { project, revision } = this.source;
    if (!project) return;
    try {
      const found = await this.client.request("GET", "/projects/{projectId}/application/live/{version}", {
        path: { projectId: project, version: revision },
        deadlineMs: 0,
        timeoutMs: 5_000,
        signal: this.#end.signal,
      });
      const config = parseConfig(found.content);
      if (JSON.stringify(plain(config)) !== JSON.stringify(plain(this.overlay.config))) {
        this.overlay.configure(config);
      }
    } catch (error) {
      // The graphics go on air as they are; a configuration that comes later is taken then.
      if (!this.#end.signal.aborted) this.onState("connecting", error);
    }
  }
}

/** The URL of a player's portrait at a broker; empty where there is none. */
export function portraitOf(broker: string, account: string, photo: string, portrait: string): string {
  const own = `${broker}/api/v2/imgproxy/`;
  if (portrait.startsWith(own)) return portrait;
  if (!/^https?:\/\//i.test(photo)) return "";
  return `${own}${account}/${PORTRAIT}?url=${encodeURIComponent(photo)}`;
}

/** A configuration as JSON has it, to see whether another one differs. */
function plain(config: ReturnType<typeof parseConfig>): unknown {
  return { ...config, graphics: [...config.graphics], teams: [...config.teams] };
}

async function wait(ms: number, signal: AbortSignal): Promise<void> {
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
