/** What is known of an event that was sent and not answered. */
import { useEffect } from "preact/hooks";
import type { EventLog } from "../event_log.js";
import { EVENTS } from "../outbox.js";
import { forget, nameOf, sentBefore } from "../unconfirmed.js";

/** The stream tells when it is there; until then the form that sent it says so. */
export function Unanswered({
  log,
  body,
  isRunning,
  onFound,
}: {
  log: EventLog;
  body: { event: string; metadata: Record<string, unknown> };
  isRunning: boolean;
  onFound: () => void;
}) {
  const name = nameOf("POST", EVENTS, { path: { programId: log.programId }, body });
  const sent = isRunning ? undefined : sentBefore(name);
  const earliestMs = sent && log.client.earliestMs(sent.sinceMs);
  const metadata = JSON.stringify(body.metadata);
  const isThere =
    earliestMs !== undefined &&
    log.version.value >= 0 &&
    log.events.some(
      (event) =>
        event.event === body.event &&
        Date.parse(event.createdTime) >= earliestMs &&
        JSON.stringify(event.metadata) === metadata,
    );
  useEffect(() => {
    if (!isThere) return;
    forget(name);
    onFound();
  }, [isThere]);
  if (!sent || isThere) return null;
  return (
    <div class="warning" role="status">
      <span>
        It may have been published
        {log.state.value === "live"
          ? ", but is not among the events so far. Sent again as it is, it is there once."
          : ": checking…"}
      </span>
      <button type="button" class="small" onClick={() => forget(name)}>
        Forget it
      </button>
    </div>
  );
}
