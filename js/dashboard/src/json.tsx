/** JSON as text: what is typed, whether it is an object, and where it is not. */
import type { ComponentChildren } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { Field } from "./ui.js";

export interface Parsed {
  value?: Record<string, unknown>;
  problem?: string;
}

/** An object; empty text is an empty one. */
export function parseObject(text: string): Parsed {
  if (!text.trim()) return { value: {} };
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) {
      return { problem: "It must be an object: { … }" };
    }
    return { value };
  } catch (error) {
    return { problem: `No JSON yet: ${place(text, (error as Error).message)}` };
  }
}

/** The engine's words with the line, where it tells a position only. */
function place(text: string, message: string): string {
  const at = /position (\d+)/.exec(message)?.[1];
  if (at === undefined || message.includes("line ")) return message;
  return `${message} (line ${text.slice(0, Number(at)).split("\n").length})`;
}

export function JsonField({
  label,
  value,
  onText,
  rows = 8,
  hint,
  readOnly = false,
  onSubmit,
}: {
  label: string;
  value: string;
  onText?: (value: string) => void;
  rows?: number;
  hint?: ComponentChildren;
  readOnly?: boolean;
  /** Ctrl+Enter. */
  onSubmit?: () => void;
}) {
  const parsed = useMemo(() => parseObject(value), [value]);
  const area = useRef<HTMLTextAreaElement>(null);
  const tidy = () => {
    if (parsed.value) onText?.(JSON.stringify(parsed.value, null, 2));
  };
  return (
    <Field label={label} class={`json ${rows > 12 ? "tall" : ""}`} hint={hint}>
      {(id, hintId) => (
        <>
          <textarea
            id={id}
            ref={area}
            rows={rows}
            spellcheck={false}
            autocapitalize="off"
            readOnly={readOnly}
            aria-describedby={`${hintId ?? ""} ${id}-problem`.trim()}
            aria-invalid={parsed.problem ? "true" : "false"}
            value={value}
            onInput={(event) => onText?.(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && onSubmit) {
                event.preventDefault();
                onSubmit();
              }
            }}
          />
          <div class="json-foot">
            <p id={`${id}-problem`} class="problem" aria-live="polite">
              {parsed.problem}
            </p>
            {!readOnly && (
              <button type="button" class="small quiet" disabled={!parsed.value} onClick={tidy}>
                Tidy
              </button>
            )}
          </div>
        </>
      )}
    </Field>
  );
}
