/**
 * What the client throws.
 *
 *     ClientError
 *     ├── ApiError           the broker refused or failed a call: `status`, `code`, `fields`, `requestId`
 *     ├── ConnectionFailed   no answer of the broker came in time
 *     │   └── ConnectionLost     a connection ended before the answer to a call
 *     ├── ProtocolError      the peer sent what no broker sends
 *     └── SubscriptionEnded  a subscription cannot go on
 *         ├── HistoryLost        what was missed can only be read by REST: `client.missed(error)`
 *         ├── ProgramDeleted
 *         └── Unsubscribed       the broker ended it, `reason` says why
 */
import type { Cursor } from "./cursor.js";

/** Gives a class its name in a minified build too: Node prints that of the class, and not only that of the error. */
function keepName(kind: unknown, name: string): void {
  Object.defineProperty(kind, "name", { value: name });
}

/** The root of the errors. `name` is that of the class. */
export class ClientError extends Error {
  static {
    keepName(this, "ClientError");
  }
  override name = this.constructor.name;
}

/** One field at fault: a path such as `events[3].event`, and what is allowed there. */
export interface FieldFault {
  field: string;
  message: string;
}

/** The broker refused or failed a call. */
export class ApiError extends ClientError {
  static {
    keepName(this, "ApiError");
  }

  /**
   * @param status The HTTP status; over WebSocket the one that HTTP would have answered.
   * @param code The stable name of the error, such as `invalid_request`.
   * @param retryAfterMs How long the broker asks to wait; 0 where it does not say.
   */
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly fields: FieldFault[] = [],
    readonly requestId = "",
    readonly retryAfterMs = 0,
  ) {
    super(message || code);
  }
}

/** No answer of the broker came in time: none at all, or one of something in front of it. */
export class ConnectionFailed extends ClientError {
  static {
    keepName(this, "ConnectionFailed");
  }
  /** Set where another try is in vain: the broker's name does not exist. */
  isFinal?: boolean;
}

/** A connection ended before the answer to a call; what the call asked for may have been done. */
export class ConnectionLost extends ConnectionFailed {
  static {
    keepName(this, "ConnectionLost");
  }
}

/** The peer sent something that no broker sends. */
export class ProtocolError extends ClientError {
  static {
    keepName(this, "ProtocolError");
  }
}

/** A subscription cannot go on. */
export class SubscriptionEnded extends ClientError {
  static {
    keepName(this, "SubscriptionEnded");
  }

  constructor(
    readonly programId: string,
    text: string,
  ) {
    super(`${programId}: ${text}`);
  }
}

/** What was missed is over the history limit, or the history was replaced meanwhile. */
export class HistoryLost extends SubscriptionEnded {
  static {
    keepName(this, "HistoryLost");
  }

  /**
   * @param cursor Where the program stood: subscribe with it as `since` after reading what was missed.
   * @param seen The last position that the subscription had reached.
   */
  constructor(
    programId: string,
    readonly cursor: Cursor,
    readonly seen: Cursor | undefined,
  ) {
    super(programId, "events were missed and cannot be recovered; read them by REST");
  }
}

/** The program was deleted. */
export class ProgramDeleted extends SubscriptionEnded {
  static {
    keepName(this, "ProgramDeleted");
  }

  constructor(programId: string) {
    super(programId, "the program was deleted");
  }
}

/** The broker ended the subscription: the program became private, or the token ended. */
export class Unsubscribed extends SubscriptionEnded {
  static {
    keepName(this, "Unsubscribed");
  }

  constructor(
    programId: string,
    readonly reason: string,
  ) {
    super(programId, `the broker ended the subscription: ${reason}`);
  }
}
