/** Making elements, and making texts fit. */

/** An element with classes; what is in it comes as elements, so that no text is ever parsed as markup. */
export function element(classes: string, ...children: Node[]): HTMLElement {
  const made = document.createElement("div");
  made.className = classes;
  made.append(...children);
  return made;
}

/** An element for a line of somebody else's text, in the direction of its own script. */
export function line(classes: string): HTMLElement {
  const made = element(`text ${classes}`);
  made.dir = "auto";
  return made;
}

/** Replaces a text; does nothing where it is the same, so that nothing is laid out anew. */
export function write(into: HTMLElement, text: string): boolean {
  if (into.textContent === text) return false;
  into.textContent = text;
  return true;
}

const WIDTHS = [100, 90, 80, 70, 62]; // per cent: the axis of the font
const SIZES = [0.92, 0.84, 0.76, 0.68];

/** Makes a line narrower, then smaller, until it fits; what is longer still ends with an ellipsis. */
export function fit(into: HTMLElement): void {
  into.style.fontSize = "";
  const size = Number.parseFloat(getComputedStyle(into).fontSize);
  const fits = () => into.scrollWidth <= into.clientWidth + 1;
  for (const width of WIDTHS) {
    into.style.fontStretch = `${width}%`;
    if (fits()) return;
  }
  for (const scale of SIZES) {
    into.style.fontSize = `${size * scale}px`;
    if (fits()) return;
  }
}
