/** The client of one account's broker. */
import { Core } from "./core.js";
import type { components } from "./operations.js";
import type { FollowOptions } from "./subscription.js";
import { Timeline, type TimelineOptions } from "./timeline.js";

export type LiveResults = components["schemas"]["LiveResults"];

export class Client extends Core {
  /** Events in time with a viewer's picture. */
  timeline(programId: string, options: TimelineOptions = {}): Timeline {
    return new Timeline(this, programId, options);
  }

  /** Live results of a program as they change, each measure at most once a second; after a pause those known. */
  async *results(programId: string, options: FollowOptions = {}): AsyncGenerator<LiveResults> {
    const known = new Map<string, LiveResults>();
    for await (const { method, params } of this.follow(`responses:${programId}`, options)) {
      if (method === "results") {
        for (const result of params.results as LiveResults[]) {
          known.set(`${result.measureName} ${result.contextId}`, result);
          yield result;
        }
      } else if (method === "resumed") {
        for (const { measureName, contextId } of [...known.values()]) {
          const path = { accountId: this.account, responseName: measureName };
          const query = { programId, ...(contextId && { contextId }) };
          // Caches on the way may have what was told before the pause.
          const headers = { "Cache-Control": "no-cache" };
          yield await this.request("GET", "/responses/{accountId}/{responseName}/results", {
            path,
            query,
            headers,
          });
        }
      }
    }
  }
}
