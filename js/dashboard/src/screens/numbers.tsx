/** What a program does: viewers, deliveries, answers, and how long an event is on its way to this page. */
import { useState } from "preact/hooks";
import type { EventLog } from "../event_log.js";
import { Plot } from "../plot.js";
import { Empty, Panel } from "../ui.js";
import { useTick } from "../hooks.js";
import { Series, SpanChoice, type Span } from "./series.js";

export function NumbersTab({ log }: { log: EventLog }) {
  const [span, setSpan] = useState<Span>("hour");
  return (
    <div class="stack">
      <SpanChoice value={span} onChange={setSpan} />
      <Series span={span} programId={log.programId} />
      <Panel title="Time from acceptance to this page">
        <Latency log={log} />
      </Panel>
    </div>
  );
}

function Latency({ log }: { log: EventLog }) {
  useTick(1_000);
  const samples = log.latencies;
  if (!samples.length) return <Empty>Measured with each event that comes while this page is open.</Empty>;
  return (
    <Plot
      title="Milliseconds, for each event that came"
      unit="ms"
      times={samples.map(([at]) => at / 1000)}
      lines={[{ label: "On its way", colour: 3, values: samples.map(([, ms]) => ms) }]}
    />
  );
}
