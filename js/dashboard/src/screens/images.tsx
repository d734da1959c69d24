/** An image as the image proxy makes it: choose a source and options, see the result and its URL. */
import { useEffect, useState } from "preact/hooks";
import { ApiError } from "../../../client/src/index.js";
import { bytes } from "../format.js";
import { useAction, useDraft } from "../hooks.js";
import { login } from "../session.js";
import { Choice, Copied, Empty, Head, Panel, Progress, Text } from "../ui.js";

interface Draft {
  source: string;
  w: string;
  h: string;
  fit: string;
  position: string;
  q: string;
  f: string;
  padding: string;
}

const NEW: Draft = { source: "", w: "400", h: "400", fit: "fill", position: "", q: "", f: "", padding: "" };
const SIZES = ["", "50", ...Array.from({ length: 20 }, (_, index) => String(100 * (index + 1)))];
const FITS = ["scaledown", "scale", "fill", "fit", "crop", "face", "face-and-shoulders"];
const POSITIONS = [
  ["", "center"],
  ...["top-left", "top", "top-right", "left", "right", "bottom-left", "bottom", "bottom-right"].map(
    (each) => [each, each] as const,
  ),
] as const;

const same = (values: readonly string[], empty: string) =>
  values.map((each) => [each, each || empty] as const);

interface Result {
  url: string;
  type: string;
  size: number;
  cache: string;
  text?: string;
}

export function ImagesScreen() {
  const [draft, setDraft] = useDraft<Draft>("image", NEW);
  const [result, setResult] = useState<Result | undefined>(undefined);
  const set = (change: Partial<Draft>) => setDraft({ ...draft, ...change });
  const path = pathOf(draft);
  const show = useAction(async () => setResult(await fetchImage(path)));
  useEffect(() => () => void (result && URL.revokeObjectURL(result.url)), [result]);
  const isFace = draft.fit.startsWith("face");
  return (
    <>
      <Head title="Images" />
      <div class="split">
        <Panel title="Result">
          {result ? (
            <div class="stack">
              {result.text ? (
                <pre tabIndex={0} aria-label="Description">
                  {result.text}
                </pre>
              ) : (
                <div class="image">
                  <img src={result.url} alt="The image as it was made" />
                </div>
              )}
              <p class="hint">
                {result.type} · {bytes(result.size)} ·{" "}
                {result.cache === "HIT" ? "from the cache" : "freshly made"}
              </p>
            </div>
          ) : (
            <Empty>Give the address of an image.</Empty>
          )}
        </Panel>
        <Panel title="Options">
          <form
            class="stack"
            onSubmit={(event) => {
              event.preventDefault();
              void show.run();
            }}
          >
            <Text
              label="Source"
              type="url"
              required
              placeholder="https://example.com/player.jpg"
              value={draft.source}
              onText={(source) => set({ source })}
            />
            <div class="row-fields">
              <Choice label="Width" value={draft.w} options={same(SIZES, "any")} onText={(w) => set({ w })} />
              <Choice
                label="Height"
                value={draft.h}
                options={same(SIZES, "any")}
                onText={(h) => set({ h })}
              />
            </div>
            <Choice label="Crop" value={draft.fit} options={same(FITS, "")} onText={(fit) => set({ fit })} />
            <div class="row-fields">
              <Choice
                label="Position"
                value={draft.position}
                disabled={draft.fit !== "fill" && draft.fit !== "fit"}
                options={POSITIONS}
                onText={(position) => set({ position })}
              />
              <Text
                label="Padding"
                type="number"
                min="1"
                max="5"
                step="0.1"
                placeholder="of the mode"
                disabled={!isFace}
                value={draft.padding}
                onText={(padding) => set({ padding })}
              />
            </div>
            <div class="row-fields">
              <Choice
                label="Format"
                value={draft.f}
                options={same(["", "jpg", "png", "webp", "gif", "json"], "of the source")}
                onText={(f) => set({ f })}
              />
              <Choice
                label="Quality"
                value={draft.q}
                options={same(
                  ["", ...Array.from({ length: 10 }, (_, index) => String(10 * (index + 1)))],
                  "85",
                )}
                onText={(q) => set({ q })}
              />
            </div>
            <div class="made">
              <code>{path}</code>
              <Copied text={location.origin + path} label="Copy URL" />
            </div>
            <Progress of={show} />
            <div class="actions end">
              <button type="submit" class="primary" disabled={show.isRunning}>
                {show.isRunning ? "Making it…" : "Show"}
              </button>
            </div>
          </form>
        </Panel>
      </div>
    </>
  );
}

function pathOf(draft: Draft): string {
  const { w, h, fit, position, q, f, padding, source } = draft;
  const place = position && (fit === "fill" || fit === "fit") ? `:${position}` : "";
  const options =
    f === "json"
      ? ["f=json"] // it describes the source and stands alone
      : [
          w && `w=${w}`,
          h && `h=${h}`,
          (w || h) && fit !== "scaledown" && `fit=${fit}${place}`,
          q && `q=${q}`,
          f && `f=${f}`,
          padding && fit.startsWith("face") && `padding=${padding}`,
        ].filter(Boolean);
  const account = encodeURIComponent(login.value?.account ?? "");
  return `/api/v2/imgproxy/${account}/${options.join(",") || "-"}?url=${encodeURIComponent(source)}`;
}

async function fetchImage(path: string): Promise<Result> {
  const reply = await fetch(path);
  if (!reply.ok) {
    const body = await reply.json().catch(() => ({}));
    const text = body.error_description ?? `It was answered with ${reply.status}`;
    throw new ApiError(reply.status, body.error ?? "", text);
  }
  const blob = await reply.blob();
  const isText = blob.type.includes("json");
  return {
    url: URL.createObjectURL(blob),
    type: blob.type,
    size: blob.size,
    cache: reply.headers.get("X-Cache") ?? "",
    ...(isText && { text: JSON.stringify(JSON.parse(await blob.text()), null, 2) }),
  };
}
