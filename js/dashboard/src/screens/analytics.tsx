/** A project's analytics site in Matomo: what it is like, and making and completing it. */
import { connection } from "../connection.js";
import { useAction, useLoaded } from "../hooks.js";
import { Badge, Copied, Empty, Panel, Progress, Shown, Table } from "../ui.js";

const KINDS = { ok: "good", incomplete: "wait", errors: "bad", "not-created": "" } as const;

export function AnalyticsTab({ projectId }: { projectId: string }) {
  const client = connection.value;
  const path = { projectId };
  const site = useLoaded(
    () =>
      client.request("GET", "/projects/{projectId}/analytics/site", {
        path,
        deadlineMs: 0,
        timeoutMs: 30_000,
      }),
    [client, projectId],
  );
  const create = useAction(async () => {
    await client.request("POST", "/projects/{projectId}/analytics/site", { path, timeoutMs: 90_000 });
    site.reload();
  }, "The site was created");
  const complete = useAction(async () => {
    await client.request("PUT", "/projects/{projectId}/analytics/site", { path, timeoutMs: 90_000 });
    site.reload();
  }, "The site was completed");
  return (
    <div class="stack">
      <Panel
        title="Analytics site"
        actions={
          <button type="button" class="small" onClick={site.reload}>
            Check again
          </button>
        }
      >
        <Shown of={site}>
          {(value) => (
            <div class="stack">
              <p>
                <Badge kind={KINDS[value.status]}>{value.status}</Badge>{" "}
                {value.status === "not-created" ? "The project has no site yet." : value.message}
              </p>
              <dl class="facts">
                <div>
                  <dt>Site</dt>
                  <dd>{value.idSite ?? "none"}</dd>
                </div>
                <div>
                  <dt>Dimensions</dt>
                  <dd>{value.dimensions.length}</dd>
                </div>
                <div>
                  <dt>Reports</dt>
                  <dd>{value.reports.length}</dd>
                </div>
                <div>
                  <dt>Reports can be read</dt>
                  <dd>{value.proxyHasAccess ? "yes" : "no"}</dd>
                </div>
              </dl>
              <Faults value={value} />
              <div class="actions">
                <button
                  type="button"
                  class="primary"
                  disabled={value.status !== "not-created" || create.isRunning}
                  onClick={() => create.run()}
                >
                  {create.isRunning ? "Creating…" : "Create"}
                </button>
                <button
                  type="button"
                  disabled={value.status !== "incomplete" || complete.isRunning}
                  onClick={() => complete.run()}
                >
                  {complete.isRunning ? "Completing…" : "Complete"}
                </button>
              </div>
            </div>
          )}
        </Shown>
        <Progress of={create} />
        <Progress of={complete} />
      </Panel>
      {site.value?.idSite != null && <Snippet projectId={projectId} />}
    </div>
  );
}

interface Faulty {
  missingDimensions: readonly { name: string; scope: string }[];
  badDimensions: readonly { name: string; scope: string; reason: string }[];
  missingReports: readonly { name: string }[];
  badReports: readonly { name: string; reason: string }[];
}

function Faults({ value }: { value: Faulty }) {
  const rows = [
    ...value.missingDimensions.map(
      ({ name, scope }) => [`Dimension of a ${scope}`, name, "missing"] as const,
    ),
    ...value.badDimensions.map(
      ({ name, scope, reason }) => [`Dimension of a ${scope}`, name, reason] as const,
    ),
    ...value.missingReports.map(({ name }) => ["Report", name, "missing"] as const),
    ...value.badReports.map(({ name, reason }) => ["Report", name, reason] as const),
  ];
  if (!rows.length) return null;
  return (
    <Table label="What is missing or wrong" head={["What", "Name", "Fault"]}>
      {rows.map((row) => (
        <tr key={row.join()}>
          {row.map((text, index) => (
            <td key={index}>{text}</td>
          ))}
        </tr>
      ))}
    </Table>
  );
}

function Snippet({ projectId }: { projectId: string }) {
  const client = connection.value;
  const snippet = useLoaded(
    async () =>
      String(
        (await client.exchange("GET", "/projects/{projectId}/analytics/snippet", { path: { projectId } }))
          .data,
      ),
    [client, projectId],
  );
  return (
    <Panel title="Script for overlays" actions={snippet.value ? <Copied text={snippet.value} /> : null}>
      <Shown of={snippet}>
        {(text) =>
          text ? (
            <pre tabIndex={0} aria-label="Script">
              {text}
            </pre>
          ) : (
            <Empty>There is none.</Empty>
          )
        }
      </Shown>
    </Panel>
  );
}
