/** A program's events as a file: out, and in again. */
import { useRef, useState } from "preact/hooks";
import { ApiError } from "../../../client/src/index.js";
import type { Connection } from "../connection.js";
import type { EventLog } from "../event_log.js";
import { bytes, count } from "../format.js";
import { useAction } from "../hooks.js";
import { ask, say } from "../notices.js";
import { isPublisher, withToken } from "../session.js";
import { Field, Panel, Progress } from "../ui.js";
import { once } from "../unconfirmed.js";

export function HistoryTab({ log }: { log: EventLog }) {
  return (
    <div class="columns">
      <Export log={log} />
      {isPublisher.value && <Import log={log} />}
      {isPublisher.value && <Erase log={log} />}
    </div>
  );
}

function Export({ log }: { log: EventLog }) {
  const [done, setDone] = useState(0);
  const action = useAction(async (type: string, ending: string) => {
    setDone(0);
    const blob = await withToken((token) => download(log.client, log.programId, type, token, setDone));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${log.programId}.${ending}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }, "The export is complete");
  return (
    <Panel title="Export">
      <p class="hint">
        All events of the program. The JSON file can be imported into this program, the NDJSON file into any.
      </p>
      <div class="actions">
        <button
          type="button"
          disabled={action.isRunning}
          onClick={() => action.run("application/json", "json")}
        >
          JSON
        </button>
        <button
          type="button"
          disabled={action.isRunning}
          onClick={() => action.run("application/x-ndjson", "ndjson")}
        >
          One event a line
        </button>
      </div>
      {(action.isRunning || done > 0) && (
        <p role="status" class="hint">
          {bytes(done)} received{action.isRunning ? "…" : ""}
        </p>
      )}
      <Progress of={action} />
    </Panel>
  );
}

async function download(
  client: Connection,
  programId: string,
  type: string,
  token: string,
  onBytes: (done: number) => void,
): Promise<Blob> {
  const url = client.urlOf("/programs/{programId}/events/export", { programId });
  const reply = await fetch(url, { headers: { Accept: type, Authorization: `Bearer ${token}` } });
  if (!reply.ok || !reply.body) throw await failureOf(reply);
  const parts: BlobPart[] = [];
  let done = 0;
  for (const reader = reply.body.getReader(); ; ) {
    const { value, done: isEnd } = await reader.read();
    if (isEnd) return new Blob(parts, { type });
    parts.push(value);
    onBytes((done += value.length));
  }
}

async function failureOf(reply: Response): Promise<Error> {
  const body = await reply.json().catch(() => ({}));
  return new ApiError(
    reply.status,
    body.error ?? "",
    body.error_description ?? `The broker answered ${reply.status}`,
  );
}

function Import({ log }: { log: EventLog }) {
  const [file, setFile] = useState<File | undefined>(undefined);
  const [sent, setSent] = useState<[number, number] | undefined>(undefined);
  const input = useRef<HTMLInputElement>(null);
  const action = useAction(async () => {
    const isMeant = await ask({
      title: "Replace all events?",
      text: `${count(log.total)} events of ${log.programId} are replaced by those of ${file?.name}. Viewers are told that the history is another.`,
      action: "Import",
      isDangerous: true,
    });
    if (!isMeant || !file) return;
    setSent([0, file.size]);
    // The broker refuses the key where the file was changed meanwhile.
    const name = `import ${log.programId} ${file.name} ${file.size} ${file.lastModified}`;
    const { deleted, imported } = await once(name, (key) =>
      withToken((token) => upload(log, file, key, token, (done, all) => setSent([done, all]))),
    );
    say(`${count(imported)} events imported, ${count(deleted)} replaced`);
    setFile(undefined);
    setSent(undefined);
    if (input.current) input.current.value = "";
  });
  return (
    <Panel title="Import">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
        <Field
          label="Exported file"
          hint="It replaces all events of the program, or none where anything in it is wrong."
        >
          {(id, hintId) => (
            <input
              id={id}
              ref={input}
              type="file"
              accept=".json,application/json"
              aria-describedby={hintId}
              onChange={(event) => {
                setSent(undefined);
                action.clear();
                setFile(event.currentTarget.files?.[0]);
              }}
            />
          )}
        </Field>
        {sent && action.isRunning && (
          <div>
            <progress value={sent[0]} max={sent[1]} aria-label="Sent" />
            <p class="hint" role="status">
              {sent[0] < sent[1]
                ? `${bytes(sent[0])} of ${bytes(sent[1])} sent`
                : "Sent; the broker imports it…"}
            </p>
          </div>
        )}
        <Progress of={action} />
        <div class="actions">
          <button type="submit" class="primary" disabled={!file || action.isRunning}>
            Import{file ? ` ${bytes(file.size)}` : ""}
          </button>
        </div>
      </form>
    </Panel>
  );
}

/** By XMLHttpRequest, which alone tells how much was sent. */
function upload(
  log: EventLog,
  file: File,
  key: string,
  token: string,
  onSent: (done: number, all: number) => void,
): Promise<{ deleted: number; imported: number }> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(
      "POST",
      log.client.urlOf("/programs/{programId}/events/import", { programId: log.programId }),
    );
    request.setRequestHeader("Content-Type", "application/json");
    request.setRequestHeader("Authorization", `Bearer ${token}`);
    request.setRequestHeader("Idempotency-Key", key);
    request.upload.onprogress = ({ loaded, total }) => onSent(loaded, total);
    request.onerror = () => reject(new Error("The connection was lost"));
    request.onload = () => {
      let body: any = {};
      try {
        body = JSON.parse(request.responseText);
      } catch {
        // Something in front of the broker answered.
      }
      if (request.status === 200) return resolve(body);
      const text = body.error_description ?? `The import was answered with ${request.status}`;
      reject(new ApiError(request.status, body.error ?? "", text, body.errors ?? []));
    };
    request.send(file);
  });
}

function Erase({ log }: { log: EventLog }) {
  const action = useAction(async () => {
    const isMeant = await ask({
      title: "Delete all events?",
      text: `${count(log.total)} events of ${log.programId} and what was answered to them. This cannot be undone.`,
      action: "Delete all",
      typed: log.programId,
      isDangerous: true,
    });
    if (!isMeant) return;
    const path = { programId: log.programId };
    const { deleted } = await log.client.request("DELETE", "/programs/{programId}/events", { path });
    say(`${count(deleted)} events deleted`);
  });
  return (
    <Panel title="Delete all events">
      <p class="hint">The program stays. Export it before.</p>
      <div class="actions">
        <button type="button" class="danger" disabled={action.isRunning} onClick={() => action.run()}>
          Delete all events
        </button>
      </div>
      <Progress of={action} />
    </Panel>
  );
}
