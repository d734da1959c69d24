/** A project's revisions: the configurations of its applications. */
import { connection } from "../connection.js";
import { dateTime } from "../format.js";
import { useAction, useLoaded } from "../hooks.js";
import { useKeys } from "../keys.js";
import { go, to } from "../routes.js";
import { isPublisher } from "../session.js";
import { Badge, Empty, Panel, Progress, Shown, Table } from "../ui.js";

export function RevisionsTab({ projectId }: { projectId: string }) {
  const client = connection.value;
  const path = { projectId };
  const revisions = useLoaded(
    () => client.request("GET", "/projects/{projectId}/application/revisions", { path }),
    [client, projectId],
  );
  const newest = revisions.value?.[0];
  const make = useAction(async () => {
    const body = { title: newest?.title ?? null, content: newest?.content ?? {} };
    const made = await client.request("POST", "/projects/{projectId}/application/revisions", { path, body });
    go("projects", projectId, "revisions", made.id);
  }, "A draft was made");
  useKeys(
    "Revisions",
    isPublisher.value ? [{ keys: "n", text: "Make a draft", run: () => void make.run() }] : [],
  );
  return (
    <Panel
      title="Revisions"
      actions={
        isPublisher.value && (
          <button
            type="button"
            class="primary"
            disabled={make.isRunning || !revisions.value}
            onClick={() => make.run()}
          >
            {newest ? "New draft from the newest" : "New draft"}
          </button>
        )
      }
    >
      <Progress of={make} />
      <Shown of={revisions}>
        {(all) =>
          all.length ? (
            <Table label="Revisions" head={["Version", "Title", "Status", "Changed"]}>
              {all.map((revision) => (
                <tr key={revision.id}>
                  <td>
                    <a href={to("projects", projectId, "revisions", revision.id)}>{revision.version}</a>
                  </td>
                  <td>{revision.title}</td>
                  <td>
                    <Badge kind={revision.status === "published" ? "good" : ""}>{revision.status}</Badge>
                  </td>
                  <td>{dateTime(revision.updatedTime)}</td>
                </tr>
              ))}
            </Table>
          ) : (
            <Empty>There is no revision yet.</Empty>
          )
        }
      </Shown>
    </Panel>
  );
}
