/** The projects that the user sees. */
import { useState } from "preact/hooks";
import { connection } from "../connection.js";
import { dateTime } from "../format.js";
import { useAction, useLoaded } from "../hooks.js";
import { useKeys } from "../keys.js";
import { go, to } from "../routes.js";
import { isAdmin } from "../session.js";
import {
  Dialog,
  DialogFoot,
  Empty,
  Head,
  MOST_ROWS,
  Others,
  Panel,
  Progress,
  Shown,
  Table,
  Text,
} from "../ui.js";

export function ProjectsScreen() {
  const client = connection.value;
  const [search, setSearch] = useState("");
  const [isMaking, setMaking] = useState(false);
  const projects = useLoaded(() => client.request("GET", "/projects"), [client]);
  useKeys(
    "Projects",
    isAdmin.value ? [{ keys: "n", text: "Make a project", run: () => setMaking(true) }] : [],
  );
  const wanted = search.toLowerCase();
  return (
    <>
      <Head title="Projects">
        {isAdmin.value && (
          <button type="button" class="primary" onClick={() => setMaking(true)}>
            New project
          </button>
        )}
      </Head>
      <Panel>
        <div class="filters">
          <Text label="Search" type="search" placeholder="Name or id" value={search} onText={setSearch} />
        </div>
        <Shown of={projects}>
          {(all) => {
            const found = all.filter(({ id, name }) => `${id} ${name}`.toLowerCase().includes(wanted));
            if (!found.length)
              return <Empty>{all.length ? "No project is like this." : "There is no project yet."}</Empty>;
            return (
              <>
                <Table
                  label="Projects"
                  head={["Name", "Id", "Description", "Changed"]}
                  wide={["Id", "Description"]}
                >
                  {found.slice(0, MOST_ROWS).map((project) => (
                    <tr key={project.id}>
                      <td>
                        <a href={to("projects", project.id)}>{project.name}</a>
                      </td>
                      <td class="wide">
                        <code>{project.id}</code>
                      </td>
                      <td class="wide">{project.description}</td>
                      <td>{dateTime(project.updatedTime)}</td>
                    </tr>
                  ))}
                </Table>
                <Others found={found.length} />
              </>
            );
          }}
        </Shown>
      </Panel>
      {isMaking && <NewProject onClose={() => setMaking(false)} />}
    </>
  );
}

function NewProject({ onClose }: { onClose: () => void }) {
  const client = connection.value;
  const [id, setId] = useState("");
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const action = useAction(async () => {
    const body = { name, ...(id && { id: id.trim() }), ...(description && { description }) };
    const made = await client.request("POST", "/projects", { body });
    go("projects", made.id);
  }, "The project was made");
  return (
    <Dialog title="New project" onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
        <Text label="Name" required value={name} onText={setName} />
        <Text label="Id" value={id} onText={setId} hint="Generated when empty; it never changes." />
        <Text label="Description" value={description} onText={setDescription} />
        <Progress of={action} />
        <DialogFoot onCancel={onClose} submit="Make it" isRunning={action.isRunning} />
      </form>
    </Dialog>
  );
}
