/** Statistics over time, of an account, a project or a program. */
import { useMemo } from "preact/hooks";
import { connection } from "../connection.js";
import { useLoaded } from "../hooks.js";
import { Plot } from "../plot.js";
import { Panel, Shown } from "../ui.js";

export type Span = "hour" | "day" | "week" | "quarter";

const SPANS = {
  hour: { text: "1 hour", ms: 3_600_000, interval: "minute", everyMs: 5_000 },
  day: { text: "1 day", ms: 86_400_000, interval: "minute", everyMs: 30_000 },
  week: { text: "1 week", ms: 604_800_000, interval: "hour", everyMs: 60_000 },
  quarter: { text: "90 days", ms: 7_776_000_000, interval: "day", everyMs: 60_000 },
} as const;

export function SpanChoice({ value, onChange }: { value: Span; onChange: (span: Span) => void }) {
  return (
    <div class="segments" role="group" aria-label="Time that is shown">
      {(Object.keys(SPANS) as Span[]).map((span) => (
        <button key={span} type="button" aria-pressed={span === value} onClick={() => onChange(span)}>
          {SPANS[span].text}
        </button>
      ))}
    </div>
  );
}

export function Series({ span, programId }: { span: Span; programId?: string }) {
  const client = connection.value;
  const { ms, interval, everyMs } = SPANS[span];
  const loaded = useLoaded(
    async () => {
      const now = client.now();
      const query = { from: new Date(now - ms).toISOString(), to: new Date(now).toISOString(), interval };
      const request = { query: programId ? { ...query, programId } : query };
      return (await client.request("GET", "/statistics/filtered", request)).series;
    },
    [client, span, programId],
    everyMs,
  );
  return (
    <Shown of={loaded}>
      {(series) => <Plots series={series} interval={interval} isAccount={!programId} />}
    </Shown>
  );
}

interface Point {
  time: string;
  connections: number;
  subscribers: number;
  events: number;
  deliveries: number;
  responses: number;
  impressions: number;
}

function Plots({ series, interval, isAccount }: { series: Point[]; interval: string; isAccount: boolean }) {
  const plots = useMemo(() => {
    const of = (name: Exclude<keyof Point, "time">) => series.map((point) => point[name]);
    const viewers = [{ label: "Subscribers", colour: 1, values: of("subscribers") }];
    if (isAccount) viewers.push({ label: "Connections", colour: 2, values: of("connections") });
    return [
      ["Viewers", viewers],
      ["Events", [{ label: "Events", colour: 4, values: of("events") }]],
      ["Deliveries", [{ label: "Deliveries", colour: 3, values: of("deliveries") }]],
      [
        "Audience",
        [
          { label: "Answers", colour: 1, values: of("responses") },
          { label: "Impressions", colour: 2, values: of("impressions") },
        ],
      ],
    ] as const;
  }, [series, isAccount]);
  const times = useMemo(() => series.map((point) => Date.parse(point.time) / 1000), [series]);
  return (
    <div class="plots">
      {plots.map(([title, lines]) => (
        <Panel key={title}>
          <Plot title={title === "Viewers" ? title : `${title} a ${interval}`} times={times} lines={lines} />
        </Panel>
      ))}
    </div>
  );
}
