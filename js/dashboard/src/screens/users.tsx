/** The account's users and their roles; for admins. */
import { useState } from "preact/hooks";
import type { components } from "../../../client/src/index.js";
import { connection } from "../connection.js";
import { useAction, useDraft, useLoaded } from "../hooks.js";
import { useKeys } from "../keys.js";
import { ask } from "../notices.js";
import { login, type Role } from "../session.js";
import {
  Badge,
  Check,
  Choice,
  Dialog,
  DialogFoot,
  Empty,
  Failure,
  Head,
  MOST_ROWS,
  Others,
  Panel,
  Progress,
  Shown,
  Table,
  Text,
} from "../ui.js";

type User = components["schemas"]["User"];

export function UsersScreen() {
  const client = connection.value;
  const [search, setSearch] = useState("");
  const [edited, setEdited] = useState<User | "new" | undefined>(undefined);
  const users = useLoaded(() => client.request("GET", "/users"), [client]);
  useKeys("Users", [{ keys: "n", text: "Make a user", run: () => setEdited("new") }]);
  const wanted = search.toLowerCase();
  return (
    <>
      <Head title="Users">
        <button type="button" class="primary" onClick={() => setEdited("new")}>
          New user
        </button>
      </Head>
      <Panel>
        <div class="filters">
          <Text
            label="Search"
            type="search"
            placeholder="User name, name or e-mail"
            value={search}
            onText={setSearch}
          />
        </div>
        <Shown of={users}>
          {(all) => {
            const found = all.filter(({ username, name, email }) =>
              `${username} ${name ?? ""} ${email ?? ""}`.toLowerCase().includes(wanted),
            );
            if (!found.length) return <Empty>No user is like this.</Empty>;
            return (
              <>
                <Table
                  label="Users"
                  head={["User", "Name", "E-mail", "Role", "Projects"]}
                  wide={["E-mail", "Projects"]}
                >
                  {found.slice(0, MOST_ROWS).map((user) => (
                    <tr key={user.id}>
                      <td>
                        <button type="button" class="link" onClick={() => setEdited(user)}>
                          {user.username}
                        </button>
                      </td>
                      <td>{user.name}</td>
                      <td class="wide">{user.email}</td>
                      <td>
                        <Badge kind={user.role === "admin" ? "good" : ""}>{user.role}</Badge>
                      </td>
                      <td class="wide">{user.projectIds.join(", ")}</td>
                    </tr>
                  ))}
                </Table>
                <Others found={found.length} />
              </>
            );
          }}
        </Shown>
      </Panel>
      {edited && (
        <UserDialog
          key={edited === "new" ? "new" : edited.id}
          user={edited === "new" ? undefined : edited}
          onClose={() => setEdited(undefined)}
          onSaved={users.reload}
        />
      )}
    </>
  );
}

interface Draft {
  username: string;
  name: string;
  email: string;
  role: Role;
  projectIds: string[];
}

function UserDialog({
  user,
  onClose,
  onSaved,
}: {
  user: User | undefined;
  onClose: () => void;
  onSaved: () => void;
}) {
  const client = connection.value;
  const saved: Draft = {
    username: user?.username ?? "",
    name: user?.name ?? "",
    email: user?.email ?? "",
    role: user?.role ?? "producer",
    projectIds: user?.projectIds ?? [],
  };
  const [draft, setDraft, dropDraft] = useDraft<Draft>(`user ${user?.id ?? "new"}`, saved);
  const [password, setPassword] = useState(""); // kept nowhere
  const projects = useLoaded(() => client.request("GET", "/projects"), [client]);
  const isSelf = user?.id === login.value?.userId;
  const save = useAction(async () => {
    const { username, role, projectIds } = draft;
    const common = { name: draft.name || null, email: draft.email || null, projectIds };
    if (user) {
      const body = {
        ...common,
        ...(username !== user.username && { username }),
        ...(role !== user.role && { role }),
        ...(password && { password }),
      };
      await client.request("PUT", "/users/{userId}", { path: { userId: user.id }, body });
    } else await client.request("POST", "/users", { body: { ...common, username, role, password } });
    dropDraft(draft);
    onSaved();
    onClose();
  }, "Saved");
  const remove = useAction(async () => {
    const isMeant = await ask({
      title: "Delete the user?",
      text: "Its log-ins and API tokens end within seconds.",
      action: "Delete",
      typed: user?.username ?? "",
      isDangerous: true,
    });
    if (!isMeant || !user) return;
    await client.request("DELETE", "/users/{userId}", { path: { userId: user.id } });
    dropDraft();
    onSaved();
    onClose();
  });
  const set = (change: Partial<Draft>) => setDraft({ ...draft, ...change });
  const known = projects.value ?? [];
  return (
    <Dialog title={user ? user.username : "New user"} onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void save.run();
        }}
      >
        <div class="row-fields">
          <Text label="User name" required value={draft.username} onText={(username) => set({ username })} />
          <Choice
            label="Role"
            value={draft.role}
            disabled={isSelf}
            onText={(role) => set({ role: role as Role })}
            options={[
              ["admin", "admin"],
              ["producer", "producer"],
              ["user", "user"],
              ["client", "client"],
            ]}
          />
        </div>
        <div class="row-fields">
          <Text label="Name" value={draft.name} onText={(name) => set({ name })} />
          <Text label="E-mail" type="email" value={draft.email} onText={(email) => set({ email })} />
        </div>
        <Text
          label={user ? "New password" : "Password"}
          type="password"
          autocomplete="new-password"
          required={!user}
          minLength={8}
          value={password}
          onText={setPassword}
          {...(user && { hint: "Empty keeps the one there is. A new one ends all log-ins of the user." })}
        />
        <Failure error={projects.error}>
          <button type="button" class="small" onClick={projects.reload}>
            Try again
          </button>
        </Failure>
        {known.length > 0 && (
          <fieldset>
            <legend>Projects</legend>
            <div class="checks">
              {known.map(({ id, name }) => (
                <Check
                  key={id}
                  label={name}
                  checked={draft.projectIds.includes(id)}
                  onCheck={(isIn) =>
                    set({
                      projectIds: isIn
                        ? [...draft.projectIds, id]
                        : draft.projectIds.filter((each) => each !== id),
                    })
                  }
                />
              ))}
            </div>
          </fieldset>
        )}
        <Progress of={save} />
        <Progress of={remove} />
        <DialogFoot
          onCancel={onClose}
          submit={save.isRunning ? "Saving…" : "Save"}
          isRunning={save.isRunning}
        >
          {user && !isSelf && (
            <button type="button" class="danger" disabled={remove.isRunning} onClick={() => remove.run()}>
              Delete
            </button>
          )}
        </DialogFoot>
      </form>
    </Dialog>
  );
}
