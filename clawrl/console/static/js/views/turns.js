// The turn table: filters that live in the address, newest first, page by page. The newest page is live.

import { api } from "../api.js";
import { h } from "../dom.js";
import { REASONS, STATES, clock, fullTime, number, signed, whole, words } from "../format.js";
import { bind } from "../keys.js";
import { paged } from "../paging.js";
import { empty, sessionLink, statePill, stepLink, turnLink, verdictOf, versionLink } from "../widgets.js";

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
  const state = choice("state", "State", STATES);
  const reason = choice("reason", "Dropped because", REASONS);
  const session = text("session", "Session", { type: "search", placeholder: "name of a session" });
  const version = text("version", "Version", { inputmode: "numeric", pattern: "[0-9]*", size: 6 });
  const step = text("step", "Step", { inputmode: "numeric", pattern: "[0-9]*", size: 6 });
  const fields = [state, reason, session, version, step];
  const clear = h("button", { type: "button", onclick: () => (location.hash = "#/turns") }, "Clear");
  const form = h("form", { class: "filters", role: "search", "aria-label": "Filters" }, fields.map((field) => field.element),
    h("div", { class: "buttons" }, h("button", { class: "primary", type: "submit" }, "Filter"), clear));
  const list = paged("turns", "Turns", turnColumns(), (row) => row.turn_id, {
    ask: (page, signal) => api.turns({ ...Object.fromEntries(query), ...page }, signal),
    nothing: () =>
      fields.some((field) => query.get(field.name))
        ? empty("No turn fits", "Take a filter away, or look for another state.")
        : empty("No turns yet", "Every answer that is served becomes a turn. Chat here, or point a client at this server."),
    everyMs: 3000,
  });
  const element = h("div", { class: "stack" }, h("section", { class: "panel", "aria-label": "Turns" }, form, list.parts));
  fillIn();

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
    if (hash === location.hash) list.again();
    else location.hash = hash;
  }

  function fillIn() {
    for (const { name, input } of fields) {
      const value = query.get(name) ?? "";
      if (input.value !== value) input.value = value;
    }
  }

  let unbind = () => {};
  return {
    title: "Turns",
    element,
    onQuery(asked) {
      query = asked;
      fillIn();
      list.restart();
    },
    start() {
      list.start();
      unbind = bind("/", () => session.input.focus());
    },
    stop() {
      list.stop();
      unbind();
    },
  };
}

function choice(name, label, values) {
  const input = h("select", { id: `f-${name}`, name }, h("option", { value: "" }, "any"), values.map((value) => h("option", { value }, words(value))));
  return { name, input, element: h("div", { class: "field" }, h("label", { for: `f-${name}` }, label), input) };
}

function text(name, label, attributes) {
  const input = h("input", { id: `f-${name}`, name, autocomplete: "off", ...attributes });
  return { name, input, element: h("div", { class: "field" }, h("label", { for: `f-${name}` }, label), input) };
}
