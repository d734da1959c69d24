/**
 * The core as it is built: one file, from which the other entries and the code for streams take what they share
 * with it. What is not in `core-entry.ts` has no types there and may change with any version.
 */
export { Backoff } from "./backoff.js";
export { Core } from "./core.js";
export * from "./core-entry.js";
export { Flow } from "./flow.js";
export { isWorthAnother, readBody } from "./http.js";
export { newId } from "./ids.js";
export { sleep } from "./sleep.js";
export { Tokens } from "./token.js";
export { position } from "./tracker.js";
