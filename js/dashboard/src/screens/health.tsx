/** How the parts answer, seen from here. */
import { type Connection, connection, connectionState, explain } from "../connection.js";
import { count } from "../format.js";
import { useLoaded } from "../hooks.js";
import { isAdmin } from "../session.js";
import { Badge, Head, Panel, Shown, Table } from "../ui.js";

const EVERY_MS = 5_000;

interface Part {
  name: string;
  text: string;
  ms?: number;
  error?: unknown;
}

export function HealthScreen() {
  const client = connection.value;
  const parts = useLoaded(
    () =>
      Promise.all([
        probe("API", async () => {
          const reply = await fetch("/healthz", { signal: AbortSignal.timeout(5_000) });
          if (!reply.ok) throw new Error(`The server returned ${reply.status}`);
          return "answers";
        }),
        probe("API and database", async () => {
          const me = await client.request("GET", "/users/me", { deadlineMs: 0, timeoutMs: 5_000 });
          return `knows ${me.username}`;
        }),
        probe("WebSocket", async () => {
          const signal = AbortSignal.timeout(5_000);
          await client.call("servertime", {}, { signal });
          return "answers";
        }),
      ]),
    [client],
    EVERY_MS,
  );
  const gateways = useLoaded(() => client.request("GET", "/connect"), [client], EVERY_MS);
  const version = useLoaded(() => client.request("GET", "/version"), [client]);
  return (
    <>
      <Head title="Health" />
      <Panel title="What answers">
        <Shown of={parts}>
          {(all) => (
            <Table label="What answers" head={["Part", "State", "Answer", "Time"]}>
              {all.map((part) => (
                <tr key={part.name}>
                  <td>{part.name}</td>
                  <td>
                    <Badge kind={part.error ? "bad" : "good"}>{part.error ? "down" : "ok"}</Badge>
                  </td>
                  <td>{part.error ? explain(part.error) : part.text}</td>
                  <td>{part.ms === undefined ? "" : `${part.ms.toFixed(0)} ms`}</td>
                </tr>
              ))}
            </Table>
          )}
        </Shown>
      </Panel>
      {isAdmin.value && <Parts client={client} />}
      <div class="columns">
        <Panel title="Gateways">
          <Shown of={gateways}>
            {({ servers }) => (
              <Table label="Gateways" head={["Address", "Connections"]}>
                {servers.map((server) => (
                  <tr key={server.url}>
                    <td>
                      <code>{server.url}</code>
                    </td>
                    <td>{count(server.connections)}</td>
                  </tr>
                ))}
              </Table>
            )}
          </Shown>
        </Panel>
        <Panel title="This page and the broker">
          <Shown of={version}>
            {(value) => (
              <dl class="facts">
                <div>
                  <dt>Version</dt>
                  <dd>{value.version}</dd>
                </div>
                <div>
                  <dt>Build</dt>
                  <dd>{value.buildNumber}</dd>
                </div>
                <div>
                  <dt>Connection</dt>
                  <dd>{connectionState.value}</dd>
                </div>
                <div>
                  <dt>This clock is ahead by</dt>
                  <dd>{aheadS(client)} s</dd>
                </div>
              </dl>
            )}
          </Shown>
        </Panel>
      </div>
    </>
  );
}

/** What the broker says of its parts; it says so to administrators. */
function Parts({ client }: { client: Connection }) {
  const health = useLoaded(
    () => client.request("GET", "/health", { deadlineMs: 0, timeoutMs: 5_000 }),
    [client],
    EVERY_MS,
  );
  return (
    <Panel title="Parts of the broker">
      <Shown of={health}>
        {({ parts, images, faces, maintenance }) => {
          const failing = Object.keys(parts).filter((name) => parts[name] !== "ok");
          return (
            <>
              <p class="hint" role="status">
                {failing.length ? `Not as it should be: ${failing.join(", ")}` : "All parts respond."}
              </p>
              {maintenance && (
                <p role="status">
                  <Badge kind="wait">maintenance</Badge> Changes are refused: {maintenance.message}
                </p>
              )}
              <Table label="Parts of the broker" head={["Part", "State", "What is wrong"]}>
                {[...Object.entries(parts), ["images", images] as const].map(([name, state]) => (
                  <tr key={name}>
                    <td>{name}</td>
                    <td>
                      <Badge kind={state === "ok" ? "good" : name in parts ? "bad" : "wait"}>
                        {state === "ok" ? "ok" : name in parts ? "down" : "limited"}
                      </Badge>
                    </td>
                    <td>{state === "ok" ? "" : state}</td>
                  </tr>
                ))}
              </Table>
              <p class="hint">
                Face models: {faces.models}. Computed by: {faces.providers.join(", ") || "nothing at present"}
                .
              </p>
            </>
          );
        }}
      </Shown>
    </Panel>
  );
}

async function probe(name: string, ask: () => Promise<string>): Promise<Part> {
  const began = performance.now();
  try {
    return { name, text: await ask(), ms: performance.now() - began };
  } catch (error) {
    return { name, text: "", error };
  }
}

/** How far this machine's clock is ahead; never a zero with a sign. */
function aheadS(client: Connection): string {
  return (Math.round(client.aheadMs() / 10) / 100 + 0).toFixed(2);
}
