import js from "@eslint/js";
import typescript from "typescript-eslint";

export default typescript.config(
  { ignores: [".build", "node_modules"] },
  js.configs.recommended,
  ...typescript.configs.recommended,
  {
    // tsc knows which names there are, in browsers and Node.
    rules: { "no-undef": "off", "@typescript-eslint/no-explicit-any": "off" },
  },
);
