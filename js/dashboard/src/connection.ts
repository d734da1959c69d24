/** The SDK's client for the user who is logged in, with the token in no URL. */
import { computed, signal } from "@preact/signals";
import { ApiError, Client, type ClientOptions, type State } from "../../client/src/index.js";
import type { Received, Sending } from "../../client/src/http.js";
import { currentToken, login, refuse } from "./session.js";
import { nameOf, once, Unconfirmed } from "./unconfirmed.js";

/** A WebSocket that carries its token in the first subscription instead of its URL: URLs end up in logs. */
class TokenSocket extends WebSocket {
  constructor(url: string) {
    const bare = new URL(url);
    bare.searchParams.delete("access_token");
    super(bare);
  }

  override send(text: string): void {
    const call = JSON.parse(text);
    const token = login.peek()?.token;
    if (call.method === "subscribe" && token) call.params = { access_token: token, ...call.params };
    super.send(JSON.stringify(call));
  }
}

export class Connection extends Client {
  constructor(baseUrl: string, options: ClientOptions) {
    super(baseUrl, options);
    const send = this.api.send.bind(this.api);
    // Whoever presses a button again after a change got no answer means the same change.
    this.api.send = (method, path, sending = {}) => {
      // Nothing that is made of a password is kept in the tab; users are known by their names.
      const isPlain = method === "GET" || sending.idempotencyKey || "password" in (sending.body ?? {});
      if (isPlain) return send(method, path, sending);
      const name = nameOf(method, path, sending);
      return once(name, (idempotencyKey) => send(method, path, { ...sending, idempotencyKey }));
    };
  }

  /** As `request`, with the headers of the reply. */
  exchange(method: string, path: string, sending: Sending = {}): Promise<Received> {
    return this.api.send(method, path, sending);
  }

  /** How far this machine's clock is ahead of the broker's. */
  aheadMs(): number {
    return Date.now() - this.now();
  }

  /** The earliest time by the broker's clock that `ownMs` of this machine's may stand for; both in ms since 1970. */
  earliestMs(ownMs: number): number {
    return ownMs - this.aheadMs() - this.api.tokens.clock.errorMs;
  }

  /** The full URL of a path below the API's base. */
  urlOf(path: string, values: Record<string, string>): string {
    return this.api.url(path, { path: values });
  }
}

/** What the WebSocket is like; REST goes on without it. */
export const connectionState = signal<State>("idle");

let made: { userId: string; client: Connection } | undefined;

/** The connection of who is logged in. */
export const connection = computed<Connection>(() => {
  const user = login.value;
  if (!user) throw new Error("you are not logged in");
  if (made?.userId !== user.userId) made = { userId: user.userId, client: open(user.account) };
  return made.client;
});

function open(account: string): Connection {
  const client = new Connection(location.origin, {
    account,
    token: currentToken,
    visitorId: "dashboard",
    transport: "websocket",
    WebSocket: TokenSocket,
    fetch: fetchAndWatch,
    timing: { capMs: 5_000 },
  });
  client.addEventListener("state", () => (connectionState.value = client.state));
  return client;
}

/** Notes that the broker refuses the token. */
async function fetchAndWatch(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  const reply = await fetch(input, init);
  if (reply.status === 401) {
    const sent = new Headers(init?.headers).get("Authorization");
    if (sent?.startsWith("Bearer ")) refuse(sent.slice("Bearer ".length));
  }
  return reply;
}

/** What went wrong, in words for the user. */
export function explain(error: unknown): string {
  if (error instanceof Unconfirmed)
    return `No answer came, so it may or may not be done. Sent again as it is, it is done once. (${explain(error.cause)})`;
  if (error instanceof ApiError) {
    const fields = error.fields.map(({ field, message }) => `${field} ${message}`);
    return [error.message, ...fields.filter((text) => !error.message.includes(text))].join("; ");
  }
  return error instanceof Error ? error.message : String(error);
}
