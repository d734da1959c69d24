/** What the programs that load overlays are known by, and how they hand over data. */
import { type Fields, fields } from "./values.js";

export type Host = "browser" | "obs" | "casparcg" | "spx" | "vmix";

/** What a host may have put into the page before it runs. */
export interface HostWindow {
  /** OBS: https://github.com/obsproject/obs-browser. */
  obsstudio?: unknown;
  /** CasparCG: takes the template from its layer. No browser has a function of this name. */
  remove?: unknown;
  caspar?: unknown;
  /** SPX: what the template's own page says of itself. */
  SPXGCTemplateDefinition?: unknown;
  navigator: { userAgent: string };
}

/** Which program has loaded the page. vMix adds nothing but its name to the browser's, if that. */
export function findHost(page: HostWindow): Host {
  if (page.SPXGCTemplateDefinition) return "spx";
  if (page.obsstudio) return "obs";
  if (page.caspar || typeof page.remove === "function") return "casparcg";
  if (/vmix/i.test(page.navigator.userAgent)) return "vmix";
  return "browser";
}

/** The fields by the numbers that SPX and CasparCG's clients have for them. */
const NUMBERED = ["broker", "program", "project", "graphics", "delay", "name", "title"] as const;
/** A line-up for a whole team is below a kilobyte. */
const MOST_CHARACTERS = 256 * 1024;

/**
 * What `update` was called with: JSON, an object, or CasparCG's XML,
 * `<templateData><componentData id="f0"><data id="text" value="…"/></componentData></templateData>`.
 * Fields have names or numbers; those that a host leaves empty are absent. Nothing for what is none of it.
 */
export function parseData(given: unknown): Fields {
  const found = typeof given === "string" ? parseText(given.trim()) : fields(given);
  const named: Fields = {};
  for (const [key, value] of Object.entries(found)) {
    if (value === "" || value === null || value === undefined) continue;
    const number = /^f(\d)$/.exec(key)?.[1];
    named[(number && NUMBERED[Number(number)]) ?? key] = value;
  }
  return named;
}

function parseText(text: string): Fields {
  if (text.length > MOST_CHARACTERS) return {};
  if (text.startsWith("<")) return parseXml(text);
  try {
    return fields(JSON.parse(text));
  } catch {
    return {};
  }
}

function parseXml(text: string): Fields {
  const found: Fields = {};
  const parsed = new DOMParser().parseFromString(text, "text/xml");
  for (const component of parsed.querySelectorAll("componentData")) {
    const [id, value] = [
      component.getAttribute("id"),
      component.querySelector("data")?.getAttribute("value"),
    ];
    if (id && value !== null && value !== undefined) found[id] = value;
  }
  return found;
}
