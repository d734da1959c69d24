/** A program's events as they come, and the form that publishes more. */
import { useMemo, useRef, useState } from "preact/hooks";
import type { ProgramEvent } from "../../../client/src/index.js";
import { connection } from "../connection.js";
import type { EventLog } from "../event_log.js";
import { count, dateTime, preview, pretty, timeOfDay } from "../format.js";
import { useAction, useDraft } from "../hooks.js";
import { JsonField, parseObject } from "../json.js";
import { useKeys } from "../keys.js";
import { ask, say } from "../notices.js";
import { isSame, type Outbox, type Outgoing } from "../outbox.js";
import { isPublisher } from "../session.js";
import { Copied, Empty, Failure, Panel, Progress, Text } from "../ui.js";
import { VirtualList } from "../virtual.js";
import { Unanswered } from "./unanswered.js";

const TEMPLATES = 9; // a key each
const SHOWN_CHARACTERS = 20_000;

export function LiveTab({ log, outbox }: { log: EventLog; outbox: Outbox }) {
  const [chosen, setChosen] = useState<string | undefined>(undefined);
  const isThere = log.version.value >= 0 && chosen !== undefined;
  const event = isThere ? log.events.find(({ id }) => id === chosen) : undefined;
  return (
    <div class={isPublisher.value ? "split" : ""}>
      <div class="stack">
        <Stream log={log} chosen={chosen} onChoose={setChosen} />
        {event && <Chosen log={log} event={event} onClose={() => setChosen(undefined)} />}
      </div>
      {isPublisher.value && <Publish log={log} outbox={outbox} />}
    </div>
  );
}

const STATES = {
  loading: ["wait", "Loading…"],
  live: ["good", "Live"],
  lost: ["wait", "Connection lost, coming back…"],
  ended: ["bad", "Ended"],
} as const;

function Stream({
  log,
  chosen,
  onChoose,
}: {
  log: EventLog;
  chosen: string | undefined;
  onChoose: (id: string) => void;
}) {
  const [search, setSearch] = useState("");
  const version = log.version.value;
  const [kind, text] = STATES[log.state.value];
  const older = useAction(() => log.readOlder());
  // The newest first.
  const found = useMemo(() => {
    const wanted = search.trim().toLowerCase();
    if (!wanted) return undefined;
    return log.events.filter(({ event, metadata }) =>
      `${event} ${JSON.stringify(metadata)}`.toLowerCase().includes(wanted),
    );
  }, [search, version, log]);
  const shown = found ?? log.events;
  const at = (index: number) => shown[shown.length - 1 - index] as ProgramEvent;
  const selected = useMemo(() => {
    const index = chosen === undefined ? -1 : shown.findIndex(({ id }) => id === chosen);
    return index < 0 ? undefined : shown.length - 1 - index;
  }, [chosen, version, shown]);
  return (
    <Panel
      title="Events"
      actions={
        <>
          <span class={`state ${kind}`} role="status">
            {text}
          </span>
          <span class="hint">{count(log.total)} in all</span>
        </>
      }
    >
      <div class="filters">
        <Text label="Search" type="search" placeholder="Name or metadata" value={search} onText={setSearch} />
      </div>
      {shown.length ? (
        <VirtualList
          key={found ? "found" : "all"} // a search begins at the top
          label="Events, the newest first"
          class="events"
          count={shown.length}
          rowPx={30}
          keyOf={(index) => at(index).id}
          arrived={found ? 0 : log.arrived}
          selected={selected}
          onSelect={(index) => onChoose(at(index).id)}
          render={(index) => <EventRow event={at(index)} />}
        />
      ) : (
        log.isRead.value && <Empty>{search ? "No event is like this." : "No events yet."}</Empty>
      )}
      {log.events.length < log.total && (
        <div class="list-foot">
          <span class="hint">
            {count(log.events.length)} of {count(log.total)} are here.
          </span>
          <button type="button" class="small" disabled={older.isRunning} onClick={() => older.run()}>
            Read more
          </button>
          <Progress of={older} />
        </div>
      )}
    </Panel>
  );
}

const lines = new WeakMap<object, string>();

function EventRow({ event }: { event: ProgramEvent }) {
  let line = lines.get(event.metadata);
  if (line === undefined) {
    line = preview(event.metadata);
    lines.set(event.metadata, line);
  }
  return (
    <>
      <span class="seq">{event.seq}</span>
      <span class="when">{timeOfDay(event.timestamp)}</span>
      <strong>{event.event}</strong>
      <span class="grow meta">{line}</span>
    </>
  );
}

function Chosen({ log, event, onClose }: { log: EventLog; event: ProgramEvent; onClose: () => void }) {
  const client = connection.value;
  const text = useMemo(() => pretty(event.metadata), [event]);
  const remove = useAction(async () => {
    const isMeant = await ask({
      title: "Delete this event?",
      text: `${event.event}, number ${event.seq}. Viewers are told that it is gone.`,
      action: "Delete",
      isDangerous: true,
    });
    if (!isMeant) return;
    const path = { programId: log.programId, eventId: event.id };
    await client.request("DELETE", "/programs/{programId}/events/{eventId}", { path });
    onClose();
  });
  return (
    <Panel
      title={event.event}
      class="chosen"
      actions={
        <>
          <Copied text={text} label="Copy metadata" />
          {isPublisher.value && (
            <button
              type="button"
              class="small danger"
              disabled={remove.isRunning}
              onClick={() => remove.run()}
            >
              Delete
            </button>
          )}
          <button type="button" class="small" onClick={onClose}>
            Close
          </button>
        </>
      }
    >
      <dl class="facts">
        <div>
          <dt>Number</dt>
          <dd>{event.seq}</dd>
        </div>
        <div>
          <dt>Made</dt>
          <dd>{dateTime(event.createdTime)}</dd>
        </div>
        <div>
          <dt>Timecode</dt>
          <dd>{event.timecode}</dd>
        </div>
        <div>
          <dt>Id</dt>
          <dd>
            <code>{event.id}</code>
          </dd>
        </div>
      </dl>
      <pre tabIndex={0} aria-label="Metadata">
        {text.length > SHOWN_CHARACTERS
          ? `${text.slice(0, SHOWN_CHARACTERS)}\n… ${count(text.length)} characters`
          : text}
      </pre>
      <Progress of={remove} />
    </Panel>
  );
}

