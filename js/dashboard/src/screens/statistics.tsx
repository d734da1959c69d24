/** What goes on in the account, or in the programs that the user may read. */
import { useMemo, useState } from "preact/hooks";
import { connection } from "../connection.js";
import { bytes, compact, count, dateTime } from "../format.js";
import { useLoaded } from "../hooks.js";
import { Plot } from "../plot.js";
import { to } from "../routes.js";
import { Empty, Figure, Head, Panel, Shown, Table } from "../ui.js";
import { Series, type Span, SpanChoice } from "./series.js";

const NOW_MS = 5_000;

export function StatisticsScreen() {
  const client = connection.value;
  const [span, setSpan] = useState<Span>("hour");
  const now = useLoaded(() => client.request("GET", "/statistics/dashboard"), [client], NOW_MS);
  return (
    <>
      <Head title="Statistics">
        <SpanChoice value={span} onChange={setSpan} />
      </Head>
      <Shown of={now}>
        {(value) => (
          <dl class="figures">
            <Figure label="Connections" value={compact(value.connections)} />
            <Figure label="Subscribers" value={compact(value.subscribers)} />
            <Figure label="Programs live" value={compact(value.programsLive)} />
            <Figure label="Events" value={compact(value.eventsPerMinute)} unit="/ min" />
            <Figure label="Answers" value={compact(value.responsesPerMinute)} unit="/ min" />
            <Figure label="Deliveries" value={compact(value.deliveriesPerSecond)} unit="/ s" />
          </dl>
        )}
      </Shown>
      <Series span={span} />
      <Images />
      <div class="columns">
        <Panel title="Most followed">
          {now.value?.topPrograms.length ? (
            <Table label="Most followed programs" head={["Program", "Subscribers", "Events"]}>
              {now.value.topPrograms.map((each) => (
                <tr key={each.programId}>
                  <td>
                    <a href={to("programs", each.programId)}>{each.programId}</a>
                  </td>
                  <td>{count(each.subscribers)}</td>
                  <td>{count(each.events)}</td>
                </tr>
              ))}
            </Table>
          ) : (
            <Empty>{now.value ? "Nobody follows a program." : "Not known yet."}</Empty>
          )}
        </Panel>
        <Panel title="Producers at work">
          {now.value?.producersOnline.length ? (
            <Table label="Producers at work" head={["User", "Last seen"]}>
              {now.value.producersOnline.map((each) => (
                <tr key={each.userId}>
                  <td>{each.username}</td>
                  <td>{dateTime(each.lastSeen)}</td>
                </tr>
              ))}
            </Table>
          ) : (
            <Empty>{now.value ? "No producer is at work." : "Not known yet."}</Empty>
          )}
        </Panel>
      </div>
    </>
  );
}

function Images() {
  const client = connection.value;
  const loaded = useLoaded(
    async () => {
      const now = client.now();
      const query = { from: new Date(now - 86_400_000).toISOString(), to: new Date(now).toISOString() };
      return (await client.request("GET", "/statistics/images", { query: { ...query, interval: "hour" } }))
        .series;
    },
    [client],
    60_000,
  );
  const times = useMemo(
    () => (loaded.value ?? []).map((point) => Date.parse(point.time) / 1000),
    [loaded.value],
  );
  return (
    <Shown of={loaded}>
      {(series) => {
        const sum = series.reduce((all, point) => all + point.sentBytes, 0);
        return (
          <Panel title="Images" actions={<span class="hint">{bytes(sum)} sent in a day</span>}>
            <Plot
              title="Images an hour"
              times={times}
              lines={[
                { label: "Served", colour: 1, values: series.map((point) => point.images) },
                { label: "From caches", colour: 3, values: series.map((point) => point.hits) },
                { label: "Errors", colour: 4, values: series.map((point) => point.errors) },
              ]}
            />
          </Panel>
        );
      }}
    </Shown>
  );
}
