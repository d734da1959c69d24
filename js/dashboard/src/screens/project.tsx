/** One project: its programs, revisions, stored values, analytics and members. */
import { connection } from "../connection.js";
import { pretty } from "../format.js";
import { useAction, useDraft, useLoaded } from "../hooks.js";
import { JsonField, parseObject } from "../json.js";
import { ask } from "../notices.js";
import { go } from "../routes.js";
import { isAdmin, isPublisher } from "../session.js";
import { Badge, Empty, Head, Panel, Progress, Shown, Table, Tabs, Text } from "../ui.js";
import { AnalyticsTab } from "./analytics.js";
import { ProgramList } from "./programs.js";
import { RevisionEditor } from "./revision.js";
import { RevisionsTab } from "./revisions.js";
import { ValuesTab } from "./values.js";

export function ProjectScreen({ id, rest }: { id: string; rest: readonly string[] }) {
  const [tab = "programs", revisionId] = rest;
  const client = connection.value;
  const path = { projectId: id };
  const project = useLoaded(async () => {
    const { data, headers } = await client.exchange("GET", "/projects/{projectId}", { path });
    return { ...data, etag: headers.get("ETag") } as Project;
  }, [client, id]);
  const tabs: (readonly [string, string])[] = [
    ["programs", "Programs"],
    ["revisions", "Revisions"],
    ["values", "Stored values"],
  ];
  if (isPublisher.value) tabs.push(["analytics", "Analytics"], ["members", "Members"]);
  if (isAdmin.value) tabs.push(["settings", "Settings"]);
  return (
    <>
      <Head
        title={project.value?.name ?? id}
        above={["Projects", "projects"]}
        badges={<code class="id">{id}</code>}
      />
      <Tabs label="Parts of the project" base={["projects", id]} current={tab} tabs={tabs} />
      <Shown of={project}>
        {(value) => (
          <>
            {tab === "programs" && <Programs projectId={id} />}
            {tab === "revisions" && !revisionId && <RevisionsTab projectId={id} />}
            {tab === "revisions" && revisionId && (
              <RevisionEditor key={revisionId} projectId={id} revisionId={revisionId} />
            )}
            {tab === "values" && <ValuesTab projectId={id} />}
            {tab === "analytics" && <AnalyticsTab projectId={id} />}
            {tab === "members" && <Members projectId={id} />}
            {tab === "settings" && <Settings project={value} onSaved={project.reload} />}
          </>
        )}
      </Shown>
    </>
  );
}

interface Project {
  id: string;
  name: string;
  description: string | null;
  metadata: Record<string, unknown>;
  etag: string | null;
}

function Programs({ projectId }: { projectId: string }) {
  const client = connection.value;
  const programs = useLoaded(
    () => client.request("GET", "/projects/{projectId}/programs", { path: { projectId } }),
    [client, projectId],
  );
  return (
    <Panel title="Programs">
      <Shown of={programs}>
        {(all) => (all.length ? <ProgramList programs={all} /> : <Empty>The project has no programs.</Empty>)}
      </Shown>
    </Panel>
  );
}

function Members({ projectId }: { projectId: string }) {
  const client = connection.value;
  const users = useLoaded(
    () => client.request("GET", "/projects/{projectId}/users", { path: { projectId } }),
    [client, projectId],
  );
  return (
    <Panel title="Members">
      <Shown of={users}>
        {(all) =>
          all.length ? (
            <Table label="Members of the project" head={["User", "Name", "Role"]}>
              {all.map((user) => (
                <tr key={user.id}>
                  <td>{user.username}</td>
                  <td>{user.name}</td>
                  <td>
                    <Badge>{user.role}</Badge>
                  </td>
                </tr>
              ))}
            </Table>
          ) : (
            <Empty>
              Nobody belongs to the project but the admins, who see all. An admin adds members under Users.
            </Empty>
          )
        }
      </Shown>
    </Panel>
  );
}

function Settings({ project, onSaved }: { project: Project; onSaved: () => void }) {
  const client = connection.value;
  const saved = {
    name: project.name,
    description: project.description ?? "",
    metadata: pretty(project.metadata),
  };
  const [draft, setDraft, dropDraft, isTyped] = useDraft(`project ${project.id}`, saved);
  const parsed = parseObject(draft.metadata);
  const path = { projectId: project.id };
  const save = useAction(async () => {
    const body = { name: draft.name, description: draft.description || null, metadata: parsed.value ?? {} };
    const headers: Record<string, string> = project.etag ? { "If-Match": project.etag } : {};
    await client.request("PUT", "/projects/{projectId}", { path, body, headers });
    dropDraft(draft);
    onSaved();
  }, "Saved");
  const remove = useAction(async () => {
    const isMeant = await ask({
      title: "Delete the project?",
      text: `${project.name} with its programs, events, revisions and stored values. This cannot be undone.`,
      action: "Delete",
      typed: project.id,
      isDangerous: true,
    });
    if (!isMeant) return;
    await client.request("DELETE", "/projects/{projectId}", { path, query: { cascade: true } });
    go("projects");
  });
  return (
    <div class="columns">
      <Panel title="Settings">
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            if (!parsed.problem) void save.run();
          }}
        >
          <Text label="Name" required value={draft.name} onText={(name) => setDraft({ ...draft, name })} />
          <Text
            label="Description"
            value={draft.description}
            onText={(description) => setDraft({ ...draft, description })}
          />
          <JsonField
            label="Metadata"
            value={draft.metadata}
            onText={(metadata) => setDraft({ ...draft, metadata })}
          />
          <Progress of={save} />
          <div class="actions end">
            {isTyped && (
              <button
                type="button"
                class="quiet"
                onClick={() => {
                  dropDraft();
                  save.clear();
                  onSaved();
                }}
              >
                Throw away
              </button>
            )}
            <button type="submit" class="primary" disabled={!isTyped || save.isRunning || !!parsed.problem}>
              Save
            </button>
          </div>
        </form>
      </Panel>
      <Panel title="Delete">
        <div class="actions">
          <button type="button" class="danger" disabled={remove.isRunning} onClick={() => remove.run()}>
            Delete the project
          </button>
        </div>
        <Progress of={remove} />
      </Panel>
    </div>
  );
}
