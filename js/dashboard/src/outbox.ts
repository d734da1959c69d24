/**
 * The events of one program that the user has told to publish: each is sent after the answer to the one before.
 *
 * What is pressed while another event is under way waits, as it was then. The event that was pressed last, pressed
 * again before its answer, is the same press: keys repeat. An event that is refused, or gets no answer, stops none of
 * those behind it, and stays here until the user publishes it again or forgets it.
 */
import { signal } from "@preact/signals";
import type { ProgramEvent } from "../../client/src/index.js";
import type { EventLog } from "./event_log.js";
import { say } from "./notices.js";

export const EVENTS = "/programs/{programId}/events";
const MOST = 100; // presses that have no answer; nobody overlooks more

export interface Outgoing {
  event: string;
  metadata: Record<string, unknown>;
}

export interface Failed {
  sent: Outgoing;
  error: unknown;
  /** Others were pressed before it failed: the form no longer has it. */
  isOvertaken: boolean;
}

export class Outbox {
  /** In the order of the presses; the first is under way. */
  readonly unanswered = signal<readonly Outgoing[]>([]);
  readonly failed = signal<readonly Failed[]>([]);

  constructor(readonly log: EventLog) {}

  /** Whether the event was pressed last and has no answer: pressed again, it is published once. */
  isLast(event: Outgoing): boolean {
    const last = this.unanswered.value.at(-1);
    return last !== undefined && isSame(last, event);
  }

  /** Whether the event is under way or waits. */
  has(event: Outgoing): boolean {
    return this.unanswered.value.some((each) => isSame(each, event));
  }

  /** Publishes what the form has; what failed in it before is over. */
  publish(event: Outgoing): void {
    if (this.isLast(event)) return;
    this.failed.value = this.failed
      .peek()
      .filter(({ sent, isOvertaken }) => isOvertaken && !isSame(sent, event));
    this.#put(event);
  }

  /** Publishes again what has failed. */
  retry(failed: Failed): void {
    this.drop(failed);
    if (!this.isLast(failed.sent)) this.#put(failed.sent);
  }

  /** Forgets what has failed. */
  drop(failed: Failed): void {
    this.failed.value = this.failed.peek().filter((each) => each !== failed);
  }

  /** The event was published after all. */
  settle(event: Outgoing): void {
    this.failed.value = this.failed.peek().filter(({ sent }) => !isSame(sent, event));
  }

  #put(event: Outgoing): void {
    const before = this.unanswered.peek();
    if (before.length >= MOST) {
      const error = new Error(
        `${MOST} events wait to be published. Publish this one when the broker answers.`,
      );
      this.#fail(event, error, false);
      return;
    }
    this.unanswered.value = [...before, event];
    if (!before.length) void this.#run();
  }

  /** Sends until nothing waits. */
  async #run(): Promise<void> {
    const { client, programId } = this.log;
    for (let next = this.unanswered.peek()[0]; next; next = this.unanswered.peek()[0]) {
      try {
        const made = await client.request("POST", EVENTS, { path: { programId }, body: next });
        this.log.take(made as ProgramEvent);
        say(`Published ${next.event}`);
      } catch (error) {
        this.#fail(next, error, this.unanswered.peek().length > 1);
      }
      this.unanswered.value = this.unanswered.peek().slice(1);
    }
  }

  #fail(sent: Outgoing, error: unknown, isOvertaken: boolean): void {
    this.failed.value = [...this.failed.peek(), { sent, error, isOvertaken }];
  }
}

export function isSame(one: Outgoing, other: Outgoing): boolean {
  return one.event === other.event && JSON.stringify(one.metadata) === JSON.stringify(other.metadata);
}
