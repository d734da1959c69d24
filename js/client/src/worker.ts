/**
 * The `SharedWorker`: one hub for all pages of an origin that were given the same script and name.
 *
 * A page's port does not say when the page has gone. Each page holds a lock of its own, which the worker asks for
 * and gets once the page is gone; where there are no locks (they need a secure context) the page says so itself.
 */
import { ServerClock } from "./clock.js";
import { ConnectionFailed } from "./errors.js";
import type { Member } from "./feed.js";
import { Api } from "./http.js";
import { Hub } from "./hub.js";
import { newId } from "./ids.js";
import type { SocketClass } from "./link.js";
import { packError, type ToPage, type ToWorker, unpackError, type WorkerConfig } from "./port.js";
import { Tokens } from "./token.js";
import { type Raw, Tracker } from "./tracker.js";

type Send = (message: ToPage) => void;

const PROBLEM_MS = 1_000; // pages name the last problem when they give up, after 30 s
const TOKEN_MS = 10_000; // a page that does not answer may be frozen: the next one is asked

const pages = new Map<Send, (token?: string, error?: Raw) => void>();
let hub: Hub | undefined;
/** The token that a page gave last. */
let given: string | undefined;
/** The lock that is held as long as the worker lives; undefined until it is, and where there are no locks. */
let life: string | undefined;

/** Asks the pages for a token, the youngest first. */
async function askForToken(): Promise<string | undefined> {
  let problem: Error = new ConnectionFailed("no page gave a token");
  for (const send of [...pages.keys()].reverse()) {
    const answer = await new Promise<{ token?: string | undefined; error?: Raw }>((resolve) => {
      pages.set(send, (token, error) => resolve({ token, error }));
      setTimeout(() => resolve({ error: packError(new ConnectionFailed("no page answered")) }), TOKEN_MS);
      send({ op: "token", instead: given });
    });
    if (answer.error === undefined) {
      given = answer.token;
      return given;
    }
    problem = unpackError(answer.error);
  }
  throw problem;
}

const stateOf = ({ state, problem }: Hub): ToPage => ({ op: "state", state, problem: problem?.message });

function openHub(config: WorkerConfig): Hub {
  const clock = new ServerClock();
  const tokens = new Tokens(config.hasToken ? askForToken : undefined, clock);
  const api = new Api(`${config.baseUrl}/api/v1`, tokens, (input, init) => fetch(input, init), 0);
  const made = new Hub({
    api,
    clock,
    timing: config.timing,
    transport: config.transport,
    maxStreams: config.maxStreams,
    socketClass: async () => WebSocket as SocketClass,
  });
  made.onState = () => {
    for (const send of pages.keys()) send(stateOf(made));
  };
  // Why there is no connection is known a while after there is none, and may change.
  let told = made.problem;
  setInterval(() => {
    if (made.problem === told) return;
    told = made.problem;
    made.onState();
  }, PROBLEM_MS);
  return made;
}

function serve(port: MessagePort): void {
  const send: Send = (message) => port.postMessage(message);
  const members = new Map<number, { target: Raw; member: Member }>();
  const gone = () => {
    pages.delete(send);
    for (const { target, member } of members.values()) hub?.leave(target, member);
    members.clear();
  };
  const handle = (message: ToWorker) => {
    if (message.op === "hello") {
      hub ??= openHub(message.config);
      pages.set(send, () => {});
      if (life) send({ op: "life", lock: life });
      return send(stateOf(hub));
    }
    if (message.op === "check") return hub?.check();
    if (message.op === "ping") return send({ op: "pong" });
    if (message.op === "lock") return void navigator.locks.request(message.lock, gone);
    if (message.op === "bye") return gone();
    if (message.op === "token") return pages.get(send)?.(message.token, message.error);
    const { id } = message;
    const open = hub as Hub;
    if (message.op === "join") {
      const { target, since, history } = message;
      const tracker = "programId" in target ? new Tracker(target.programId, since, history) : undefined;
      const member: Member = {
        ...(tracker && { tracker }),
        isTold: false,
        opened: () => send({ op: "opened", id, cursor: tracker?.cursor }),
        lost: () => send({ op: "lost", id }),
        tell: (method, params) => send({ op: "tell", id, method, params }),
        fail: (error) => {
          members.delete(id);
          send({ op: "fail", id, error: packError(error) });
        },
      };
      members.set(id, { target, member });
      open.join(target, member);
    } else if (message.op === "leave") {
      const left = members.get(id);
      members.delete(id);
      if (left) open.leave(left.target, left.member);
    } else {
      open.call(message.method, message.params).then(
        (result) => send({ op: "reply", id, result }),
        (error) => send({ op: "reply", id, error: packError(error) }),
      );
    }
  };
  port.onmessage = (message) => handle(message.data);
}

/** Pages that wait for the lock get it when the worker has ended, however it did. */
function holdLife(): void {
  const lock = `onair ${newId()}`;
  const locks: LockManager | undefined = navigator.locks; // none outside of secure contexts
  locks?.request(lock, () => {
    life = lock;
    for (const send of pages.keys()) send({ op: "life", lock });
    return new Promise(() => {});
  });
}

holdLife();
(globalThis as Raw).onconnect = (event: MessageEvent) => serve(event.ports[0] as MessagePort);
