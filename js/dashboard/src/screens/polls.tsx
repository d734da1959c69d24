/** A program's polls: ask, watch how it is answered, close. */
import { useEffect, useMemo, useState } from "preact/hooks";
import type { components, ProgramEvent } from "../../../client/src/index.js";
import { connection } from "../connection.js";
import type { EventLog } from "../event_log.js";
import { count, dateTime, percent, timeMs } from "../format.js";
import { useAction, useDraft, useLoaded, useTick } from "../hooks.js";
import { useKeys } from "../keys.js";
import { say } from "../notices.js";
import { EVENTS } from "../outbox.js";
import { isPublisher } from "../session.js";
import { Badge, Check, Choice, Empty, Failure, Field, Panel, Progress, Text } from "../ui.js";
import { Unconfirmed } from "../unconfirmed.js";
import { type Signs, SignsOfPoll, useSigns } from "./signs.js";
import { Unanswered } from "./unanswered.js";

type Entry = components["schemas"]["ReportEntry"];

export function PollsTab({ log, projectId }: { log: EventLog; projectId: string | null }) {
  const version = log.version.value;
  const polls = useMemo(
    () => log.events.filter(({ metadata }) => Array.isArray(metadata.options)).reverse(),
    [version, log],
  );
  const { totals, before, entries, error } = useTotals(log, projectId);
  const signs = useSigns(log, projectId);
  useTick(1_000);
  const open = polls.find((poll) => stateOf(poll, log.client.now()) === "open");
  const close = useAction(() => setOpen(log, open as ProgramEvent, false), "The poll is closed");
  useKeys("Polls", [
    { keys: "a", text: "Ask", run: () => document.querySelector<HTMLElement>("#ask input")?.focus() },
    ...(isPublisher.value && open
      ? [{ keys: "c", text: "Close the newest open poll", run: () => void close.run() }]
      : []),
  ]);
  return (
    <div class={isPublisher.value ? "split polls" : ""}>
      <div class="stack">
        <Failure error={error ?? close.error} />
        {polls.length ? (
          polls.map((poll) => (
            <Poll
              key={poll.id}
              log={log}
              poll={poll}
              totals={totals.get(poll.id)}
              before={before}
              entry={entries.get(poll.id)}
              signs={signs.get(poll.id)}
            />
          ))
        ) : (
          <Panel>
            {log.isRead.value ? (
              <Empty>Nothing was asked yet.</Empty>
            ) : log.state.value === "lost" ? (
              <p class="hint" role="status">
                Connection lost, coming back…
              </p>
            ) : (
              <p class="loading">Loading…</p>
            )}
          </Panel>
        )}
      </div>
      {isPublisher.value && <Ask log={log} />}
    </div>
  );
}

type State = "open" | "scheduled" | "closed";

function stateOf({ metadata }: ProgramEvent, nowMs: number): State {
  if (nowMs >= closingMs(metadata.closes)) return "closed";
  return nowMs < openingMs(metadata.opens) ? "scheduled" : "open";
}

/** An empty text is what a form sends for nothing. */
const isUnset = (limit: unknown) => limit == null || limit === "";

/** When a poll opens; never where that cannot be read, as the broker has it. */
const openingMs = (opens: unknown) => (isUnset(opens) ? 0 : (timeMs(opens) ?? Number.POSITIVE_INFINITY));

/** When a poll closes; it has long been closed where that cannot be read. */
const closingMs = (closes: unknown) =>
  isUnset(closes) ? Number.POSITIVE_INFINITY : (timeMs(closes) ?? Number.NEGATIVE_INFINITY);

/** What is known of earlier answers: a poll without results may have some until they are read. */
type Before = "read" | "loading" | "unknown";

