// Tables that go back in time page by page: the newest page is live, older ones stand still.

import { h, replace } from "./dom.js";
import { plural } from "./format.js";
import { bind } from "./keys.js";
import { Poll } from "./live.js";
import { loading, showFailure, table } from "./widgets.js";

const PAGE = 50;

class Pages {
  constructor(onMove) {
    this.before = [];
    this.onMove = onMove;
    this.newer = h("button", { type: "button", onclick: () => this.move(-1) }, "Newer");
    this.older = h("button", { type: "button", onclick: () => this.move(1) }, "Older");
    this.where = h("span", { class: "muted", "aria-live": "polite" });
    this.element = h("nav", { class: "pages", "aria-label": "Pages" }, this.newer, this.where, this.older);
    this.next = null;
  }

  get cursor() {
    return this.before.at(-1) ?? null;
  }

  reset() {
    this.before = [];
    this.next = null;
  }

  // Where the page after an older one begins is not known before that one is there.
  move(by) {
    if (by > 0 && this.next === null) return;
    if (by > 0) this.before.push(this.next);
    else this.before.pop();
    this.next = null;
    // Also from a page that cannot be loaded there is a way back.
    if (this.before.length) this.newer.disabled = false;
    this.onMove();
  }

  shown(rows, what) {
    this.next = rows.length >= PAGE ? rows.at(-1).seq : null;
    const focused = document.activeElement;
    this.newer.disabled = this.before.length === 0;
    this.older.disabled = this.next === null;
    // Who came to the end by the keyboard is not thrown off the page.
    if (this.newer === focused && this.newer.disabled) this.older.focus();
    if (this.older === focused && this.older.disabled) this.newer.focus();
    const place = this.before.length ? `page ${this.before.length + 1}` : "newest";
    const text = `${plural(rows.length, what)}, ${place}`;
    if (this.where.textContent !== text) this.where.textContent = text;
  }
}

// `ask({before, limit}, signal)` resolves to rows, or to what `rowsOf` takes rows from; `nothing()` is shown where there are
// none. `restart()` begins anew at the newest page, as after another filter.
export function paged(what, label, columns, key, { ask, nothing, rowsOf = (answer) => answer, everyMs = 4000 }) {
  const note = h("div", {});
  const rows = table(label, columns, key);
  const pages = new Pages(again);
  // What is in the table belongs to another page, or to nothing yet.
  let awaited = true;
  const poll = new Poll((signal) => ask({ before: pages.cursor, limit: PAGE }, signal), {
    everyMs,
    onValue(answer) {
      const found = rowsOf(answer);
      const inside = rows.element.contains(document.activeElement);
      awaited = false;
      rows.element.hidden = found.length === 0;
      rows.update(found);
      if (inside && !rows.element.contains(document.activeElement)) rows.element.focus();
      pages.shown(found, what.replace(/s$/, ""));
      replace(note, found.length ? [] : nothing());
      // An older page holds what it held.
      if (pages.cursor !== null) poll.rest();
    },
    onTrouble(error) {
      if (!awaited) return;
      rows.element.hidden = true;
      showFailure(note, error, error.status === 404 ? null : () => poll.now());
    },
  });
  let unbind = [];
  wait();

  function wait() {
    awaited = true;
    rows.element.hidden = rows.body.childElementCount === 0;
    replace(note, loading(what));
  }

  function again() {
    wait();
    poll.now();
  }

  return {
    parts: [note, rows.element, pages.element],
    again: () => poll.now(),
    restart() {
      pages.reset();
      again();
    },
    start() {
      poll.start();
      unbind = rowKeys(rows.body);
    },
    stop() {
      poll.stop();
      unbind.forEach((undo) => undo());
    },
  };
}

// j and k go from row to row; Enter follows the link that has the focus.
function rowKeys(body) {
  const links = () => [...body.querySelectorAll("tr")].map((row) => row.querySelector("a"));
  const move = (by) => () => {
    const all = links();
    const at = all.findIndex((link) => link?.closest("tr").contains(document.activeElement));
    all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
  };
  return [bind("j", move(1)), bind("k", move(-1))];
}
