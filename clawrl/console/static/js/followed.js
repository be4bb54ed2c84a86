// One turn's document, asked for again only where its row in the list of turns says that something happened: the row is a few
// hundred bytes, the document has every token.

import { api } from "./api.js";

// What only the document says, above all the sentence that counts seconds and places in a queue, is seldom older. Of a turn
// at its end only late feedback can be new.
const FRESH_MS = 20_000;
const FRESH_AT_THE_END_MS = 300_000;

export const FINAL = ["trained", "dropped"];

export class Followed {
  constructor(id) {
    Object.assign(this, { id, seq: null, state: null, seen: null, at: 0 });
  }

  // Whether `row`, undefined where the list has it no more, gives a reason to fetch the document.
  isNews(row) {
    const fresh = FINAL.includes(this.state) ? FRESH_AT_THE_END_MS : FRESH_MS;
    return row?.turn_id !== this.id || this.seen !== stampOf(row) || Date.now() - this.at > fresh;
  }

  forget() {
    this.seen = null;
  }

  async fetch(signal) {
    const life = await api.turn(this.id, signal);
    Object.assign(this, { seq: life.seq, state: life.state, seen: stampOf(life), at: Date.now() });
    return life;
  }

  // The document, or null where nothing happened.
  async look(signal) {
    if (this.seq !== null) {
      const [row] = await api.turns({ before: this.seq + 1, limit: 1 }, signal);
      if (!this.isNews(row)) return null;
    }
    return this.fetch(signal);
  }
}

const stampOf = ({ state, state_at: at, drop_reason: reason }) => `${state} ${reason} ${at}`;