/** Answers by option, for each poll. They are read when the tab opens and after a pause, and pushed in between. */
function useTotals(log: EventLog, projectId: string | null) {
  const { client, programId } = log;
  const [totals, setTotals] = useState<ReadonlyMap<string, Record<string, number>>>(new Map());
  const [error, setError] = useState<unknown>(undefined);
  const report = useLoaded(
    () =>
      client.request("GET", "/responses/{accountId}/{projectId}/{programId}/report", {
        path: { accountId: client.account, projectId: projectId ?? "undefined", programId },
      }),
    [client, programId, projectId],
    30_000, // for impressions, of which nobody is told
  );
  useEffect(() => {
    const control = new AbortController();
    const follow = async () => {
      for await (const { method, params } of client.follow(`responses:${programId}`, {
        signal: control.signal,
      })) {
        if (method === "resumed") report.reload();
        if (method !== "results") continue;
        setTotals((before) => {
          const next = new Map(before);
          for (const { contextId, isDeclared, results } of params.results)
            if (contextId && isDeclared) next.set(contextId, results);
          return next;
        });
      }
    };
    follow().catch((failure) => !control.signal.aborted && setError(failure));
    return () => control.abort();
  }, [client, programId]);
  const entries = useMemo(() => {
    // Anybody may answer other measures of the event: only the one that it declares is its poll.
    const found = new Map<string, Entry>();
    for (const entry of report.value?.responses ?? [])
      if (entry.isDeclared) found.set(entry.contextId, entry);
    return found;
  }, [report.value]);
  const all = useMemo(() => {
    const read = [...entries].map(
      ([id, entry]) =>
        [id, Object.fromEntries(entry.options.map((each) => [each.measureValue, each.total]))] as const,
    );
    const merged = new Map<string, Record<string, number>>(read);
    // Counts never go back but where answers change: what was told later stands.
    for (const [id, results] of totals) merged.set(id, results);
    return merged;
  }, [entries, totals]);
  const before: Before = report.value !== undefined ? "read" : report.error == null ? "loading" : "unknown";
  return { totals: all, before, entries, error: error ?? report.error };
}

/** The labels of options, by the index where one has none; nothing of more than the broker takes can be chosen. */
function labelsOf(options: unknown): string[] {
  return Array.isArray(options) && options.length <= 1_000 ? options.map(labelOf) : [];
}

function labelOf(option: unknown, index: number): string {
  const isRecord = typeof option === "object" && option !== null && !Array.isArray(option);
  const label = isRecord && "label" in option ? option.label : option;
  return typeof label === "string" || typeof label === "number" ? String(label) : String(index);
}

function Poll({
  log,
  poll,
  totals,
  before,
  entry,
  signs,
}: {
  log: EventLog;
  poll: ProgramEvent;
  totals: Record<string, number> | undefined;
  before: Before;
  entry: Entry | undefined;
  signs: Signs | undefined;
}) {
  const now = log.client.now();
  const state = stateOf(poll, now);
  const { metadata } = poll;
  const options = labelsOf(metadata.options);
  const counts = options.map((_, index) => totals?.[index] ?? 0);
  const all = counts.reduce((sum, each) => sum + each, 0);
  const most = Math.max(...counts);
  const change = useAction(
    () => setOpen(log, poll, state === "closed"),
    state === "closed" ? "The poll is open again" : "The poll is closed",
  );
  const leftS = Math.ceil((closingMs(metadata.closes) - now) / 1000);
  return (
    <section class={`panel poll ${state}`} aria-label={String(metadata.title ?? poll.event)}>
      <div class="panel-head">
        <h2>{String(metadata.title ?? poll.event)}</h2>
        <div class="actions">
          {state === "open" && <Badge kind="live">Open</Badge>}
          {state === "open" && Number.isFinite(leftS) && <span class="hint">{leftS} s left</span>}
          {state === "closed" && <Badge>Closed</Badge>}
          {state === "scheduled" && <Badge>Opens {dateTime(openingMs(metadata.opens))}</Badge>}
          {isPublisher.value && (
            <button type="button" class="small" disabled={change.isRunning} onClick={() => change.run()}>
              {state === "closed" ? "Open again" : "Close"}
            </button>
          )}
        </div>
      </div>
      <ul class="bars">
        {options.map((label, index) => (
          <li key={index} class={all && counts[index] === most ? "leads" : ""}>
            <span class="bar-label">{label}</span>
            <span class="bar" aria-hidden="true">
              <i style={{ width: all ? `${(100 * (counts[index] ?? 0)) / all}%` : "0" }} />
            </span>
            <span class="bar-number">{percent(counts[index] ?? 0, all)}</span>
            <span class="bar-number count">{count(counts[index] ?? 0)}</span>
          </li>
        ))}
      </ul>
      <p class="hint">
        {totals || before === "read"
          ? `${count(all)} answers`
          : before === "loading"
            ? "Loading…"
            : "Answers so far are not known"}
        {entry && entry.impressions.total > 0 && (
          <>
            {" "}
            · shown {count(entry.impressions.total)} times to {count(entry.impressions.uniques)} visitors
          </>
        )}
      </p>
      {signs && signs.votes > 0 && <SignsOfPoll signs={signs} />}
      <Progress of={change} />
    </section>
  );
}

/** When polls were closed whose closing was not confirmed: closed again, they are so at the same time. */
const closings = new Map<string, number>();

