/** The shell: who is not logged in logs in; else navigation, the state of the connection, and a screen. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { connectionState } from "./connection.js";
import { areSingleKeysOn, Help, isHelpOpen, PLACES, useGlobalKeys } from "./keys.js";
import { route, to } from "./routes.js";
import { AccountScreen } from "./screens/account.js";
import { AuditScreen } from "./screens/audit.js";
import { HealthScreen } from "./screens/health.js";
import { ImagesScreen } from "./screens/images.js";
import { LogIn, LogInAgain } from "./screens/login.js";
import { ProgramScreen } from "./screens/program.js";
import { ProgramsScreen } from "./screens/programs.js";
import { ProjectScreen } from "./screens/project.js";
import { ProjectsScreen } from "./screens/projects.js";
import { StatisticsScreen } from "./screens/statistics.js";
import { UsersScreen } from "./screens/users.js";
import { isAdmin, isReader, login, logOut } from "./session.js";
import { switchTheme, theme } from "./theme.js";
import { Asked, Empty, Head, Notices } from "./ui.js";

const isMenuOpen = signal(false);
// Who has chosen a place has no more use for the menu.
route.subscribe(() => {
  isMenuOpen.value = false;
});

export function App() {
  return login.value ? <Shell /> : <LogIn />;
}

function Shell() {
  const places = visiblePlaces();
  const main = useRef<HTMLElement>(null);
  const parts = route.value;
  useGlobalKeys(places.map(([, , place]) => place));
  // Who goes to another screen begins at its head, as on a page that was loaded.
  const screen = parts.slice(0, 2).join("/");
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) main.current?.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
    isFirst.current = false;
    scrollTo(0, 0);
  }, [screen]);
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.querySelector<HTMLElement>("h1")?.focus();
        }}
      >
        Skip to the content
      </a>
      <div class="shell">
        <Side places={places} />
        <main id="main" ref={main}>
          <LogInAgain />
          <Screen parts={parts} />
        </main>
      </div>
      <Help />
      <Asked />
      <Notices />
    </>
  );
}

function visiblePlaces() {
  const hidden = new Set<string>();
  if (!isAdmin.value) hidden.add("users").add("audit");
  if (!isReader.value) hidden.add("statistics").add("projects");
  return PLACES.filter(([, , place]) => !hidden.has(place));
}

function Side({ places }: { places: typeof PLACES }) {
  const user = login.value;
  const here = route.value[0] ?? "programs";
  return (
    <header class={`side ${isMenuOpen.value ? "open" : ""}`}>
      <div class="brand">
        <a href={to("programs")} class="mark">
          <span class="dot" aria-hidden="true" />
          {user?.account}
        </a>
        <Connected />
        <button
          type="button"
          class="menu"
          aria-expanded={isMenuOpen.value}
          aria-controls="menu"
          onClick={() => (isMenuOpen.value = !isMenuOpen.value)}
        >
          Menu
        </button>
      </div>
      <div class="side-rest" id="menu">
        <nav aria-label="Main">
          {places.map(([keys, text, place]) => (
            <a key={place} href={to(place)} {...(here === place && { "aria-current": "page" })}>
              <span>{text}</span>
              {areSingleKeysOn.value && <kbd aria-hidden="true">{keys}</kbd>}
            </a>
          ))}
        </nav>
        <div class="who">
          <p>
            <strong>{user?.username}</strong>
            <span>{user?.role}</span>
          </p>
          <div class="actions">
            <button
              type="button"
              class="small"
              onClick={switchTheme}
              aria-label={`${THEMES[theme.value]}: colours`}
            >
              {THEMES[theme.value]}
            </button>
            <button
              type="button"
              class="small"
              onClick={() => (isHelpOpen.value = true)}
              aria-label="? – keyboard help"
            >
              ?
            </button>
            <button type="button" class="small" onClick={logOut}>
              Log out
            </button>
          </div>
        </div>
      </div>
    </header>
  );
}

const THEMES = { system: "Auto", light: "Light", dark: "Dark" };

const STATES = {
  idle: ["", "Ready"],
  connecting: ["wait", "Connecting…"],
  open: ["good", "Connected"],
  fallback: ["wait", "No WebSocket"],
  closed: ["wait", "Closed"],
} as const;

function Connected() {
  const [kind, text] = STATES[connectionState.value];
  return (
    <span class={`state ${kind}`} role="status" aria-live="polite">
      {text}
    </span>
  );
}

function Screen({ parts }: { parts: readonly string[] }) {
  const [place = "programs", id, ...rest] = parts;
  if (place === "programs")
    return id ? <ProgramScreen key={id} id={id} tab={rest[0] ?? "live"} /> : <ProgramsScreen />;
  if (place === "projects") return id ? <ProjectScreen key={id} id={id} rest={rest} /> : <ProjectsScreen />;
  if (place === "statistics") return <StatisticsScreen />;
  if (place === "images") return <ImagesScreen />;
  if (place === "users") return <UsersScreen />;
  if (place === "audit") return <AuditScreen />;
  if (place === "account") return <AccountScreen />;
  if (place === "health") return <HealthScreen />;
  return (
    <>
      <Head title="Nothing here" />
      <Empty>
        There is no such screen. <a href={to("programs")}>Go to the programs</a>
      </Empty>
    </>
  );
}
