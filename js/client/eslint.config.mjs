import js from "@eslint/js";
import typescript from "typescript-eslint";

export default typescript.config(
  { ignores: ["**/dist", "**/.build", "**/node_modules", "client/src/schema.ts"] },
  js.configs.recommended,
  ...typescript.configs.recommended,
  {
    // tsc knows which names there are, in browsers, workers and Node.
    rules: { "no-undef": "off", "@typescript-eslint/no-explicit-any": "off" },
  },
);
