/** Events of live television graphics in a browser: see docs/javascript.md. */
export { type AnswerOptions, Client, type ClientOptions, type Counted, type LiveResults } from "./client.js";
export * from "./errors.js";
export type { State, Timing } from "./hub.js";
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
export type { Change, Cursor, ProgramEvent } from "./tracker.js";
