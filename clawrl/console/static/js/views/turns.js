// The turn table: filters that live in the address, newest first, page by page. The newest page is live.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { REASONS, STATES, clock, fullTime, number, signed, whole, words } from "../format.js";
import { bind } from "../keys.js";
import { Poll } from "../live.js";
import { Pages, empty, loading, sessionLink, showFailure, statePill, stepLink, table, turnLink, verdictOf, versionLink } from "../widgets.js";

const PAGE = 50;

export const turnColumns = (withSession = true) => [
  { name: "When", cell: (row) => h("time", { title: fullTime(row.finished_at) }, clock(row.finished_at)) },
  { name: "Turn", cell: (row) => turnLink(row.turn_id) },
  { name: "State", cell: (row) => statePill(row.state, row.drop_reason) },
  { name: "Verdict", cell: verdictOf },
  { name: "Reward", class: "num", cell: (row) => (row.reward === null || row.reward === undefined ? "–" : signed(row.reward)) },
  { name: "Score", class: "num", title: "The judge's score", cell: (row) => number(row.score) },
  { name: "Hints", class: "num", cell: (row) => (row.hints ? whole(row.hints) : "–") },
  { name: "Version", class: "num", cell: (row) => versionLink(row.version) },
  { name: "Step", class: "num", cell: (row) => stepLink(row.step) },
  { name: "Tokens", class: "num", title: "Prompt + answer", cell: (row) => `${whole(row.prompt_tokens)} + ${whole(row.response_tokens)}` },
  ...(withSession ? [{ name: "Session", cell: (row) => sessionLink(row.session) }] : []),
];

export function view(ctx, _, query) {
  const state = choice("state", "State", STATES, query.get("state"));
  const reason = choice("reason", "Dropped because", REASONS, query.get("reason"));
  const session = text("session", "Session", query.get("session"), { type: "search", placeholder: "name of a session" });
  const version = text("version", "Version", query.get("version"), { inputmode: "numeric", pattern: "[0-9]*", size: 6 });
  const step = text("step", "Step", query.get("step"), { inputmode: "numeric", pattern: "[0-9]*", size: 6 });
  const fields = [state, reason, session, version, step];
  const clear = h("button", { type: "button", onclick: () => (location.hash = "#/turns") }, "Clear");
  const form = h("form", { class: "filters", role: "search", "aria-label": "Filters" }, fields.map((field) => field.element),
    h("div", { class: "buttons" }, h("button", { class: "primary", type: "submit" }, "Filter"), clear));
  const note = h("div", {}, loading("turns"));
  const rows = table("Turns", turnColumns(), (row) => row.turn_id, { rowClass: () => "row" });
  rows.element.hidden = true;
  const pages = new Pages(() => {
    note.replaceChildren(loading("turns"));
    restart();
  });
  const element = h("div", { class: "stack" }, h("section", { class: "panel", "aria-label": "Turns" }, form, note, rows.element, pages.element));

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  for (const field of [state, reason]) field.input.addEventListener("change", () => go(field));

  // A reason belongs to dropped turns: the field that was changed last wins.
  function go(changed) {
    const values = Object.fromEntries(fields.map((field) => [field.name, field.input.value.trim()]));
    if (values.reason && values.state && values.state !== "dropped") values[changed === reason ? "state" : "reason"] = "";
    const asked = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
    const hash = `#/turns${asked.size ? `?${asked}` : ""}`;
    if (hash === location.hash) poll.now();
    else location.hash = hash;
  }

  const filtered = fields.some((field) => query.get(field.name));
  const asked = () => ({ ...Object.fromEntries(query), before: pages.cursor, limit: PAGE });
  const poll = new Poll((signal) => api.turns(asked(), signal), {
    everyMs: 3000,
    onValue(found) {
      rows.update(found);
      rows.element.hidden = found.length === 0;
      pages.shown(found, PAGE, "turn");
      replace(note, found.length ? [] : nothing());
      // An older page holds what it held.
      if (pages.cursor !== null) poll.rest();
    },
    onTrouble: (error) => rows.element.hidden && showFailure(note, error, () => poll.now()),
  });
  const nothing = () =>
    filtered
      ? empty("No turn fits", "Take a filter away, or look for another state.")
      : empty("No turns yet", "Every answer that is served becomes a turn. Chat here, or point a client at this server.");

  const restart = () => poll.now();
  let unbind = [];
  return {
    title: "Turns",
    element,
    start() {
      poll.start();
      unbind = [bind("/", () => session.input.focus()), ...rowKeys(rows.body)];
    },
    stop() {
      poll.stop();
      unbind.forEach((undo) => undo());
    },
  };
}

// j and k go from row to row; Enter follows the link that has the focus.
export function rowKeys(body) {
  const links = () => [...body.querySelectorAll("tr")].map((row) => row.querySelector("a"));
  const move = (by) => () => {
    const all = links();
    const at = all.findIndex((link) => link?.closest("tr").contains(document.activeElement));
    all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
  };
  return [bind("j", move(1)), bind("k", move(-1))];
}

function choice(name, label, values, chosen) {
  const input = h("select", { id: `f-${name}`, name }, h("option", { value: "" }, "any"),
    values.map((value) => h("option", { value, selected: value === chosen }, words(value))));
  return { name, input, element: h("div", { class: "field" }, h("label", { for: `f-${name}` }, label), input) };
}

function text(name, label, value, attributes) {
  const input = h("input", { id: `f-${name}`, name, autocomplete: "off", value: value ?? "", ...attributes });
  return { name, input, element: h("div", { class: "field" }, h("label", { for: `f-${name}` }, label), input) };
}
