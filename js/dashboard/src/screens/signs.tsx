/** How the votes of watched polls came: by minute as a plot, by network as bars, and what is unusual in words. */
import { useMemo } from "preact/hooks";
import type { components } from "../../../client/src/index.js";
import type { EventLog } from "../event_log.js";
import { count, percent } from "../format.js";
import { useLoaded } from "../hooks.js";
import { Plot } from "../plot.js";
import { Badge } from "../ui.js";

export type Signs = components["schemas"]["IntegrityEntry"];

const EVERY_MS = 10_000;
const MINUTE_MS = 60_000;
/** A plot of fewer is a dot. */
const LEAST_MINUTES = 15;

/** The signs of each watched poll, by the id of the event that asks. */
export function useSigns(
  { client, programId }: EventLog,
  projectId: string | null,
): ReadonlyMap<string, Signs> {
  const report = useLoaded(
    () =>
      client.request("GET", "/responses/{accountId}/{projectId}/{programId}/integrity", {
        path: { accountId: client.account, projectId: projectId ?? "undefined", programId },
      }),
    [client, programId, projectId],
    EVERY_MS,
  );
  return useMemo(() => {
    const found = new Map<string, Signs>();
    for (const entry of report.value?.polls ?? [])
      if (entry.isWatched && entry.isDeclared) found.set(entry.contextId, entry);
    return found;
  }, [report.value]);
}

/** Of one poll; closed until somebody wants to know. */
export function SignsOfPoll({ signs }: { signs: Signs }) {
  const { times, lines } = useMemo(() => {
    const minutes = withoutGaps(signs.minutes);
    return {
      times: minutes.map(({ timestamp }) => timestamp / 1000),
      lines: [
        { label: "Votes", colour: 1, values: minutes.map(({ votes }) => votes) },
        { label: "Names in rows", colour: 2, values: minutes.map(({ inRow }) => inRow) },
      ],
    };
  }, [signs]);
  const networks = signs.networks.map((votes, index) => [`Network ${index + 1}`, votes] as const);
  return (
    <details class="signs">
      <summary>
        How votes came
        {signs.findings.length > 0 && <Badge kind="wait">{signs.findings.length} unusual</Badge>}
      </summary>
      {signs.findings.length > 0 && (
        <ul class="findings">
          {signs.findings.map((finding) => (
            <li key={finding}>{finding}</li>
          ))}
        </ul>
      )}
      <Plot title="Votes by minute" times={times} lines={lines} />
      <h3>Votes by network</h3>
      <ul class="bars" aria-label="Votes by network">
        {[...networks, ["All others", signs.otherVotes] as const].map(([label, votes]) => (
          <li key={label}>
            <span class="bar-label">{label}</span>
            <span class="bar" aria-hidden="true">
              <i style={{ width: signs.votes ? `${(100 * votes) / signs.votes}%` : "0" }} />
            </span>
            <span class="bar-number">{percent(votes, signs.votes)}</span>
            <span class="bar-number count">{count(votes)}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** The report has no minutes without votes; a line through its others would draw votes that nobody cast. */
function withoutGaps(minutes: Signs["minutes"]): Signs["minutes"] {
  const known = new Map(minutes.map((minute) => [minute.timestamp, minute]));
  const last = minutes.at(-1)?.timestamp ?? 0;
  const first = Math.min(minutes[0]?.timestamp ?? 0, last - (LEAST_MINUTES - 1) * MINUTE_MS);
  const all = [];
  for (let timestamp = first; timestamp <= last; timestamp += MINUTE_MS)
    all.push(known.get(timestamp) ?? { timestamp, votes: 0, inRow: 0 });
  return all;
}
