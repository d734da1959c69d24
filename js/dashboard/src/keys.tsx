/** The keyboard: the action of each key on each screen, and the overlay that lists them. */
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { go } from "./routes.js";
import { Check, Dialog } from "./ui.js";

export interface Key {
  /** As shown, such as `g p`, `Ctrl+Enter` or `1`. */
  keys: string;
  text: string;
  run: () => void;
  /** Known by its own element; listed only. */
  isListed?: boolean;
}

const KEPT = "onair-keys";
const SEQUENCE_MS = 1_000;

export const isHelpOpen = signal(false);
/** Single keys can be switched off for who speaks to the machine or hits keys by accident (WCAG 2.1.4). */
export const areSingleKeysOn = signal(read());

const groups = signal<readonly { title: string; keys: readonly Key[] }[]>([]);
let prefix = { key: "", atMs: 0 };

/** Has these keys work while the component is there. */
export function useKeys(title: string, keys: readonly Key[]): void {
  const current = useRef(keys);
  current.current = keys;
  const shown = keys.map((key) => key.keys).join();
  // Before it is painted: who sees a screen may press its keys.
  useLayoutEffect(() => {
    const group = {
      title,
      get keys() {
        return current.current;
      },
    };
    groups.value = [...groups.peek(), group];
    return () => {
      groups.value = groups.peek().filter((each) => each !== group);
    };
  }, [title, shown]);
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const element = event.target as HTMLElement;
  const isTyping =
    /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) && (element as HTMLInputElement).type !== "checkbox";
  const isControl = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && isTyping) return element.blur();
  if (event.altKey || (isTyping && !isControl)) return;
  if (!isControl && !areSingleKeysOn.peek() && event.key !== "?") return;
  const name = isControl ? `Ctrl+${event.key.length === 1 ? event.key.toUpperCase() : event.key}` : event.key;
  const isSequence = prefix.key && event.timeStamp - prefix.atMs < SEQUENCE_MS;
  const wanted = isSequence ? `${prefix.key} ${name}` : name;
  prefix = { key: "", atMs: 0 };
  const all = groups.peek().flatMap((group) => group.keys);
  const found = all.findLast((key) => key.keys === wanted && !key.isListed);
  if (found) {
    event.preventDefault();
    found.run();
  } else if (!isControl && all.some((key) => key.keys.startsWith(`${name} `))) {
    prefix = { key: name, atMs: event.timeStamp };
  }
});

export const PLACES: readonly [keys: string, text: string, place: string][] = [
  ["g p", "Programs", "programs"],
  ["g s", "Statistics", "statistics"],
  ["g j", "Projects", "projects"],
  ["g i", "Images", "images"],
  ["g u", "Users", "users"],
  ["g l", "Audit log", "audit"],
  ["g h", "Health", "health"],
  ["g a", "Account", "account"],
];

/** The keys that work everywhere. */
export function useGlobalKeys(places: readonly string[]): void {
  useKeys("Everywhere", [
    { keys: "?", text: "Show or hide this help", run: () => (isHelpOpen.value = true) },
    ...PLACES.filter(([, , place]) => places.includes(place)).map(([keys, text, place]) => ({
      keys,
      text: `Go to ${text}`,
      run: () => go(place),
    })),
    {
      keys: "/",
      text: "Search what is shown",
      run: () => document.querySelector<HTMLInputElement>("input[type=search]")?.focus(),
    },
    { keys: "Escape", text: "Leave a field", run: () => {}, isListed: true },
  ]);
}

export function Help() {
  if (!isHelpOpen.value) return null;
  const close = () => (isHelpOpen.value = false);
  return (
    <Dialog title="Keyboard" onClose={close}>
      <div class="help" onKeyDown={(event) => event.key === "?" && close()}>
        {groups.value.map((group) => (
          <section key={group.title}>
            <h3>{group.title}</h3>
            <dl>
              {group.keys.map((key) => (
                <div key={key.keys}>
                  <dt>
                    {key.keys.split(" ").map((part) => (
                      <kbd key={part}>{part}</kbd>
                    ))}
                  </dt>
                  <dd>{key.text}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
        <section>
          <h3>In lists and fields</h3>
          <dl>
            <div>
              <dt>
                <kbd>↑</kbd>
                <kbd>↓</kbd>
              </dt>
              <dd>Choose a row</dd>
            </div>
            <div>
              <dt>
                <kbd>Enter</kbd>
              </dt>
              <dd>Open it</dd>
            </div>
          </dl>
        </section>
        <Check
          label="Single keys do something"
          checked={areSingleKeysOn.value}
          onCheck={(isOn) => {
            areSingleKeysOn.value = isOn;
            try {
              localStorage.setItem(KEPT, isOn ? "on" : "off");
            } catch {
              // It lasts as long as the page.
            }
          }}
        />
        <div class="actions end">
          <button type="button" class="primary" onClick={close}>
            Close
          </button>
        </div>
      </div>
    </Dialog>
  );
}

function read(): boolean {
  try {
    return localStorage.getItem(KEPT) !== "off";
  } catch {
    return true;
  }
}
