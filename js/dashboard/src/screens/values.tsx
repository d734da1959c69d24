/** A project's stored values: read one, store one, and see what is stored meanwhile. */
import { useEffect, useState } from "preact/hooks";
import { ApiError, type components } from "../../../client/src/index.js";
import { connection, explain } from "../connection.js";
import { dateTime, preview, pretty } from "../format.js";
import { useAction, useDraft } from "../hooks.js";
import { JsonField, parseObject } from "../json.js";
import { ask } from "../notices.js";
import { isPublisher } from "../session.js";
import { Empty, Panel, Progress, Table, Text } from "../ui.js";

type Value = components["schemas"]["StoredValue"];

const MOST = 100;

export function ValuesTab({ projectId }: { projectId: string }) {
  const client = connection.value;
  // What was read or stored is no draft: it is saved already.
  const [shown, setShown] = useState({ id: "", metadata: "{}" });
  const [draft, setDraft, dropDraft] = useDraft(`value ${projectId}`, shown);
  const { seen, isLive, problem } = useStored(projectId);
  const parsed = parseObject(draft.metadata);
  const path = { projectId, itemId: draft.id.trim() };
  const read = useAction(async () => {
    const { data } = await client.exchange("GET", "/storage/{projectId}/{itemId}", {
      path,
      cache: "no-cache",
    });
    setShown({ id: data.id, metadata: pretty(data.metadata) });
    dropDraft(draft);
  });
  const store = useAction(async () => {
    const body = { metadata: parsed.value ?? {}, ...(path.itemId && { id: path.itemId }) };
    const made = await client.request("POST", "/storage/{projectId}", { path: { projectId }, body });
    setShown({ ...draft, id: (made as Value).id });
    dropDraft(draft);
  }, "The value was stored");
  const remove = useAction(async () => {
    const isMeant = await ask({
      title: "Delete the value?",
      text: `${path.itemId} of this project. Caches may keep it for a day.`,
      action: "Delete",
      isDangerous: true,
    });
    if (!isMeant) return;
    await client.request("DELETE", "/storage/{projectId}/{itemId}", { path });
    setShown({ id: "", metadata: "{}" });
    dropDraft(draft);
  });
  return (
    <div class="split">
      <Panel
        title="Stored since you came here"
        actions={
          <span class={`state ${isLive ? "good" : "wait"}`} role="status">
            {isLive ? "Live" : "Connecting…"}
          </span>
        }
      >
        {problem != null && <Progress of={{ ...read, error: problem }} />}
        {seen.length ? (
          <Table label="Values stored" head={["Id", "Stored", "Value"]}>
            {seen.map((value) => (
              <tr key={`${value.id} ${value.createdTime}`}>
                <td>
                  <button
                    type="button"
                    class="link"
                    onClick={() => {
                      setShown({ id: value.id, metadata: pretty(value.metadata) });
                      dropDraft();
                    }}
                  >
                    {value.id}
                  </button>
                </td>
                <td>{dateTime(value.createdTime)}</td>
                <td class="meta">{preview(value.metadata, 120)}</td>
              </tr>
            ))}
          </Table>
        ) : (
          <Empty>Values appear here as they are stored. One that was stored before is read by its id.</Empty>
        )}
      </Panel>
      <Panel title="A value">
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            void read.run();
          }}
        >
          <Text
            label="Id"
            value={draft.id}
            maxLength={128}
            onText={(id) => setDraft({ ...draft, id })}
            hint="Generated when empty."
          />
          <div class="actions">
            <button type="submit" disabled={!path.itemId || read.isRunning}>
              Read
            </button>
          </div>
          <JsonField
            label="Value"
            rows={10}
            value={draft.metadata}
            readOnly={!isPublisher.value}
            onText={(metadata) => setDraft({ ...draft, metadata })}
          />
          {read.error instanceof ApiError && read.error.status === 404 ? (
            <p class="hint" role="status">
              {explain(read.error)}
            </p>
          ) : (
            <Progress of={read} />
          )}
          <Progress of={store} />
          <Progress of={remove} />
          {isPublisher.value && (
            <div class="actions end">
              <button
                type="button"
                class="danger"
                disabled={!path.itemId || remove.isRunning}
                onClick={() => remove.run()}
              >
                Delete
              </button>
              <button
                type="button"
                class="primary"
                disabled={store.isRunning || !!parsed.problem}
                onClick={() => store.run()}
              >
                Store
              </button>
            </div>
          )}
        </form>
      </Panel>
    </div>
  );
}

/** The values that are stored while the page is open, the newest first. */
function useStored(projectId: string): { seen: Value[]; isLive: boolean; problem: unknown } {
  const client = connection.value;
  const [seen, setSeen] = useState<Value[]>([]);
  const [isLive, setLive] = useState(false);
  const [problem, setProblem] = useState<unknown>(undefined);
  useEffect(() => {
    const control = new AbortController();
    const follow = async () => {
      const flow = client.follow(`storage:${projectId}`, { signal: control.signal });
      flow.addEventListener("live", () => setLive(true));
      flow.addEventListener("lost", () => setLive(false));
      for await (const { method, params } of flow) {
        if (method === "stored") setSeen((before) => [params.value, ...before].slice(0, MOST));
      }
    };
    follow()
      .catch((error) => !control.signal.aborted && setProblem(error))
      .finally(() => setLive(false));
    return () => control.abort();
  }, [client, projectId]);
  return { seen, isLive, problem };
}
