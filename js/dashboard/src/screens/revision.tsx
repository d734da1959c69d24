/**
 * One revision: its content as JSON, what has changed, and publishing.
 *
 * What is typed stands on the version that it began with, by its ETag. Who saves after somebody else has is shown
 * both versions and decides; nothing is overwritten unseen, and what was typed stays until it is saved or thrown away.
 */
import { useMemo, useState } from "preact/hooks";
import { ApiError, type components } from "../../../client/src/index.js";
import { connection } from "../connection.js";
import { Difference } from "../difference.js";
import { dateTime, pretty } from "../format.js";
import { useAction, useDraft, useLoaded } from "../hooks.js";
import { JsonField, parseObject } from "../json.js";
import { useKeys } from "../keys.js";
import { ask } from "../notices.js";
import { to } from "../routes.js";
import { isPublisher } from "../session.js";
import { Badge, Panel, Progress, Shown, Text } from "../ui.js";
import { Preview } from "./preview.js";

type Revision = components["schemas"]["Revision"];

interface Read {
  revision: Revision;
  etag: string;
}

interface Draft {
  title: string;
  description: string;
  content: string;
  /** The version that it stands on. */
  etag: string;
  base: string;
}

const PATH = "/projects/{projectId}/application/revisions/{revisionId}";

export function RevisionEditor({ projectId, revisionId }: { projectId: string; revisionId: string }) {
  const client = connection.value;
  const path = { projectId, revisionId };
  const read = async (): Promise<Read> => {
    const { data, headers } = await client.exchange("GET", PATH, { path });
    return { revision: data, etag: headers.get("ETag") ?? "" };
  };
  const loaded = useLoaded(read, [client, projectId, revisionId]);
  const [latest, setLatest] = useState<Read | undefined>(undefined);
  return (
    <Shown of={loaded}>
      {(first) => <Editor path={path} current={latest ?? first} read={read} onCurrent={setLatest} />}
    </Shown>
  );
}

