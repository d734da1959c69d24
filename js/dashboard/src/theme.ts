/** Light or dark: as the system says, or as the user has switched it. */
import { computed, effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "onair-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const isSystemDark = signal(system.matches);
system.addEventListener("change", () => (isSystemDark.value = system.matches));

export const theme = signal<Theme>(read());
export const isDark = computed(() =>
  theme.value === "system" ? isSystemDark.value : theme.value === "dark",
);

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset.theme;
  else root.dataset.theme = theme.value;
});

/** The next of the three. */
export function switchTheme(): void {
  const next = { system: "light", light: "dark", dark: "system" } as const;
  theme.value = next[theme.value];
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // It lasts as long as the page.
  }
}

function read(): Theme {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "system";
  } catch {
    return "system";
  }
}