interface Draft {
  event: string;
  metadata: string;
}

function Publish({ log, outbox }: { log: EventLog; outbox: Outbox }) {
  const [draft, setDraft, dropDraft] = useDraft<Draft>(`publish ${log.programId}`, {
    event: "",
    metadata: "{}",
  });
  const box = useRef<HTMLFormElement>(null);
  const templates = useTemplates(log);
  const parsed = parseObject(draft.metadata);
  const body = { event: draft.event.trim(), metadata: parsed.value ?? {} };
  const unanswered = outbox.unanswered.value.length;
  const isSent = outbox.isLast(body);
  const send = () => {
    if (!parsed.problem && draft.event) outbox.publish(body);
    else box.current?.reportValidity();
  };
  const fill = (event: ProgramEvent) => {
    setDraft({ event: event.event, metadata: pretty(event.metadata) });
    box.current?.querySelector("textarea")?.focus();
  };
  useKeys("Publishing", [
    { keys: "e", text: "Write an event", run: () => box.current?.querySelector("input")?.focus() },
    { keys: "Ctrl+Enter", text: "Publish it", run: send },
    ...templates.map((event, index) => ({
      keys: String(index + 1),
      text: `Take ${event.event} as a template`,
      run: () => fill(event),
    })),
  ]);
  return (
    <div class="stack">
      <Panel title="Publish">
        <form
          ref={box}
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            send();
          }}
        >
          <Text
            label="Event"
            required
            pattern="[A-Za-z][A-Za-z0-9._\-]*#[A-Za-z][A-Za-z0-9._\-]*"
            title="Component#action"
            placeholder="Score#update"
            list="event-names"
            maxLength={200}
            value={draft.event}
            onText={(event) => setDraft({ ...draft, event })}
            onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send()}
          />
          <datalist id="event-names">
            {templates.map(({ event }) => (
              <option key={event} value={event} />
            ))}
          </datalist>
          <JsonField
            label="Metadata"
            rows={10}
            value={draft.metadata}
            onText={(metadata) => setDraft({ ...draft, metadata })}
            onSubmit={send}
          />
          <Progress of={{ isRunning: unanswered > 0, error: undefined }} />
          {unanswered > 1 && (
            <p class="hint" role="status">
              {count(unanswered - 1)} more to publish, one after the other.
            </p>
          )}
          <NotPublished outbox={outbox} body={body} />
          <Unanswered
            log={log}
            body={body}
            isRunning={outbox.has(body)}
            onFound={() => {
              outbox.settle(body);
              say(`Published ${body.event}`);
            }}
          />
          <div class="actions end">
            <button type="button" class="quiet" onClick={() => dropDraft()}>
              Clear
            </button>
            <button type="submit" class="primary" disabled={isSent || !!parsed.problem}>
              {isSent ? "Publishing…" : "Publish"} <kbd aria-hidden="true">Ctrl+Enter</kbd>
            </button>
          </div>
        </form>
      </Panel>
      <Panel title="Last events as templates">
        {templates.length ? (
          <ol class="templates">
            {templates.map((event, index) => (
              <li key={event.event}>
                <button type="button" onClick={() => fill(event)}>
                  <kbd aria-hidden="true">{index + 1}</kbd>
                  <strong>{event.event}</strong>
                  <span class="meta">{preview(event.metadata, 90)}</span>
                </button>
              </li>
            ))}
          </ol>
        ) : (
          <Empty>What was published appears here.</Empty>
        )}
      </Panel>
    </div>
  );
}

/** What was not published, and why. What is no longer in the form is published again from here. */
function NotPublished({ outbox, body }: { outbox: Outbox; body: Outgoing }) {
  return (
    <>
      {outbox.failed.value.map((each, index) => (
        <Failure key={index} error={each.error}>
          {each.isOvertaken && !isSame(each.sent, body) && (
            <>
              <button type="button" class="small" onClick={() => outbox.retry(each)}>
                Send {each.sent.event} again
              </button>
              <button type="button" class="small" onClick={() => outbox.drop(each)}>
                Forget it
              </button>
            </>
          )}
        </Failure>
      ))}
    </>
  );
}

/** The last event of each name; each keeps its key while the page is open, for fingers learn them. */
function useTemplates(log: EventLog): ProgramEvent[] {
  const order = useRef<string[]>([]);
  const version = log.version.value;
  return useMemo(() => {
    const last = new Map<string, ProgramEvent>();
    for (let index = log.events.length - 1; index >= 0 && last.size < TEMPLATES; index--) {
      const event = log.events[index] as ProgramEvent;
      if (!last.has(event.event)) last.set(event.event, event);
    }
    const kept = order.current.filter((name) => last.has(name));
    order.current = [...kept, ...[...last.keys()].filter((name) => !kept.includes(name))];
    return order.current.map((name) => last.get(name) as ProgramEvent);
  }, [version, log]);
}