/** A poll is open until the time in its metadata; without one it does not close by itself. */
async function setOpen(log: EventLog, poll: ProgramEvent, isOpen: boolean): Promise<void> {
  const metadata = { ...poll.metadata };
  delete metadata.closes;
  if (!isOpen) {
    const closes = closings.get(poll.id) ?? Math.floor(log.client.now());
    closings.set(poll.id, (metadata.closes = closes));
  }
  const path = { programId: log.programId, eventId: poll.id };
  try {
    await log.client.request("PUT", "/programs/{programId}/events/{eventId}", { path, body: { metadata } });
    closings.delete(poll.id);
  } catch (error) {
    if (!(error instanceof Unconfirmed)) closings.delete(poll.id);
    throw error;
  }
}

interface Draft {
  title: string;
  options: string;
  seconds: string;
  allowChange: boolean;
  visitors: string;
  watched: boolean;
  event: string;
  /** When it closes, once it was sent: the same in each try, while that is still to come. */
  closes?: number | undefined;
}

const NEW: Draft = {
  title: "",
  options: "",
  seconds: "",
  allowChange: false,
  visitors: "",
  watched: false,
  event: "Poll#show",
};

const VISITORS: readonly (readonly [value: string, text: string, explained: string])[] = [
  ["", "As the account requires", "The account's setting decides."],
  ["any", "Anybody", "Any name counts: a script can invent names."],
  ["issued", "Visitors from the broker", "New visitors are limited by address and network."],
  ["signed", "Visitors signed by your server", "Only who your server has named counts, each once."],
];

function Ask({ log }: { log: EventLog }) {
  const client = connection.value;
  const [draft, setDraft, dropDraft] = useDraft<Draft>(`poll ${log.programId}`, NEW);
  const options = draft.options
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  const askedFor = (closes: number | undefined) => ({
    event: draft.event.trim(),
    metadata: {
      title: draft.title.trim(),
      options,
      ...(draft.allowChange && { allowChange: true }),
      ...(draft.visitors && { visitors: draft.visitors }),
      ...(draft.watched && { watched: true }),
      ...(closes && { closes }),
    },
  });
  const action = useAction(async () => {
    const [now, seconds] = [client.now(), Number(draft.seconds)];
    const isStill = draft.closes !== undefined && draft.closes > now;
    const closes = seconds > 0 ? (isStill ? draft.closes : Math.floor(now + seconds * 1000)) : undefined;
    const sent = closes ? { ...draft, closes } : draft;
    if (closes) setDraft(sent);
    const path = { programId: log.programId };
    const made = await client.request("POST", EVENTS, { path, body: askedFor(closes) });
    log.take(made as ProgramEvent);
    dropDraft(sent);
  }, "The audience is asked");
  const set = (change: Partial<Draft>) => setDraft({ ...draft, closes: undefined, ...change });
  return (
    <Panel title="Ask the audience">
      <form
        id="ask"
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (options.length >= 2) void action.run();
        }}
      >
        <Text label="Question" required value={draft.title} onText={(title) => set({ title })} />
        <Field
          label="Options, one on each line"
          hint={options.length < 2 ? "At least two" : `${options.length} options`}
        >
          {(id, hintId) => (
            <textarea
              id={id}
              aria-describedby={hintId}
              required
              rows={4}
              value={draft.options}
              onInput={(event) => set({ options: event.currentTarget.value })}
            />
          )}
        </Field>
        <div class="row-fields">
          <Text
            label="Open for seconds"
            type="number"
            min="1"
            placeholder="until closed"
            value={draft.seconds}
            onText={(seconds) => set({ seconds })}
          />
          <Text label="Event" required value={draft.event} onText={(event) => set({ event })} />
        </div>
        <Check
          label="Answers may be changed"
          checked={draft.allowChange}
          onCheck={(allowChange) => set({ allowChange })}
        />
        <Choice
          label="Who may vote"
          value={draft.visitors ?? ""}
          options={VISITORS.map(([value, text]) => [value, text] as const)}
          hint={VISITORS.find(([value]) => value === (draft.visitors ?? ""))?.[2]}
          onText={(visitors) => set({ visitors })}
        />
        <Check
          label="Watch how votes come"
          checked={draft.watched ?? false}
          hint="Plots votes by minute and network below the poll; counting is slower."
          onCheck={(watched) => set({ watched })}
        />
        <Progress of={action} />
        <Unanswered
          log={log}
          body={askedFor(draft.closes)}
          isRunning={action.isRunning}
          onFound={() => {
            action.clear();
            dropDraft();
            say("The audience is asked");
          }}
        />
        <div class="actions end">
          <button type="submit" class="primary" disabled={action.isRunning || options.length < 2}>
            {action.isRunning ? "Asking…" : "Ask"}
          </button>
        </div>
      </form>
    </Panel>
  );
}
