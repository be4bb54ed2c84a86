// Conversations: who talks, how much, and what became of the turns. One of them in full is its turns.

import { api } from "../api.js";
import { h, reconcile } from "../dom.js";
import { STATES, clock, fullTime, short, whole, words } from "../format.js";
import { paged } from "../paging.js";
import { empty, facts, panel, sessionLink, statePill, turnLink } from "../widgets.js";
import { turnColumns } from "./turns.js";

const counts = (row) => h("span", { class: "counts" }, STATES.filter((state) => row.by_state?.[state]).map((state) =>
  h("span", { class: `count state-${state}`, title: `${row.by_state[state]} ${words(state)}` }, `${whole(row.by_state[state])} ${words(state)}`)));

const COLUMNS = [
  { name: "Session", cell: (row) => sessionLink(row.session) },
  { name: "Owner", cell: (row) => h("span", { class: "mono muted", title: row.owner }, short(row.owner, 9)) },
  { name: "Last answer", cell: (row) => h("time", { title: fullTime(row.last_at) }, clock(row.last_at)) },
  { name: "Turns", class: "num", cell: (row) => `${whole(row.turns)}${row.more_turns ? "+" : ""}` },
  { name: "What became of them", cell: counts },
  { name: "Now", cell: (row) => (row.active ? h("span", { class: "pill live" }, "waits for a reply") : h("span", { class: "muted" }, "rests")) },
  { name: "Newest turn", cell: (row) => turnLink(row.last_turn) },
];

export function view(ctx, [name]) {
  return name === undefined ? all() : one(name);
}

function all() {
  const list = paged("sessions", "Sessions", COLUMNS, (row) => `${row.owner} ${row.session}`, {
    ask: api.sessions,
    nothing: () => empty("No sessions yet", "A session begins with the first request that belongs to no earlier one."),
  });
  return { title: "Sessions", element: h("div", { class: "stack" }, panel("Conversations", list.parts)), start: list.start, stop: list.stop };
}

function one(name) {
  const about = h("div", { class: "stack" });
  const list = paged("turns", `Turns of session ${name}`, turnColumns(false), (row) => row.turn_id, {
    ask: (page, signal) => api.session(name, page, signal),
    nothing: () => empty("No turns", "They may have been removed with the oldest finished ones."),
    rowsOf(answer) {
      reconcile(about, answer.of, (row) => row.owner, aboutOf);
      return answer.turns;
    },
  });
  const element = h("div", { class: "stack" }, h("p", {}, h("a", { href: "#/sessions" }, "← All sessions")),
    h("h2", {}, name), about, panel("Turns", list.parts));
  return { title: "Session", element, start: list.start, stop: list.stop };
}

const aboutOf = (row) => h("section", { class: "panel", "aria-label": `Session of owner ${row.owner}` }, facts([
  ["Owner", h("span", { class: "mono" }, row.owner)],
  ["Named by the client", row.named ? "yes" : "no, it was recognised by what was said"],
  ["Turns", `${whole(row.turns)}${row.more_turns ? "+" : ""}`],
  ["Became", h("span", { class: "counts" }, STATES.filter((state) => row.by_state?.[state]).map((state) => [statePill(state), ` ${whole(row.by_state[state])} `]))],
  ["First answer", h("time", { title: fullTime(row.first_at) }, clock(row.first_at))],
  ["Last answer", h("time", { title: fullTime(row.last_at) }, clock(row.last_at))],
]));