function Editor({
  path,
  current,
  read,
  onCurrent,
}: {
  path: { projectId: string; revisionId: string };
  current: Read;
  read: () => Promise<Read>;
  onCurrent: (read: Read) => void;
}) {
  const client = connection.value;
  const { revision, etag } = current;
  const text = useMemo(() => pretty(revision.content), [revision]);
  const saved: Draft = {
    title: revision.title ?? "",
    description: revision.description ?? "",
    content: text,
    etag,
    base: text,
  };
  const [draft, setDraft, dropDraft, isTyped] = useDraft<Draft>(
    `revision ${path.projectId} ${path.revisionId}`,
    saved,
  );
  const [other, setOther] = useState<Read | undefined>(undefined);
  const parsed = parseObject(draft.content);
  const isPublished = revision.status === "published";
  const mayEdit = isPublisher.value && !isPublished;
  const isChanged =
    isTyped &&
    (draft.content !== draft.base || draft.title !== saved.title || draft.description !== saved.description);

  const put = async (changes: Record<string, unknown>, ifMatch: string) => {
    try {
      const sending = { path, body: changes, headers: { "If-Match": ifMatch } };
      const { data, headers } = await client.exchange("PUT", PATH, sending);
      const current = { revision: data, etag: headers.get("ETag") ?? "" };
      onCurrent(current);
      const base = pretty(data.content);
      dropDraft(draft, (typed) => ({ ...typed, etag: current.etag, base }));
      setOther(undefined);
    } catch (error) {
      if (error instanceof ApiError && error.status === 412) setOther(await read());
      throw error;
    }
  };
  const changes = () => ({
    title: draft.title || null,
    description: draft.description || null,
    ...(!isPublished && { content: parsed.value ?? {} }),
  });
  const save = useAction(async () => {
    await put(changes(), draft.etag);
  }, "Saved");
  const publish = useAction(async () => {
    const isMeant = await ask({
      title: `Publish version ${revision.version}?`,
      text: "End users see it at once. Its content can never be changed again.",
      action: "Publish",
    });
    if (!isMeant) return;
    await put({ ...(isTyped && changes()), status: "published" }, draft.etag);
  });
  const submit = () => {
    if (!parsed.problem && isChanged) void save.run();
  };
  const [isPreviewed, setPreviewed] = useState(false);
  useKeys("Revision", [
    { keys: "v", text: "Show or hide the preview", run: () => setPreviewed((before) => !before) },
    ...(mayEdit ? [{ keys: "Ctrl+S", text: "Save", run: submit }] : []),
  ]);

  /** Takes the other version as the one that what is typed stands on. */
  const standOn = (version: Read, content: string) => {
    save.clear();
    publish.clear();
    setOther(undefined);
    onCurrent(version);
    setDraft({ ...draft, content, etag: version.etag, base: pretty(version.revision.content) });
  };
  const takeTheirs = (version: Read) => {
    save.clear();
    publish.clear();
    setOther(undefined);
    onCurrent(version);
    dropDraft();
  };

  return (
    <div class="stack">
      <Panel
        title={`Version ${revision.version}`}
        actions={
          <>
            <Badge kind={isPublished ? "good" : ""}>{revision.status}</Badge>
            <span class="hint wide">changed {dateTime(revision.updatedTime)}</span>
            <button
              type="button"
              class="small"
              aria-expanded={isPreviewed}
              onClick={() => setPreviewed(!isPreviewed)}
            >
              Preview
            </button>
            <a class="button small" href={to("projects", path.projectId, "revisions")}>
              All revisions
            </a>
          </>
        }
      >
        {isTyped && draft.etag !== etag && !other && (
          <p class="warning" role="status">
            What you typed stands on an earlier version of this revision.
          </p>
        )}
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            submit();
          }}
        >
          <div class="row-fields">
            <Text
              label="Title"
              value={draft.title}
              readOnly={!mayEdit}
              onText={(title) => setDraft({ ...draft, title })}
            />
            <Text
              label="Description"
              value={draft.description}
              readOnly={!mayEdit}
              onText={(description) => setDraft({ ...draft, description })}
            />
          </div>
          <JsonField
            label="Content"
            rows={22}
            readOnly={!mayEdit}
            value={draft.content}
            onText={(content) => setDraft({ ...draft, content })}
            onSubmit={submit}
          />
          {other ? null : <Progress of={save} />}
          {other ? null : <Progress of={publish} />}
          {mayEdit && (
            <div class="actions end">
              {isTyped && (
                <button
                  type="button"
                  class="quiet"
                  onClick={() => {
                    dropDraft();
                    save.clear();
                  }}
                >
                  Throw away
                </button>
              )}
              <button type="submit" disabled={!isChanged || save.isRunning || !!parsed.problem}>
                {save.isRunning ? "Saving…" : "Save the draft"} <kbd aria-hidden="true">Ctrl+S</kbd>
              </button>
              <button
                type="button"
                class="primary"
                disabled={publish.isRunning || !!parsed.problem}
                onClick={() => publish.run()}
              >
                Publish…
              </button>
            </div>
          )}
        </form>
      </Panel>
      {isPreviewed && <Preview projectId={path.projectId} content={parsed.value} />}
      {other && (
        <Conflict
          mine={draft.content}
          other={other}
          onOverwrite={() => standOn(other, draft.content)}
          onTake={() => takeTheirs(other)}
        />
      )}
      {!other && draft.content !== draft.base && (
        <Panel title="What you changed">
          <Difference before={draft.base} after={draft.content} />
        </Panel>
      )}
    </div>
  );
}

function Conflict({
  mine,
  other,
  onOverwrite,
  onTake,
}: {
  mine: string;
  other: Read;
  onOverwrite: () => void;
  onTake: () => void;
}) {
  const theirs = pretty(other.revision.content);
  return (
    <section class="panel conflict" aria-label="Two versions">
      <div role="alert" class="stack">
        <h2>Somebody else has changed this revision</h2>
        <p>
          It was saved at {dateTime(other.revision.updatedTime)} while you were editing. Yours was not saved.
          Both are here; choose what to go on with.
        </p>
      </div>
      <div class="columns">
        <div>
          <h3>Theirs, saved</h3>
          <pre tabIndex={0} aria-label="Their version">
            {theirs}
          </pre>
        </div>
        <div>
          <h3>Yours, not saved</h3>
          <pre tabIndex={0} aria-label="Your version">
            {mine}
          </pre>
        </div>
      </div>
      <h3>From theirs to yours</h3>
      <Difference before={theirs} after={mine} />
      <div class="actions end">
        <button type="button" onClick={onTake}>
          Take theirs, throw mine away
        </button>
        <button type="button" class="primary" onClick={onOverwrite}>
          Go on with mine, on top of theirs
        </button>
      </div>
    </section>
  );
}
