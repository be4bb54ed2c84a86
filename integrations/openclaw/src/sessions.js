/**
 * Which runs are under way in which session.
 *
 * OpenClaw names the run to its hooks, but only the session where headers are made. So every session keeps its own
 * runs, and the one that began last and has not ended speaks for the session. While the history is being summarised,
 * the session is on the side whatever its run is. Bounded: the session that was quiet longest is forgotten first.
 */

import { SIDE } from "./kinds.js";

const MAX_RUNS = 16;

export class Sessions {
  #sessions = new Map();
  #ids = new Map();
  #limit;

  constructor(limit = 1000) {
    this.#limit = limit;
  }

  /** Ties the key that some hooks know to the id that requests carry. */
  name(id, key) {
    const session = this.#touch(id);
    if (!key) return;
    if (session.key !== key) this.#unname(id, session);
    session.key = key;
    this.#ids.set(key, id);
  }

  idOf(key) {
    return this.#ids.get(key);
  }

  /** Also ends a summary that was never reported as finished, as one that failed is not. */
  beginRun(id, runId, kind) {
    const session = this.#touch(id);
    session.summarising = false;
    session.runs.delete(runId);
    session.runs.set(runId, kind);
    dropOldest(session.runs, MAX_RUNS);
  }

  /** The kind of the run that ended, or undefined if it was not known. */
  endRun(id, runId) {
    const session = this.#sessions.get(id);
    const kind = session?.runs.get(runId);
    if (session) session.summarising = false;
    session?.runs.delete(runId);
    return kind;
  }

  summarising(id, now) {
    if (now) this.#touch(id).summarising = true;
    else if (this.#sessions.has(id)) this.#sessions.get(id).summarising = false;
  }

  /** "main", "side", or undefined where no run is known. */
  kindOf(id) {
    const session = this.#sessions.get(id);
    return session?.summarising ? SIDE : [...(session?.runs.values() ?? [])].at(-1);
  }

  isRunning(id) {
    return (this.#sessions.get(id)?.runs.size ?? 0) > 0;
  }

  /** The server has seen this session. */
  served(id) {
    this.#touch(id).served = true;
  }

  /** Whether the server has seen it and is to be told that it is over. */
  forget(id) {
    const session = this.#sessions.get(id);
    if (!session) return false;
    this.#unname(id, session);
    this.#sessions.delete(id);
    return session.served;
  }

  get size() {
    return this.#sessions.size;
  }

  #touch(id) {
    const session = this.#sessions.get(id) ?? { runs: new Map(), summarising: false, served: false, key: undefined };
    this.#sessions.delete(id);
    this.#sessions.set(id, session);
    while (this.#sessions.size > this.#limit) this.forget(this.#sessions.keys().next().value);
    return session;
  }

  #unname(id, session) {
    if (this.#ids.get(session.key) === id) this.#ids.delete(session.key);
  }
}

function dropOldest(map, limit) {
  while (map.size > limit) map.delete(map.keys().next().value);
}
