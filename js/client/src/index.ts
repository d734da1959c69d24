/** Events of live television graphics in a browser: see docs/javascript.md. */
export { type AnswerOptions, Client, type ClientOptions, type Counted, type LiveResults } from "./client.js";
// By name: the built core, which has these, has more than is for everybody.
export {
  ApiError,
  ClientError,
  ConnectionFailed,
  ConnectionLost,
  type FieldFault,
  HistoryLost,
  ProgramDeleted,
  ProtocolError,
  SubscriptionEnded,
  Unsubscribed,
} from "./errors.js";
export type { Timing } from "./config.js";
export type { State } from "./hub.js";
export type { components, OperationName, operations, Params, paths, Result } from "./operations.js";
export type {
  ChannelFlow,
  FollowOptions,
  Notification,
  SubscribeOptions,
  Subscription,
  SubscriptionEvents,
} from "./subscription.js";
export type { Seek, Timeline, TimelineOptions } from "./timeline.js";
export type { TokenSource } from "./token.js";
export type { Cursor } from "./cursor.js";
export type { Change, ProgramEvent } from "./tracker.js";
