/**
 * A revision as it would look on air: the overlay in a frame, with the content that is being edited.
 *
 * The overlay is told by messages, sent to this broker's own origin only. It draws and reads nothing by itself: the
 * token stays in this page, and private programs are seen as well.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { connection } from "../connection.js";
import { useLoaded } from "../hooks.js";
import { Choice, Failure, Panel } from "../ui.js";

const LOOKBACK_MS = 12 * 3_600_000; // as far as an overlay looks back by itself
const AGAIN_MS = 3_000;
const CHOICES = 200; // of the newest programs; nobody picks from thousands

/** What is on where no program is chosen: something in every graphic. */
const SAMPLE = [
  { id: "1", event: "Score#show", metadata: { home: 2, away: 1, homeTeam: "NOR", awayTeam: "SOU" } },
  { id: "2", event: "Clock#start", metadata: { clock: "67:12" } },
  { id: "3", event: "LowerThird#show", metadata: { name: "Kim Berg", title: "Head coach" } },
  {
    id: "4",
    event: "Poll#show",
    metadata: {
      title: "Who wins?",
      options: [
        { label: "North", votes: 640 },
        { label: "South", votes: 360 },
      ],
    },
  },
];

export function Preview({
  projectId,
  content,
}: {
  projectId: string;
  /** Undefined while it is no JSON; what was seen before stays. */
  content: Record<string, unknown> | undefined;
}) {
  const client = connection.value;
  const frame = useRef<HTMLIFrameElement>(null);
  const [isReady, setReady] = useState(false);
  const [programId, setProgramId] = useState("");
  const [error, setError] = useState<unknown>(undefined);
  const programs = useLoaded(
    () => client.request("GET", "/projects/{projectId}/programs", { path: { projectId } }),
    [client, projectId],
  );
  const tell = (told: Record<string, unknown>) =>
    frame.current?.contentWindow?.postMessage({ type: "onair:preview", ...told }, location.origin);

  const written = JSON.stringify(content);
  useEffect(() => {
    if (isReady && written) tell({ account: client.account, content: JSON.parse(written) });
  }, [isReady, written]);

  useEffect(() => {
    if (!isReady) return undefined;
    setError(undefined);
    tell({ isNew: true, events: programId ? [] : SAMPLE });
    if (!programId) return undefined;
    const control = new AbortController();
    const { signal } = control;
    const follow = async () => {
      const timeline = client.timeline(programId, {
        signal,
        lookbackMs: LOOKBACK_MS,
        onSeek: ({ reason }) => {
          if (reason !== "forward") tell({ isNew: true });
        },
      });
      for await (const event of timeline) tell({ events: [event] });
    };
    const count = async () => {
      for await (const counts of client.results(programId, { signal })) tell({ counts });
    };
    for (const work of [follow, count]) void forever(work, signal, setError);
    return () => control.abort();
  }, [isReady, client, programId]);

  return (
    <Panel
      title="Preview"
      actions={
        <Choice
          label="With the events of"
          value={programId}
          options={[
            ["", "A sample"],
            ...(programs.value ?? []).slice(0, CHOICES).map(({ id, name }) => [id, name || id] as const),
          ]}
          onText={setProgramId}
        />
      }
    >
      <Failure error={programs.error ?? error} />
      <iframe ref={frame} class="preview" title="Overlay" src="../overlay/" onLoad={() => setReady(true)} />
      <p class="hint">
        {content
          ? "As it would be on air over video. Viewers see it once it is published."
          : "The content is no JSON just now; this is how it was before."}
      </p>
    </Panel>
  );
}

/** Goes on after a failure, until the preview is closed. */
async function forever(
  work: () => Promise<void>,
  signal: AbortSignal,
  onError: (error: unknown) => void,
): Promise<void> {
  while (!signal.aborted) {
    try {
      await work();
    } catch (error) {
      if (!signal.aborted) onError(error);
    }
    if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}
