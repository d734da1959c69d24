/** What differs between two texts, line by line, with some lines around it. */
import { diffLines } from "diff";
import { useMemo } from "preact/hooks";

const AROUND = 3;
const MOST_LINES = 2_000;

interface Line {
  kind: "added" | "removed" | "same" | "skipped";
  text: string;
}

export function Difference({ before, after }: { before: string; after: string }) {
  const lines = useMemo(() => compare(before, after), [before, after]);
  if (!lines.some((line) => line.kind === "added" || line.kind === "removed")) {
    return <p class="empty">They are the same.</p>;
  }
  const shown = lines.slice(0, MOST_LINES);
  return (
    <div class="difference" role="group" aria-label="Difference" tabIndex={0}>
      {shown.map((line, index) => (
        <div key={index} class={line.kind}>
          <span class="sign">
            <span aria-hidden="true">{{ added: "+", removed: "−", same: " ", skipped: "⋯" }[line.kind]}</span>
            <span class="hidden">
              {{ added: "added", removed: "removed", same: "", skipped: "left out" }[line.kind]}
            </span>
          </span>
          <code>{line.text}</code>
        </div>
      ))}
      {lines.length > MOST_LINES && <p class="hint">More than {MOST_LINES} lines differ.</p>}
    </div>
  );
}

function compare(before: string, after: string): Line[] {
  const parts = diffLines(`${before}\n`, `${after}\n`, { timeout: 500 });
  // Too different to be compared in time: all of the one, then all of the other.
  if (!parts) return [...split("removed", before), ...split("added", after)];
  return parts.flatMap((part, index) => {
    const kind = part.added ? "added" : part.removed ? "removed" : "same";
    const lines = split(kind, part.value.replace(/\n$/, ""));
    return kind === "same" ? shorten(lines, index === 0, index === parts.length - 1) : lines;
  });
}

function split(kind: Line["kind"], text: string): Line[] {
  return text.split("\n").map((line) => ({ kind, text: line }));
}

/** Keeps of what is the same the lines next to what is not. */
function shorten(lines: Line[], isFirst: boolean, isLast: boolean): Line[] {
  const head = isFirst ? 0 : AROUND;
  const tail = isLast ? 0 : AROUND;
  const left = lines.length - head - tail;
  if (left <= 1) return lines;
  const skipped: Line = { kind: "skipped", text: `${left} lines` };
  return [...lines.slice(0, head), skipped, ...(tail ? lines.slice(-tail) : [])];
}
