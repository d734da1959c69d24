/** A program's name, times, project and rights. */
import { connection } from "../connection.js";
import { localTime, parseLocal, pretty } from "../format.js";
import { useAction, useDraft } from "../hooks.js";
import { JsonField, parseObject } from "../json.js";
import { ask } from "../notices.js";
import { go } from "../routes.js";
import { Choice, Panel, Progress, Text } from "../ui.js";
import type { Program } from "./program_pages.js";
import { ProjectChoice } from "./project_choice.js";

interface Draft {
  name: string;
  start: string;
  end: string;
  projectId: string;
  access: string;
  metadata: string;
}

export function SettingsTab({ program, onSaved }: { program: Program; onSaved: () => void }) {
  const client = connection.value;
  const saved: Draft = {
    name: program.name,
    start: localTime(program.scheduledStartTime),
    end: localTime(program.scheduledEndTime),
    projectId: program.projectId ?? "",
    access: program.access,
    metadata: pretty(program.metadata ?? {}),
  };
  const [draft, setDraft, dropDraft, isTyped] = useDraft<Draft>(`program ${program.id}`, saved);
  const set = (change: Partial<Draft>) => setDraft({ ...draft, ...change });
  const parsed = parseObject(draft.metadata);
  const path = { programId: program.id };
  const save = useAction(async () => {
    const body = {
      id: program.id,
      name: draft.name,
      // A time that was not touched keeps its seconds.
      scheduledStartTime: draft.start === saved.start ? program.scheduledStartTime : parseLocal(draft.start),
      scheduledEndTime: draft.end === saved.end ? program.scheduledEndTime : parseLocal(draft.end),
      projectId: draft.projectId || null,
      access: draft.access as "public" | "private",
      ...(draft.metadata !== saved.metadata && { metadata: parsed.value ?? {} }),
    };
    await client.request("PUT", "/programs/{programId}", { path, body });
    dropDraft(draft);
    onSaved();
  }, "Saved");
  const end = useAction(async () => {
    const { id, name, scheduledStartTime } = program;
    const scheduledEndTime = new Date(client.now()).toISOString();
    await client.request("PUT", "/programs/{programId}", {
      path,
      body: { id, name, scheduledStartTime, scheduledEndTime },
    });
    onSaved();
  }, "The program has ended");
  const remove = useAction(async () => {
    const isMeant = await ask({
      title: "Delete the program?",
      text: `${program.name} with all its events and answers. This cannot be undone.`,
      action: "Delete",
      typed: program.id,
      isDangerous: true,
    });
    if (!isMeant) return;
    await client.request("DELETE", "/programs/{programId}", { path });
    go("programs");
  });
  return (
    <div class="columns">
      <Panel title="Settings">
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            if (!parsed.problem) void save.run();
          }}
        >
          <Text label="Name" required maxLength={1000} value={draft.name} onText={(name) => set({ name })} />
          <div class="row-fields dates">
            <Text
              label="Starts"
              type="datetime-local"
              value={draft.start}
              onText={(start) => set({ start })}
            />
            <Text label="Ends" type="datetime-local" value={draft.end} onText={(at) => set({ end: at })} />
          </div>
          <div class="row-fields">
            <ProjectChoice value={draft.projectId} onText={(projectId) => set({ projectId })} />
            <Choice
              label="Who may follow it"
              value={draft.access}
              onText={(access) => set({ access })}
              options={[
                ["public", "Everybody"],
                ["private", "Who may read the project"],
              ]}
            />
          </div>
          <JsonField
            label="Metadata"
            rows={8}
            value={draft.metadata}
            onText={(metadata) => set({ metadata })}
          />
          <Progress of={save} />
          <div class="actions end">
            {isTyped && (
              <button type="button" class="quiet" onClick={() => dropDraft()}>
                Throw away
              </button>
            )}
            <button type="submit" class="primary" disabled={!isTyped || save.isRunning || !!parsed.problem}>
              {save.isRunning ? "Saving…" : "Save"}
            </button>
          </div>
        </form>
      </Panel>
      <Panel title="End and delete">
        <div class="actions">
          <button type="button" disabled={!program.live || end.isRunning} onClick={() => end.run()}>
            End it now
          </button>
          <button type="button" class="danger" disabled={remove.isRunning} onClick={() => remove.run()}>
            Delete the program
          </button>
        </div>
        <Progress of={end} />
        <Progress of={remove} />
      </Panel>
    </div>
  );
}
