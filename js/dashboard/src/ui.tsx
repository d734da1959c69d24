/** The parts that screens are made of. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { explain } from "./connection.js";
import { count } from "./format.js";
import { type Action, type Loaded } from "./hooks.js";
import { notices, question, say } from "./notices.js";
import { to } from "./routes.js";

/** A screen's head: what it is, and what can be done with it. */
export function Head({
  title,
  above,
  badges,
  children,
}: {
  title: string;
  above?: [string, ...string[]] | undefined;
  badges?: ComponentChildren;
  children?: ComponentChildren;
}) {
  useEffect(() => {
    document.title = `${title} – Dashboard`;
  }, [title]);
  return (
    <header class="head">
      <div class="head-title">
        {above && (
          <a class="crumb" href={to(...above.slice(1))}>
            {above[0]} <span aria-hidden="true">/</span>
          </a>
        )}
        <h1 tabIndex={-1}>{title}</h1>
        {badges}
      </div>
      {children && <div class="actions">{children}</div>}
    </header>
  );
}

export function Panel({
  title,
  actions,
  children,
  class: name = "",
}: {
  title?: string;
  actions?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  const id = useId();
  return (
    <section class={`panel ${name}`} {...(title && { "aria-labelledby": id })}>
      {(title || actions) && (
        <div class="panel-head">
          {title && <h2 id={id}>{title}</h2>}
          {actions && <div class="actions">{actions}</div>}
        </div>
      )}
      {children}
    </section>
  );
}

/** A label, an input, and what it is for. */
export function Field({
  label,
  hint,
  children,
  class: name = "",
}: {
  label: string;
  hint?: ComponentChildren;
  children: (id: string, hintId: string | undefined) => ComponentChildren;
  class?: string;
}) {
  const id = useId();
  const hintId = hint ? `${id}-hint` : undefined;
  return (
    <div class={`field ${name}`}>
      <label for={id}>{label}</label>
      {children(id, hintId)}
      {hint && (
        <p class="hint" id={hintId}>
          {hint}
        </p>
      )}
    </div>
  );
}

interface TextProps {
  label: string;
  value: string;
  hint?: ComponentChildren;
  class?: string;
  onText: (value: string) => void;
  onKeyDown?: (event: KeyboardEvent) => void;
  type?: "date" | "datetime-local" | "email" | "number" | "password" | "search" | "url";
  name?: string;
  autocomplete?: string;
  autoFocus?: boolean;
  disabled?: boolean;
  list?: string;
  max?: string;
  maxLength?: number;
  min?: string;
  minLength?: number;
  pattern?: string;
  placeholder?: string;
  readOnly?: boolean;
  required?: boolean;
  step?: string;
  title?: string;
}

/** One line of text. */
export function Text({ label, value, hint, onText, class: name = "", ...rest }: TextProps) {
  return (
    <Field label={label} hint={hint} class={name}>
      {(id, hintId) => (
        <input
          id={id}
          aria-describedby={hintId}
          autocomplete="off"
          spellcheck={false}
          {...(rest as object)}
          value={value}
          onInput={(event) => onText(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

/** A choice of some. */
export function Choice({
  label,
  value,
  options,
  hint,
  onText,
  class: name = "",
  disabled = false,
}: {
  label: string;
  value: string;
  options: readonly (readonly [value: string, text: string])[];
  hint?: string | undefined;
  onText: (value: string) => void;
  class?: string;
  disabled?: boolean;
}) {
  return (
    <Field label={label} hint={hint} class={name}>
      {(id, hintId) => (
        <select
          id={id}
          aria-describedby={hintId}
          disabled={disabled}
          value={value}
          onChange={(event) => onText(event.currentTarget.value)}
        >
          {options.map(([each, text]) => (
            <option key={each} value={each} selected={each === value}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

export function Check({
  label,
  checked,
  hint,
  onCheck,
}: {
  label: string;
  checked: boolean;
  hint?: string;
  onCheck: (checked: boolean) => void;
}) {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} onChange={(event) => onCheck(event.currentTarget.checked)} />{" "}
      {label}
      {hint && <span class="hint">{hint}</span>}
    </label>
  );
}

/** What went wrong, as long as it is so. */
export function Failure({ error, children }: { error: unknown; children?: ComponentChildren }) {
  if (!error) return null;
  return (
    <div class="failure" role="alert">
      <span>{explain(error)}</span>
      {children}
    </div>
  );
}

/** How a change fares: under way, for long, failed. */
export function Progress({ of: { isRunning, error } }: { of: Pick<Action<any>, "isRunning" | "error"> }) {
  const [isLong, setLong] = useState(false);
  useEffect(() => {
    setLong(false);
    if (!isRunning) return undefined;
    const timer = setTimeout(() => setLong(true), 2_000);
    return () => clearTimeout(timer);
  }, [isRunning]);
  if (isRunning && isLong) {
    return (
      <p class="hint" role="status">
        Not confirmed yet; it is tried again and done once.
      </p>
    );
  }
  return <Failure error={error} />;
}

/** Something is being read; where that takes long it says that it is still tried. */
export function Loading() {
  const [isLong, setLong] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLong(true), 3_000);
    return () => clearTimeout(timer);
  }, []);
  return (
    <p class="loading" {...(isLong && { role: "status" })}>
      Loading…{isLong && " The broker has not answered yet; it is asked again."}
    </p>
  );
}

/** What was read, or that it is being read, or why it cannot be. */
export function Shown<T>({
  of: { value, error, reload },
  children,
}: {
  of: Loaded<T>;
  children: (value: T) => ComponentChildren;
}) {
  return (
    <>
      {error != null && (
        <Failure error={error}>
          <button type="button" class="small" onClick={reload}>
            Try again
          </button>
        </Failure>
      )}
      {value === undefined && error == null && <Loading />}
      {value !== undefined && children(value)}
    </>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Badge({ kind = "", children }: { kind?: string; children: ComponentChildren }) {
  return <span class={`badge ${kind}`}>{children}</span>;
}

/** On air, or not. */
export function Tally({ isLive }: { isLive: boolean }) {
  return isLive ? <Badge kind="live">Live</Badge> : null;
}

/** Links between the parts of one thing. */
export function Tabs({
  label,
  base,
  current,
  tabs,
}: {
  label: string;
  base: readonly string[];
  current: string;
  tabs: readonly (readonly [id: string, text: string])[];
}) {
  const list = useRef<HTMLElement>(null);
  // On a phone they scroll sideways: the one that is open is seen.
  useEffect(() => {
    const open = list.current?.querySelector("[aria-current]");
    open?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [current, tabs.length]);
  return (
    <nav ref={list} class="tabs" aria-label={label}>
      {tabs.map(([id, text]) => (
        <a key={id} href={to(...base, id)} {...(id === current && { "aria-current": "page" })}>
          {text}
        </a>
      ))}
    </nav>
  );
}

/** A figure with its name. */
export function Figure({ label, value, unit }: { label: string; value: string; unit?: string }) {
  return (
    <div class="figure">
      <dt>{label}</dt>
      <dd>
        {value}
        {unit && <small> {unit}</small>}
      </dd>
    </div>
  );
}

/** Text that is good to have on the clipboard. */
export function Copied({ text, label = "Copy" }: { text: string; label?: string }) {
  return (
    <button
      type="button"
      class="small"
      onClick={async () => {
        await navigator.clipboard.writeText(text);
        say("Copied");
      }}
    >
      {label}
    </button>
  );
}

/** A table that scrolls sideways where it is too wide. */
export function Table({
  label,
  head,
  wide = [],
  class: name = "",
  children,
}: {
  label: string;
  head: readonly string[];
  /** Those of them that a phone has no room for; the cells have the class `wide`. */
  wide?: readonly string[];
  class?: "" | "stacked";
  children: ComponentChildren;
}) {
  return (
    <div class={`table ${name}`} role="group" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head.map((text) => (
              <th key={text} scope="col" class={wide.includes(text) ? "wide" : ""}>
                {text || <span class="hidden">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** How many of the rows found a table shows: more would make it slow, and nobody reads them. */
export const MOST_ROWS = 500;

/** Says that a table shows only the first of what was found. */
export function Others({ found }: { found: number }) {
  if (found <= MOST_ROWS) return null;
  return (
    <p class="hint">
      {count(MOST_ROWS)} of {count(found)}; search for the others.
    </p>
  );
}

/** A window over the page that keeps the focus. */
export function Dialog({
  title,
  onClose,
  children,
}: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    element.current?.showModal();
    return () => before?.focus?.();
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => event.target === element.current && onClose()}
    >
      <div class="dialog">
        <h2 id={id}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

/** The foot of a form in a dialog: what it does, and the way out. */
export function DialogFoot({
  onCancel,
  submit,
  isRunning = false,
  isDisabled = false,
  isDangerous = false,
  children,
}: {
  onCancel: () => void;
  submit: string;
  isRunning?: boolean;
  isDisabled?: boolean;
  isDangerous?: boolean | undefined;
  children?: ComponentChildren;
}) {
  return (
    <div class="actions end">
      {children}
      <button type="button" onClick={onCancel}>
        Cancel
      </button>
      <button type="submit" class={isDangerous ? "danger" : "primary"} disabled={isRunning || isDisabled}>
        {submit}
      </button>
    </div>
  );
}

/** The question that waits for an answer, if any. */
export function Asked() {
  const { value } = question;
  const [typed, setTyped] = useState("");
  useEffect(() => setTyped(""), [value]);
  if (!value) return null;
  const { title, text, action, isDangerous, answer } = value;
  return (
    <Dialog title={title} onClose={() => answer(false)}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          answer(true);
        }}
      >
        <p>{text}</p>
        {value.typed !== undefined && (
          <Text label={`Type ${value.typed} to go on`} value={typed} onText={setTyped} />
        )}
        <DialogFoot
          onCancel={() => answer(false)}
          submit={action}
          isDangerous={isDangerous}
          isDisabled={value.typed !== undefined && typed !== value.typed}
        />
      </form>
    </Dialog>
  );
}

/** What was done just now, for eyes and for screen readers. */
export function Notices() {
  return (
    <div class="notices" role="status" aria-atomic="false">
      {notices.value.map((notice) => (
        <span key={notice}>{notice.text}</span>
      ))}
    </div>
  );
}
