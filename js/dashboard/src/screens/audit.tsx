/** Who changed or deleted what; for admins. */
import { useEffect, useState } from "preact/hooks";
import { connection } from "../connection.js";
import { count, dateTime, preview } from "../format.js";
import { useLoaded, useSettled } from "../hooks.js";
import { Empty, Head, Panel, Shown, Table, Text } from "../ui.js";

const PAGE = 100;

export function AuditScreen() {
  const client = connection.value;
  const [search, setSearch] = useState("");
  const [from, setFrom] = useState("");
  const [page, setPage] = useState(0);
  const wanted = useSettled(search.trim(), 250);
  useEffect(() => setPage(0), [wanted, from]);
  const entries = useLoaded(() => {
    const query = {
      limit: PAGE,
      skip: page * PAGE,
      order: "desc" as const,
      ...(wanted && { search: wanted }),
      ...(from && { from: new Date(from).toISOString() }),
    };
    return client.request("GET", "/audit", { query });
  }, [client, wanted, from, page]);
  return (
    <>
      <Head title="Audit log" />
      <Panel>
        <div class="filters">
          <Text
            label="Search"
            type="search"
            placeholder="Action, target or user"
            value={search}
            onText={setSearch}
          />
          <Text label="From" type="date" value={from} onText={setFrom} />
        </div>
        <Shown of={entries}>
          {({ items, total }) =>
            items.length ? (
              <>
                <Table label="Audit log" head={["When", "Who", "What", "Target", "Details"]} class="stacked">
                  {items.map((entry) => (
                    <tr key={entry.id}>
                      <td class="when">{dateTime(entry.time)}</td>
                      <td>{entry.username || "the operator"}</td>
                      <td>{entry.action}</td>
                      <td class="line">
                        {entry.targetType} <code>{entry.targetId}</code>
                      </td>
                      <td class="meta line">
                        {Object.keys(entry.details).length ? preview(entry.details, 160) : ""}
                      </td>
                    </tr>
                  ))}
                </Table>
                <div class="list-foot">
                  <span class="hint">
                    {count(page * PAGE + 1)} to {count(page * PAGE + items.length)} of {count(total)}
                  </span>
                  <button type="button" class="small" disabled={page === 0} onClick={() => setPage(page - 1)}>
                    Newer
                  </button>
                  <button
                    type="button"
                    class="small"
                    disabled={(page + 1) * PAGE >= total}
                    onClick={() => setPage(page + 1)}
                  >
                    Older
                  </button>
                </div>
              </>
            ) : (
              <Empty>Nothing is like this.</Empty>
            )
          }
        </Shown>
      </Panel>
    </>
  );
}
