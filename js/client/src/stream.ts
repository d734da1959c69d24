/** Server-Sent Events over `fetch`, which unlike `EventSource` shows statuses and comments, and takes headers. */
import type { Raw } from "./tracker.js";

/** Splits a stream of text into events, as the HTML standard says (section 9.2.6); comments are passed over. */
export class SseParser {
  #rest = "";
  #event = "";
  #data: string[] = [];

  constructor(readonly onEvent: (event: string, data: Raw) => void) {}

  /** Takes the next piece of text, cut anywhere. */
  take(text: string): void {
    // A CR at the end may be half of a CRLF: it waits for what follows.
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() as string;
    for (const line of lines) this.#line(line);
  }

  #line(line: string): void {
    if (!line) {
      if (this.#data.length) this.onEvent(this.#event || "message", JSON.parse(this.#data.join("\n")));
      this.#event = "";
      this.#data = [];
      return;
    }
    const [, name, value = ""] = /^([^:]*):? ?(.*)$/s.exec(line) as RegExpExecArray;
    if (name === "event") this.#event = value as string;
    if (name === "data") this.#data.push(value as string);
  }
}

/** Reads an answered stream until it ends; every piece, a comment too, is told to `onHeard`. */
export async function readStream(
  reply: Response,
  onHeard: () => void,
  onEvent: (event: string, data: Raw) => void,
): Promise<void> {
  const parser = new SseParser(onEvent);
  const reader = (reply.body as ReadableStream<Uint8Array>).getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onHeard();
    parser.take(decoder.decode(value, { stream: true }));
  }
}
