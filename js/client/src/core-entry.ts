/** The client without timelines and live results, for overlays that count every byte. */
export { type AnswerOptions, type ClientOptions, Core as Client, type Counted } from "./core.js";
export * from "./errors.js";
export type { SubscribeOptions, Subscription, SubscriptionEvents } from "./subscription.js";
export type { Change, Cursor, ProgramEvent } from "./tracker.js";
