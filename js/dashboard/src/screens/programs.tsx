/** Programs: what is live now, and all that the user may see. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { connection } from "../connection.js";
import { dateTime, compact, count } from "../format.js";
import { useAction, useLoaded, useSettled } from "../hooks.js";
import { useKeys } from "../keys.js";
import { go, to } from "../routes.js";
import { isPublisher, isReader } from "../session.js";
import {
  Badge,
  Check,
  Choice,
  Dialog,
  DialogFoot,
  Empty,
  Failure,
  Head,
  Loading,
  Panel,
  Progress,
  Shown,
  Tally,
  Text,
} from "../ui.js";
import { VirtualList } from "../virtual.js";
import { type Program, usePages } from "./program_pages.js";
import { ProjectChoice } from "./project_choice.js";

const LIVE_MS = 5_000;
const CARDS = 12;

export function ProgramsScreen() {
  const [isMaking, setMaking] = useState(false);
  useKeys(
    "Programs",
    isPublisher.value ? [{ keys: "n", text: "Make a program", run: () => setMaking(true) }] : [],
  );
  return (
    <>
      <Head title="Programs">
        {isPublisher.value && (
          <button type="button" class="primary" onClick={() => setMaking(true)}>
            New program
          </button>
        )}
      </Head>
      {isReader.value && <LiveNow />}
      {isPublisher.value ? <Search /> : isReader.value ? <Readable /> : <ById />}
      {isMaking && <NewProgram onClose={() => setMaking(false)} />}
    </>
  );
}

function LiveNow() {
  const { request } = useMemo(() => ({ request: connection.value }), []);
  const live = useLoaded(
    async () => {
      const [programs, now] = await Promise.all([
        request.request("GET", "/statistics/livePrograms"),
        request.request("GET", "/statistics/dashboard"),
      ]);
      return { programs, now };
    },
    [],
    LIVE_MS,
  );
  return (
    <Panel title="On air now">
      <Shown of={live}>
        {({ programs, now }) =>
          programs.length ? (
            <>
              <ul class="cards">
                {programs.slice(0, CARDS).map((program) => {
                  const top = now.topPrograms.find((each) => each.programId === program.id);
                  return (
                    <li key={program.id}>
                      <a class="card" href={to("programs", program.id)}>
                        <span class="card-head">
                          <strong>{program.name}</strong>
                          <Tally isLive />
                        </span>
                        <span class="numbers">
                          <span>
                            <b>{compact(top?.subscribers ?? 0)}</b>{" "}
                            {top?.subscribers === 1 ? "viewer" : "viewers"}
                          </span>
                          <span>until {dateTime(program.scheduledEndTime)}</span>
                        </span>
                      </a>
                    </li>
                  );
                })}
              </ul>
              {programs.length > CARDS && (
                <p class="hint">{count(programs.length - CARDS)} more are on air; the list below has all.</p>
              )}
            </>
          ) : (
            <Empty>No program is on air.</Empty>
          )
        }
      </Shown>
    </Panel>
  );
}

/** All programs that the user may publish to. */
function Search() {
  const [search, setSearch] = useState("");
  const [status, setStatus] = useState("");
  const settled = useSettled(search, 250);
  const pages = usePages(settled, status);
  // A row of the list as it was then: it moves as programs come and go.
  const [selected, setSelected] = useState<{ row: number; arrived: number } | undefined>(undefined);
  useEffect(() => setSelected(undefined), [settled, status]);
  return (
    <Panel
      title="All programs"
      actions={<span class="hint">{pages.total === undefined ? "" : `${count(pages.total)} found`}</span>}
    >
      <div class="filters">
        <Text label="Search" type="search" placeholder="Name or id" value={search} onText={setSearch} />
        <Choice
          label="Status"
          value={status}
          onText={setStatus}
          options={[
            ["", "Any"],
            ["live", "Live"],
            ["scheduled", "Scheduled"],
            ["ended", "Ended"],
          ]}
        />
      </div>
      {pages.error != null && (
        <Failure error={pages.error}>
          <button type="button" class="small" onClick={pages.retry}>
            Try again
          </button>
        </Failure>
      )}
      {pages.total === undefined ? (
        pages.error == null && <Loading />
      ) : pages.total === 0 ? (
        <Empty>{settled || status ? "No program is like this." : "There is no program yet."}</Empty>
      ) : (
        <VirtualList
          label="Programs"
          class="programs"
          count={pages.total}
          rowPx={44}
          keyOf={(index) => pages.items.get(index)?.id ?? index}
          arrived={pages.arrived}
          selected={selected && selected.row + pages.arrived - selected.arrived}
          onSelect={(row) => setSelected({ row, arrived: pages.arrived })}
          onOpen={(index) => {
            const program = pages.items.get(index);
            if (program) go("programs", program.id);
          }}
          onRange={pages.need}
          render={(index) => <Row program={pages.items.get(index)} />}
        />
      )}
    </Panel>
  );
}

