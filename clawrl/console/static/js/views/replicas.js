// Who does the work: the policy's replicas, the judge, the trainer, the coordinator.

import { h, replace } from "../dom.js";
import { clock, duration, fullTime, number, plural, whole, words } from "../format.js";
import { empty, facts, panel, table } from "../widgets.js";

const KNOWN = ["replica", "version", "running", "waiting"];

export function view() {
  const note = h("div", {});
  const holder = h("div", {});
  let rows = null;
  let columns = "";
  const judge = panel("Judge");
  const trainer = panel("Trainer");
  const coordinator = panel("Coordinator");
  const publishing = panel("Publishing");
  const element = h("div", { class: "stack" }, panel("Policy replicas", note, holder), h("div", { class: "two" }, judge, trainer, coordinator, publishing));

  function onStatus(status) {
    const replicas = status.replicas ?? [];
    const extra = [...new Set(replicas.flatMap((row) => Object.keys(row)))].filter((name) => !KNOWN.includes(name)).sort();
    if (rows === null || columns !== extra.join()) {
      columns = extra.join();
      rows = table("Policy replicas", [
        { name: "Replica", cell: (row) => h("span", { class: "mono" }, row.replica) },
        { name: "Version", class: "num", cell: (row) => versionOf(row) },
        { name: "Running", class: "num", cell: (row) => whole(row.running) },
        { name: "Waiting", class: "num", cell: (row) => whole(row.waiting) },
        ...extra.map((name) => ({ name: words(name), class: "num", cell: (row) => plain(row[name]) })),
      ], (row) => row.replica);
      replace(holder, rows.element);
    }
    rows.update(replicas.map((row) => ({ ...row, behind: row.version < status.version })));
    holder.hidden = replicas.length === 0;
    replace(note, replicas.length ? [] : empty("No replica has joined", "Requests wait until one holds the current version. A start takes a while."));
    section(judge, "Judge", facts([
      ["Judged", whole(status.judge?.judged)], ["Abstained", whole(status.judge?.abstained)], ["A judgement takes", duration(status.judge?.mean_seconds)],
    ]));
    const about = status.trainer ?? {};
    section(trainer, "Trainer", facts([
      ["State", words(about.state ?? "unknown")], ["Waits", about.waits ?? "for nothing"],
      ...Object.entries(about).filter(([name, value]) => !["state", "waits"].includes(name) && (typeof value !== "object" || value === null)).map(([name, value]) => [words(name), plain(value)]),
    ]));
    section(coordinator, "Coordinator", facts([
      ["Up since", h("time", { title: fullTime(status.coordinator?.up_since) }, clock(status.coordinator?.up_since))],
      ["Process", plain(status.coordinator?.pid, true)],
      ["Counts", status.turns?.adds_up === false ? h("b", { class: "bad-text" }, "do not add up") : "add up"],
      ["Not recorded", plural(status.unrecorded ?? 0, "answer")],
      ["In journals", plural(status.journaled ?? 0, "answer")],
    ]));
    section(publishing, "Publishing", facts([
      ["Publishes", whole(status.holds_ms?.count)], ["Requests held, p50", `${number(status.holds_ms?.p50, 1)} ms`],
      ["Requests held, p95", `${number(status.holds_ms?.p95, 1)} ms`], ["Oldest version that may answer", whole(status.floor)],
    ]));
  }
  return { title: "Replicas", element, onStatus };
}

const versionOf = (row) => (row.behind ? h("span", {}, `${row.version} `, h("span", { class: "pill warn" }, "behind")) : whole(row.version));

function section(element, title, content) {
  replace(element, h("h2", {}, title), content);
}

function plain(value, bare = false) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return bare ? String(value) : number(value, Number.isInteger(value) ? 0 : 2);
  return typeof value === "object" ? JSON.stringify(value) : words(value);
}
