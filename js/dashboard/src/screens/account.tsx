/** The user's own profile, and its API tokens. */
import { useState } from "preact/hooks";
import type { components } from "../../../client/src/index.js";
import { connection } from "../connection.js";
import { dateTime, parseLocal } from "../format.js";
import { useAction, useDraft, useLoaded } from "../hooks.js";
import { ask } from "../notices.js";
import { isReader, login, logOut } from "../session.js";
import { Copied, Empty, Head, Panel, Progress, Shown, Table, Text } from "../ui.js";

type NewToken = components["schemas"]["NewApiToken"];

export function AccountScreen() {
  const client = connection.value;
  const me = useLoaded(() => client.request("GET", "/users/me"), [client]);
  return (
    <>
      <Head title="Account" />
      <div class="columns">
        <Shown of={me}>
          {(user) => (
            <Profile
              key={user.updatedTime}
              name={user.name ?? ""}
              email={user.email ?? ""}
              onSaved={me.reload}
            />
          )}
        </Shown>
        {isReader.value && <Tokens />}
      </div>
    </>
  );
}

function Profile({ name, email, onSaved }: { name: string; email: string; onSaved: () => void }) {
  const client = connection.value;
  const [draft, setDraft, dropDraft, isTyped] = useDraft("profile", { name, email });
  const [password, setPassword] = useState("");
  const save = useAction(async () => {
    const body = { name: draft.name || null, email: draft.email || null, ...(password && { password }) };
    await client.request("PUT", "/users/me", { body });
    dropDraft(draft);
    if (password) return logOut(); // it ended this log-in too
    onSaved();
  }, "Saved");
  return (
    <Panel title="Profile">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void save.run();
        }}
      >
        <dl class="facts">
          <div>
            <dt>User name</dt>
            <dd>{login.value?.username}</dd>
          </div>
          <div>
            <dt>Role</dt>
            <dd>{login.value?.role}</dd>
          </div>
          <div>
            <dt>Log-in ends</dt>
            <dd>{dateTime(login.value?.endsMs)}</dd>
          </div>
        </dl>
        {isReader.value && (
          <>
            <Text label="Name" value={draft.name} onText={(text) => setDraft({ ...draft, name: text })} />
            <Text
              label="E-mail"
              type="email"
              value={draft.email}
              onText={(text) => setDraft({ ...draft, email: text })}
            />
            <Text
              label="New password"
              type="password"
              autocomplete="new-password"
              minLength={8}
              value={password}
              onText={setPassword}
              hint="Empty keeps the one there is. A new one ends all your log-ins and API tokens."
            />
            <Progress of={save} />
            <div class="actions end">
              <button type="submit" class="primary" disabled={(!isTyped && !password) || save.isRunning}>
                Save
              </button>
            </div>
          </>
        )}
      </form>
    </Panel>
  );
}

function Tokens() {
  const client = connection.value;
  const [name, setName] = useState("");
  const [expires, setExpires] = useState("");
  const [secret, setSecret] = useState("");
  const tokens = useLoaded(() => client.request("GET", "/users/me/tokens"), [client]);
  const make = useAction(async () => {
    const body = { name, ...(expires && { expires: parseLocal(expires) }) };
    const made = await client.request("POST", "/users/me/tokens", { body });
    setSecret((made as NewToken).token);
    setName("");
    setExpires("");
    tokens.reload();
  });
  const revoke = useAction(async (id: string, called: string) => {
    const isMeant = await ask({
      title: "Revoke the token?",
      text: `${called}: what uses it is refused within seconds.`,
      action: "Revoke",
      isDangerous: true,
    });
    if (!isMeant) return;
    await client.request("DELETE", "/users/me/tokens/{tokenId}", { path: { tokenId: id } });
    tokens.reload();
  });
  return (
    <Panel title="API tokens">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void make.run();
        }}
      >
        <div class="row-fields">
          <Text label="What it is for" required value={name} onText={setName} />
          <Text
            label="Expires"
            type="datetime-local"
            value={expires}
            onText={setExpires}
            hint="Never, when empty"
          />
        </div>
        <Progress of={make} />
        <div class="actions">
          <button type="submit" class="primary" disabled={make.isRunning}>
            Make a token
          </button>
        </div>
      </form>
      {secret && (
        <div class="secret" role="status">
          <p>This is the only time that the token is shown. Keep it where secrets are kept.</p>
          <code>{secret}</code>
          <div class="actions">
            <Copied text={secret} />
            <button type="button" class="small" onClick={() => setSecret("")}>
              Hide
            </button>
          </div>
        </div>
      )}
      <Progress of={revoke} />
      <Shown of={tokens}>
        {(all) =>
          all.length ? (
            <Table label="API tokens" head={["Name", "Made", "Expires", ""]}>
              {all.map((token) => (
                <tr key={token.id}>
                  <td>{token.name}</td>
                  <td>{dateTime(token.createdTime)}</td>
                  <td>{token.expires ? dateTime(token.expires) : "never"}</td>
                  <td>
                    <button
                      type="button"
                      class="small danger"
                      onClick={() => revoke.run(token.id, token.name)}
                    >
                      Revoke
                    </button>
                  </td>
                </tr>
              ))}
            </Table>
          ) : (
            <Empty>You have no API tokens.</Empty>
          )
        }
      </Shown>
    </Panel>
  );
}
