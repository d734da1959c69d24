/** One of the projects that the user sees, or none. */
import { connection } from "../connection.js";
import { useLoaded } from "../hooks.js";
import { Choice, Failure } from "../ui.js";

export function ProjectChoice({
  value,
  onText,
  label = "Project",
  disabled = false,
}: {
  value: string;
  onText: (id: string) => void;
  label?: string;
  disabled?: boolean;
}) {
  const client = connection.value;
  const projects = useLoaded(() => client.request("GET", "/projects"), [client]);
  const known = projects.value ?? [];
  const options = known.map(({ id, name }) => [id, name] as const);
  // What is set stays to be chosen, also where the list cannot be read.
  if (value && !known.some(({ id }) => id === value)) options.push([value, value]);
  return (
    <>
      <Choice
        label={label}
        value={value}
        disabled={disabled}
        onText={onText}
        options={[["", "None"], ...options]}
      />
      <Failure error={projects.error}>
        <button type="button" class="small" onClick={projects.reload}>
          Try again
        </button>
      </Failure>
    </>
  );
}
