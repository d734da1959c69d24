// What viewers with the SDK do, in Node and in pages alike. A page has the SDK as `OnAir`.
globalThis.work = (() => {
  const nowMs = () => performance.timeOrigin + performance.now();
  /** About so long: as likely shorter as longer, by up to a third. */
  const spread = (ms) => ms * (2 / 3 + (Math.random() * 2) / 3);

  /** A class of WebSockets that `cut` ends; the next one waits until its viewer is back. */
  function cuttable(Real, viewer) {
    return class {
      constructor(url) {
        viewer.socket = this;
        this.timer = setTimeout(() => this.open(url), Math.max(0, viewer.backAt - nowMs()));
      }

      open(url) {
        this.real = new Real(url);
        for (const name of ["onopen", "onmessage", "onclose", "onerror"]) {
          this.real[name] = (event) => this[name]?.(event);
        }
      }

      send(text) {
        this.real.send(text);
      }

      close() {
        clearTimeout(this.timer);
        this.real?.close();
      }

      /** Without a word, where that is possible; pages can only close. */
      cut() {
        if (!this.real) return;
        this.real.onopen = this.real.onmessage = this.real.onclose = null;
        if (this.real.terminate) this.real.terminate();
        else this.real.close();
        this.onclose?.({ code: 1006 });
      }
    };
  }

  /** A viewer that follows a program with a client of its own, and what it got. */
  class Viewer {
    backAt = 0; // what was sent before is replayed
    #tally = { delivered: 0, doubled: 0, disordered: 0, unrecovered: 0, cuts: 0, replays: [], live: [] };
    #seen = new Set();
    #last = 0;

    constructor({ Client }, Real, { url, program, everyMs, awayMs }) {
      this.client = new Client(url, { WebSocket: cuttable(Real, this), transport: "websocket" });
      this.subscription = this.client.subscribe(program);
      this.subscription.addEventListener("event", ({ detail }) => this.#take(detail.metadata));
      this.subscription.addEventListener("live", () => this.isCutting && this.#cutSoon());
      this.subscription.addEventListener("end", ({ detail }) => detail && this.#tally.unrecovered++);
      this.everyMs = everyMs;
      this.awayMs = awayMs;
    }

    beginToCut() {
      this.isCutting = true;
      this.#cutSoon();
    }

    /** What it got, and closes it. */
    report(published) {
      this.isCutting = false;
      clearTimeout(this.timer);
      this.client.close();
      return { ...this.#tally, missing: published - this.#tally.delivered };
    }

    get delivered() {
      return this.#tally.delivered;
    }

    #cutSoon() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        this.#tally.cuts++;
        this.backAt = nowMs() + this.awayMs;
        this.socket.cut();
      }, spread(this.everyMs));
    }

    #take({ n, sent }) {
      const now = nowMs();
      if (this.#seen.has(n)) return this.#tally.doubled++;
      this.#seen.add(n);
      if (n < this.#last) this.#tally.disordered++;
      this.#last = Math.max(this.#last, n);
      this.#tally.delivered++;
      if (sent / 1000 < this.backAt) this.#tally.replays.push(now - this.backAt);
      else this.#tally.live.push(now - sent / 1000);
    }
  }

  /** Many of them. */
  class Viewers {
    constructor(sdk, Real, count, options) {
      this.all = Array.from({ length: count }, () => new Viewer(sdk, Real, options));
    }

    async ready() {
      await Promise.all(this.all.map(({ subscription }) => subscription.ready));
    }

    beginToCut() {
      for (const each of this.all) each.beginToCut();
    }

    /** Waits until all have everything, or for so long. */
    async report(published, patienceMs) {
      const end = nowMs() + patienceMs;
      while (nowMs() < end && this.all.some(({ delivered }) => delivered < published)) {
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      return this.all.map((each) => each.report(published));
    }
  }

  /** The times of the frames that the page draws meanwhile, in milliseconds. */
  function countFrames(forMs) {
    return new Promise((resolve) => {
      const times = [];
      const tick = (now) => {
        times.push(now);
        if (now - times[0] < forMs) requestAnimationFrame(tick);
        else resolve(times);
      };
      requestAnimationFrame(tick);
    });
  }

  /** What is done with every event at once, and what that came to. */
  function overlay() {
    const shown = { events: 0, last: 0, disordered: 0 };
    const text = document.querySelector("#text");
    globalThis.shown = shown;
    return ({ seq }) => {
      shown.events++;
      if (seq !== shown.last + 1) shown.disordered++;
      shown.last = seq;
      text.textContent = seq;
    };
  }

  /** An overlay that shows every event at once. */
  async function show(url, program) {
    const subscription = new OnAir.Client(url).subscribe(program);
    const draw = overlay();
    subscription.addEventListener("event", ({ detail }) => draw(detail));
    await subscription.ready;
    shown.last = subscription.cursor.seq;
  }

  /** The same with the least that a page can do: the browser's WebSocket and its JSON. */
  async function showBare(url, program) {
    const { url: gateway } = await (await fetch(`${url}/api/v1/connect`)).json();
    const socket = new WebSocket(gateway);
    const draw = overlay();
    await new Promise((resolve, reject) => {
      socket.onerror = reject;
      socket.onopen = () => socket.send(JSON.stringify({ jsonrpc: "2.0", id: 1, method: "subscribe", params: { programId: program } }));
      socket.onmessage = ({ data }) => {
        const { method, params, result } = JSON.parse(data);
        if (method === "event") return draw(params);
        shown.last = result.seq;
        resolve();
      };
    });
  }

  /** Follows so many programs, and one of them so many times; asks for the heap's size between. */
  async function weigh({ Client }, url, count, measure) {
    const client = new Client(url);
    const heard = [];
    const follow = async (programs) => {
      const before = await measure();
      const made = programs.map((program) => client.subscribe(program));
      for (const each of made) each.addEventListener("event", ({ detail }) => heard.push(detail.seq));
      await Promise.all(made.map((each) => each.ready));
      return ((await measure()) - before) / programs.length;
    };
    const numbers = Array.from({ length: count }, (_, index) => index);
    await follow(["bench-0"]); // what there is once
    const programs = await follow(numbers.slice(1).map((number) => `bench-${number}`));
    const same = await follow(numbers.map(() => "bench-0"));
    client.close();
    return { programs, same };
  }

  return { Viewers, countFrames, show, showBare, weigh };
})();
