import { createRoot } from "react-dom/client";
import { Client } from "../../src/index.js";
import { useConnection, useEvents, useResults } from "../../src/react.js";

const scope = window as any;
scope.heard = [];

function Score({ client, programId }: { client: Client; programId: string }) {
  const { last, isLive } = useEvents(client, programId, (event) => scope.heard.push(event.metadata.number));
  const votes = [...useResults(client, programId).values()].map(({ total }) => total);
  return `${useConnection(client)} ${isLive ? "live" : "lost"} ${last?.metadata.number ?? "none"} votes:${votes}`;
}

scope.mount = (url: string, programId: string) => {
  const root = createRoot(document.querySelector("#app")!);
  root.render(<Score client={new Client(url)} programId={programId} />);
  scope.unmount = () => root.unmount();
};
