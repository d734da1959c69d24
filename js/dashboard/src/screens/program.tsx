/** One program: what happens in it, and what is done with it. */
import { useEffect, useMemo } from "preact/hooks";
import { connection } from "../connection.js";
import { EventLog } from "../event_log.js";
import { useLoaded } from "../hooks.js";
import { useKeys } from "../keys.js";
import { Outbox } from "../outbox.js";
import { go } from "../routes.js";
import { isPublisher, isReader } from "../session.js";
import { Badge, Failure, Head, Tabs, Tally } from "../ui.js";
import { HistoryTab } from "./history.js";
import { LiveTab } from "./live.js";
import { NumbersTab } from "./numbers.js";
import { PollsTab } from "./polls.js";
import { SettingsTab } from "./program_settings.js";

export function ProgramScreen({ id, tab }: { id: string; tab: string }) {
  const client = connection.value;
  const program = useLoaded(
    () => client.request("GET", "/programs/{programId}", { path: { programId: id } }),
    [client, id],
    15_000,
  );
  const log = useMemo(() => new EventLog(client, id), [client, id]);
  useEffect(() => () => log.close(), [log]);
  const outbox = useMemo(() => new Outbox(log), [log]);
  const tabs: (readonly [string, string])[] = [
    ["live", "Events"],
    ["polls", "Polls"],
  ];
  if (isReader.value) tabs.push(["numbers", "Numbers"]);
  tabs.push(["history", isPublisher.value ? "Import and export" : "Export"]);
  if (isPublisher.value) tabs.push(["settings", "Settings"]);
  const at = tabs.findIndex(([each]) => each === tab);
  const step = (by: number) => go("programs", id, tabs[(at + by + tabs.length) % tabs.length]?.[0] ?? "live");
  useKeys("Program", [
    { keys: "[", text: "The tab before", run: () => step(-1) },
    { keys: "]", text: "The next tab", run: () => step(1) },
  ]);
  const { value } = program;
  return (
    <>
      <Head
        title={value?.name ?? id}
        above={["Programs", "programs"]}
        badges={
          <>
            <Tally isLive={!!value?.live} />
            {value?.access === "private" && <Badge>Private</Badge>}
            <code class="id">{id}</code>
          </>
        }
      />
      <Failure error={program.error ?? log.error.value} />
      <Tabs label="Parts of the program" base={["programs", id]} current={tab} tabs={tabs} />
      {tab === "live" && <LiveTab log={log} outbox={outbox} />}
      {tab === "polls" && <PollsTab log={log} projectId={value?.projectId ?? null} />}
      {tab === "numbers" && <NumbersTab log={log} />}
      {tab === "history" && <HistoryTab log={log} />}
      {tab === "settings" && value && <SettingsTab program={value} onSaved={program.reload} />}
    </>
  );
}
