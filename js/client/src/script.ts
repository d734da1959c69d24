/** Everything as one file for `<script>`; its names are those of `OnAir`. */
export * from "./index.js";
export { openShared, type SharedOptions } from "./shared.js";
