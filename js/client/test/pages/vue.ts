import { createApp, defineComponent } from "vue";
import { Client } from "../../src/index.js";
import { useConnection, useEvents, useResults } from "../../src/vue.js";

const scope = window as any;
scope.heard = [];

scope.mount = (url: string, programId: string) => {
  const client = new Client(url);
  const Score = defineComponent({
    setup() {
      const { last, isLive } = useEvents(client, programId, (event) =>
        scope.heard.push(event.metadata.number),
      );
      const state = useConnection(client);
      const results = useResults(client, programId);
      const votes = () => [...results.value.values()].map(({ total }) => total);
      return () =>
        `${state.value} ${isLive.value ? "live" : "lost"} ${last.value?.metadata.number ?? "none"} votes:${votes()}`;
    },
  });
  const app = createApp(Score);
  app.mount("#app");
  scope.unmount = () => app.unmount();
};
