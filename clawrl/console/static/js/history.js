// Rows that are only added at the new end (steps, versions), as far back as somebody looked, without a hole.

// `ask({before, limit}, signal)` resolves to rows, newest first; `number(row)` is what `before` speaks of.
export class History {
  // `most` are kept; more than `missed` that came while nobody looked are not fetched at once.
  constructor(ask, number, { page = 200, newest = 50, most = 5000, missed = 2000 } = {}) {
    Object.assign(this, { ask, number, page, newest, most, missed, known: new Map(), reachedStart: false });
  }

  // Oldest first.
  get rows() {
    return [...this.known.values()].sort((a, b) => this.number(a) - this.number(b));
  }

  get more() {
    return this.known.size > 0 && !this.reachedStart && this.known.size < this.most;
  }

  // The newest rows, as they are now, and whatever came since somebody last looked.
  async refresh(signal) {
    const limit = this.known.size ? this.newest : this.page;
    // The start of an empty history says nothing of what came since.
    if (!this.known.size) this.reachedStart = false;
    let page = await this.ask({ limit }, signal);
    let found = page;
    let ended = found.length < limit;
    while (!ended && this.known.size && !this.knows(page.at(-1))) {
      if (found.length >= this.missed) {
        // What was known would stand beyond a hole.
        this.known.clear();
        this.reachedStart = false;
        break;
      }
      page = await this.ask({ before: this.number(found.at(-1)), limit: this.page }, signal);
      ended = page.length < this.page;
      found = [...found, ...page];
    }
    this.take(found, ended);
  }

  // As it is: a restored checkpoint or a new one changes more rows than came.
  knows(row) {
    const oldest = Math.min(...this.known.keys());
    return this.number(row) < oldest || JSON.stringify(this.known.get(this.number(row))) === JSON.stringify(row);
  }

  async older(signal) {
    const oldest = Math.min(...this.known.keys());
    const found = await this.ask({ before: oldest, limit: this.page }, signal);
    // What came meanwhile may have pushed the oldest out.
    if (this.known.has(oldest)) this.take(found, found.length < this.page);
  }

  take(found, ended) {
    for (const row of found) this.known.set(this.number(row), row);
    if (ended) this.reachedStart = true;
    const over = this.known.size - this.most;
    if (over <= 0) return;
    this.reachedStart = false;
    for (const row of this.rows.slice(0, over)) this.known.delete(this.number(row));
  }
}
