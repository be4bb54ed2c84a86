// Keeps asking while somebody looks. A hidden page asks nothing; a server that does not answer is asked ever less often,
// up to every 15 seconds, and at once when the page is looked at again or the network is back.

const SLOWEST_MS = 15_000;
// A server that takes a connection and never answers is away, too.
const PATIENCE_MS = 12_000;

export class Poll {
  // `ask(signal)` resolves to a value. `onValue(value)`; `onTrouble(error, retryAtMs)`; both are called in order.
  constructor(ask, { everyMs, onValue, onTrouble = () => {}, patienceMs = PATIENCE_MS }) {
    this.ask = ask;
    this.everyMs = everyMs;
    this.patienceMs = patienceMs;
    this.onValue = onValue;
    this.onTrouble = onTrouble;
    this.failures = 0;
    this.timer = null;
    this.running = null;
    this.stopped = true;
    this.looked = () => (document.hidden ? this.rest() : this.now());
  }

  start() {
    this.stopped = false;
    document.addEventListener("visibilitychange", this.looked);
    window.addEventListener("online", this.looked);
    return this.now();
  }

  stop() {
    this.stopped = true;
    document.removeEventListener("visibilitychange", this.looked);
    window.removeEventListener("online", this.looked);
    this.rest();
  }

  rest() {
    clearTimeout(this.timer);
    this.running?.abort();
    this.running = null;
  }

  // Asks at once. An answer that is on its way is not waited for: it may be of before what somebody just did.
  async now() {
    this.rest();
    if (this.stopped) return;
    const running = new AbortController();
    this.running = running;
    try {
      const value = await this.ask(AbortSignal.any([running.signal, AbortSignal.timeout(this.patienceMs)]));
      if (this.running !== running) return;
      this.failures = 0;
      this.onValue(value);
      this.next(running, this.everyMs);
    } catch (thrown) {
      if (thrown.name === "AbortError" || this.running !== running) return;
      const silent = thrown.name === "TimeoutError";
      const error = silent ? Object.assign(new Error("The server does not answer."), { status: 0 }) : thrown;
      if (error.status === undefined) console.error(error);
      this.failures += 1;
      const wait = Math.min(this.everyMs * 2 ** (this.failures - 1), SLOWEST_MS) * (0.9 + 0.2 * Math.random());
      this.onTrouble(error, Date.now() + wait);
      // A refusal will be the same again; only a person can change it.
      if (error.status !== 401 && error.status !== 403) this.next(running, wait);
    }
  }

  next(running, wait) {
    if (this.stopped || this.running !== running || document.hidden) return;
    this.timer = setTimeout(() => this.now(), wait);
  }
}