function Row({ program }: { program: Program | undefined }) {
  if (!program) return <span class="hint">…</span>;
  return (
    <>
      <span class="grow">
        <strong>{program.name}</strong>
      </span>
      <Tally isLive={program.live} />
      {program.access === "private" && <Badge>Private</Badge>}
      <code class="wide">{program.id}</code>
      <span class="when wide">{dateTime(program.scheduledStartTime)}</span>
    </>
  );
}

/** The programs of the user's projects, for who may not publish. */
function Readable() {
  const client = connection.value;
  const programs = useLoaded(async () => {
    const projects = await client.request("GET", "/projects");
    const lists = projects.map(({ id }) =>
      client.request("GET", "/projects/{projectId}/programs", { path: { projectId: id } }),
    );
    return (await Promise.all(lists)).flat();
  }, [client]);
  return (
    <Panel title="Programs of your projects">
      <Shown of={programs}>{(all) => <ProgramList programs={all} />}</Shown>
    </Panel>
  );
}

/** Programs that were read, any number of them, with a search. */
export function ProgramList({ programs }: { programs: readonly Program[] }) {
  const [search, setSearch] = useState("");
  const [selected, setSelected] = useState<number | undefined>(undefined);
  const wanted = search.toLowerCase();
  const found = useMemo(
    () => programs.filter(({ id, name }) => `${id} ${name}`.toLowerCase().includes(wanted)),
    [programs, wanted],
  );
  return (
    <>
      <div class="filters">
        <Text label="Search" type="search" placeholder="Name or id" value={search} onText={setSearch} />
      </div>
      {found.length ? (
        <VirtualList
          label="Programs"
          class="programs"
          count={found.length}
          rowPx={44}
          keyOf={(index) => found[index]?.id ?? index}
          selected={selected}
          onSelect={setSelected}
          onOpen={(index) => go("programs", found[index]?.id ?? "")}
          render={(index) => <Row program={found[index]} />}
        />
      ) : (
        <Empty>No program is like this.</Empty>
      )}
    </>
  );
}

/** For who may list nothing. */
function ById() {
  const [id, setId] = useState("");
  return (
    <Panel title="Open a program">
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          go("programs", id.trim());
        }}
      >
        <Text label="Program id" required value={id} onText={setId} />
        <button type="submit" class="primary">
          Open
        </button>
      </form>
    </Panel>
  );
}

function NewProgram({ onClose }: { onClose: () => void }) {
  const [id, setId] = useState("");
  const [name, setName] = useState("");
  const [projectId, setProjectId] = useState("");
  const [hours, setHours] = useState("3");
  const [isNow, setNow] = useState(true);
  const [isPrivate, setPrivate] = useState(false);
  const client = connection.value;
  const action = useAction(async () => {
    const start = Date.now();
    const end = start + Number(hours) * 3_600_000;
    const times = isNow && {
      scheduledStartTime: new Date(start).toISOString(),
      scheduledEndTime: new Date(end).toISOString(),
    };
    const body = {
      id: id.trim(),
      name,
      access: isPrivate ? ("private" as const) : ("public" as const),
      ...(projectId && { projectId }),
      ...times,
    };
    const made = await client.request("POST", "/programs", { body });
    onClose();
    go("programs", made.id);
  }, "The program was made");
  return (
    <Dialog title="New program" onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
        <Text
          label="Name"
          required
          value={name}
          maxLength={1000}
          onText={(text) => {
            if (id === slug(name)) setId(slug(text));
            setName(text);
          }}
        />
        <Text
          label="Id"
          required
          value={id}
          maxLength={128}
          onText={setId}
          hint="Overlays and clients name the program by it; it never changes."
        />
        <ProjectChoice value={projectId} onText={setProjectId} />
        <Check label="On air from now" checked={isNow} onCheck={setNow} />
        {isNow && (
          <Text label="Hours on air" type="number" min="0.1" step="0.1" value={hours} onText={setHours} />
        )}
        <Check
          label="Private: only who may read the project follows it"
          checked={isPrivate}
          onCheck={setPrivate}
        />
        <Progress of={action} />
        <DialogFoot onCancel={onClose} submit="Make it" isRunning={action.isRunning} />
      </form>
    </Dialog>
  );
}

function slug(name: string): string {
  const plain = name.normalize("NFKD").replace(/[\u0300-\u036f]/g, "");
  return plain
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 128);
}
