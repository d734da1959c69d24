/** Following programs and channels, and every operation: for overlays that count every byte. */
export { type ClientOptions, Core as Client } from "./core.js";
export * from "./errors.js";
export type { SubscribeOptions, Subscription, SubscriptionEvents } from "./subscription.js";
export type { Cursor } from "./cursor.js";
export type { Change, ProgramEvent } from "./tracker.js";
