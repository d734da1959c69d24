/** Lines over time, drawn by uPlot; the numbers stand below as text. */
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { compact, dayOf, minuteOf } from "./format.js";
import { isDark } from "./theme.js";

export interface Line {
  label: string;
  /** The number of a colour, 1 to 4. */
  colour: number;
  values: readonly (number | null)[];
}

const HEIGHT_PX = 148;
/** Whole numbers: there is no half event. */
const STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();

export function Plot({
  title,
  times,
  lines,
  unit = "",
}: {
  title: string;
  /** Seconds since 1970, ascending. */
  times: readonly number[];
  lines: readonly Line[];
  unit?: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [pointed, setPointed] = useState<number | undefined>(undefined);
  const dark = isDark.value;
  const data = [times, ...lines.map((line) => line.values)] as uPlot.AlignedData;
  const shape = lines.map((line) => `${line.label} ${line.colour}`).join();

  useEffect(() => {
    const element = box.current as HTMLDivElement;
    const style = (name: string) => colourOf(element, name);
    const axis = {
      stroke: style("--muted"),
      grid: { stroke: style("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const made = new uPlot(
      {
        width: Math.max(200, element.clientWidth),
        height: HEIGHT_PX,
        cursor: { points: { size: 6 }, drag: { x: false, y: false } },
        legend: { show: false },
        hooks: { setCursor: [(drawn) => setPointed(drawn.cursor.idx ?? undefined)] },
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
        axes: [
          {
            ...axis,
            size: 28, // for one line of times; uPlot leaves room for two
            space: 64,
            values: (_, splits, __, ___, stepS) => splits.map((at) => timeLabel(at, stepS)),
          },
          {
            ...axis,
            size: 46,
            space: 32,
            incrs: STEPS,
            values: (_, splits) => splits.map((value) => compact(value)),
          },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            stroke: style(`--plot-${line.colour}`),
            fill: `${style(`--plot-${line.colour}`)}1c`,
            width: 1.5,
            points: { show: false },
          })),
        ],
      },
      data,
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() =>
      made.setSize({ width: Math.max(200, element.clientWidth), height: HEIGHT_PX }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [dark, shape]);

  useEffect(() => plot.current?.setData(data), [times, lines]);

  // What is pointed at, else the last.
  const at = pointed ?? times.length - 1;
  const time = times[at];
  return (
    <figure class="plot">
      <figcaption>{title}</figcaption>
      <div ref={box} aria-hidden="true" />
      <p class="legend">
        {lines.map((line) => {
          const value = line.values[at];
          return (
            <span key={line.label}>
              <i class={`colour-${line.colour}`} aria-hidden="true" /> {line.label}{" "}
              <b>{value == null ? "–" : compact(value)}</b> {unit}
            </span>
          );
        })}
        {pointed !== undefined && time !== undefined && <span>at {timeLabel(time, 60)}</span>}
      </p>
    </figure>
  );
}

function timeLabel(at: number, stepS: number): string {
  return stepS >= 86_400 ? dayOf(at * 1000) : minuteOf(at * 1000);
}

/** A colour of the style sheet as a canvas takes it: `#rrggbb`. */
function colourOf(element: HTMLElement, name: string): string {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const parts = getComputedStyle(probe).color.match(/\d+/g) ?? ["128", "128", "128"];
  probe.remove();
  return `#${parts
    .slice(0, 3)
    .map((part) => Number(part).toString(16).padStart(2, "0"))
    .join("")}`;
}
