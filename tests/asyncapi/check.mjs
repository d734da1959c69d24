// Reads an AsyncAPI document from standard input and prints what AsyncAPI's own parser has to say of it, as JSON.
import { Parser } from "@asyncapi/parser";
import { text } from "node:stream/consumers";

const { document, diagnostics } = await new Parser().parse(await text(process.stdin));
const told = diagnostics.map(({ code, severity, message, path }) => ({ code, severity, message, path: path.join("/") }));
const operations = document?.operations().all() ?? [];
process.stdout.write(
  JSON.stringify({
    diagnostics: told,
    operations: operations.map((operation) => ({
      id: operation.id(),
      action: operation.action(),
      messages: operation.messages().all().length,
      replies: operation.reply()?.messages().all().length ?? 0,
    })),
  }),
);
