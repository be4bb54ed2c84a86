// The small things that several views show.

import { h, icon, reconcile, replace } from "./dom.js";
import { STATES, short, signed, whole, words } from "./format.js";

export function statePill(state, reason) {
  const text = reason ? `${words(state)}: ${words(reason)}` : words(state);
  return h("span", { class: `pill state-${STATES.includes(state) ? state : "other"}` }, text);
}

const VERDICTS = { 1: ["good", "+1", "good"], "-1": ["bad", "−1", "bad"], 0: ["neutral", "0", "neutral"] };

export function verdict(value) {
  if (value === null || value === undefined) return h("span", { class: "muted" }, "–");
  const [kind, sign, name] = VERDICTS[value] ?? ["neutral", String(value), "unknown"];
  return h("span", { class: `verdict ${kind}` }, h("b", {}, sign), ` ${name}`);
}

export const turnLink = (id) => h("a", { class: "mono", href: `#/turns/${encodeURIComponent(id)}`, title: id }, short(id, 12));

export const sessionLink = (name) =>
  h("a", { href: `#/sessions/${encodeURIComponent(name)}`, title: name, class: "clip" }, short(name, 26));

export const versionLink = (version) =>
  version === null || version === undefined ? "–" : h("a", { href: `#/turns?version=${version}`, title: `Turns of version ${version}` }, version);

export const stepLink = (step) =>
  step === null || step === undefined ? "–" : h("a", { href: `#/turns?step=${step}`, title: `Turns of step ${step}` }, step);

export const loading = (what) => h("p", { class: "state-note", role: "status" }, h("span", { class: "spinner" }), `Loading ${what}…`);

export const empty = (title, text) => h("div", { class: "state-note" }, h("h3", {}, title), h("p", {}, text));

// Says in `note` why something could not be loaded. Said again, it stays as it is: who is on its button stays there.
export function showFailure(note, error, retry) {
  if (note.firstElementChild?.dataset.failure === error.message) return;
  const again = retry && h("button", { type: "button", onclick: retry }, icon("again"), "Try again");
  replace(note, h("div", { class: "state-note error", role: "alert", data: { failure: error.message } },
    h("h3", {}, "This could not be loaded"), h("p", {}, error.message), again));
}

export const panel = (title, ...children) => h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), children);

export function facts(rows) {
  const list = h("dl", { class: "facts" });
  for (const [name, value] of rows) {
    if (value === undefined) continue;
    list.append(h("dt", {}, name), h("dd", {}, value ?? "–"));
  }
  return list;
}

// A table that is made anew where other columns are wanted. `columnsOf(rows)` gives them.
export function changingTable(label, columnsOf, key, options) {
  const element = h("div", {});
  let inner = null;
  let names = null;
  return {
    element,
    update(rows) {
      const columns = columnsOf(rows);
      const now = columns.map((column) => column.name).join("\n");
      if (now !== names) {
        names = now;
        inner = table(label, columns, key, options);
        replace(element, inner.element);
      }
      inner.update(rows);
    },
  };
}

// columns: [{name, cell(row), class, title}]. Returns {element, update(rows)}; rows are matched by `key`.
export function table(label, columns, key, { rowClass } = {}) {
  const body = h("tbody");
  const head = columns.map((column) => h("th", { scope: "col", class: column.class, title: column.title }, column.name));
  const grid = h("table", {}, h("caption", { class: "hidden" }, label), h("thead", {}, h("tr", {}, head)), body);
  // Wide tables scroll by themselves; the page never does sideways.
  const element = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, grid);
  const build = (row) =>
    h("tr", { class: rowClass?.(row) }, columns.map((column) => h("td", { class: column.class }, column.cell(row))));
  return { element, body, update: (rows) => reconcile(body, rows, key, build) };
}

export const verdictOf = (row) => {
  const said = verdict(row.verdict);
  if (row.reward !== null && row.reward !== undefined) said.title = `reward ${signed(row.reward)}`;
  return said;
};

// Horizontal bars with their figures beside them: [[name, count]]. `link(name)` makes a name a link.
export function bars(label, rows, link) {
  const most = Math.max(1, ...rows.map(([, count]) => count));
  const list = h("ul", { class: "bars", "aria-label": label });
  for (const [name, count] of rows) {
    const meter = h("span", { class: "bar", "aria-hidden": "true" }, h("i", {}));
    meter.firstChild.style.width = `${(100 * count) / most}%`;
    const shown = link ? h("a", { href: link(name) }, words(name)) : words(name);
    list.append(h("li", {}, h("span", {}, shown), meter, h("span", { class: "num" }, whole(count))));
  }
  return list;
}
