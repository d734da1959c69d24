/** A way to the gateway that a test can cut. */
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import type { TestContext } from "node:test";

/** Carries bytes to the gateway until its link is cut. */
export class Relay {
  /** The client's ends of its connections. */
  readonly taken: Socket[] = [];
  /** Whether a sign of life has been carried. */
  isAlive = false;
  #far: Socket[] = [];
  readonly #cut = new Set<Socket>();
  #isUp = true;
  readonly #server = createServer((socket) => this.#take(socket));

  constructor(readonly target: URL) {}

  async open(t: TestContext): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    t.after(() => {
      this.#server.close();
      for (const each of [...this.taken, ...this.#far]) each.destroy();
    });
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Loses what is sent over the present connections, in both directions. */
  cut(): void {
    for (const each of this.taken) this.#cut.add(each);
  }

  /** Loses what is sent over new connections too. */
  cutForGood(): void {
    this.cut();
    this.#isUp = false;
  }

  #take(near: Socket): void {
    const far = connect(Number(this.target.port), "127.0.0.1");
    this.taken.push(near);
    this.#far.push(far);
    if (!this.#isUp) this.#cut.add(near);
    const isCut = () => this.#cut.has(near);
    near.on("data", (bytes) => isCut() || far.write(bytes));
    far.on("data", (bytes) => {
      if (isCut()) return;
      near.write(bytes);
      this.isAlive ||= bytes.includes("alive");
    });
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      one.on("error", () => {});
      one.on("close", () => isCut() || other.destroy());
    }
  }
}
