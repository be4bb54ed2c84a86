// Every version that was published, which of them can serve again, and the two ways to change what serves.

import { api } from "../api.js";
import { h, icon, replace } from "../dom.js";
import { clock, fullTime, number, whole } from "../format.js";
import { ask, notice } from "../dialogs.js";
import { History } from "../history.js";
import { Poll } from "../live.js";
import { measureColumns, measuresIn } from "../measures.js";
import { changingTable, empty, loading, showFailure, stepLink, versionLink } from "../widgets.js";

const PAGE = 50;

export function view(ctx) {
  const versions = new History(api.versions, (row) => row.version, { page: PAGE });
  const columnsOf = (found) => [
    { name: "Version", class: "num", cell: (row) => versionLink(row.version) },
    { name: "Standing", cell: marks },
    { name: "Step", class: "num", cell: (row) => stepLink(row.step) },
    { name: "Published", cell: (row) => h("time", { title: fullTime(row.published_at) }, clock(row.published_at)) },
    { name: "Reward", class: "num", cell: (row) => number(row.stats?.reward_mean) },
    { name: "Loss", class: "num", cell: (row) => number(row.stats?.loss, 4) },
    ...measureColumns(measuresIn(found)),
    { name: "Grad norm", class: "num", cell: (row) => number(row.stats?.grad_norm, 3) },
    { name: "Hold, ms", class: "num", title: "How long requests were held", cell: (row) => number(row.stats?.hold_ms, 1) },
    { name: "Publish, s", class: "num", cell: (row) => number(row.stats?.publish_s) },
    { name: "Action", cell: (row) => actionOf(row) },
  ];
  const note = h("div", {}, loading("versions"));
  const rows = changingTable("Versions", columnsOf, (row) => row.version, { rowClass: (row) => (row.current ? "current" : undefined) });
  rows.element.hidden = true;
  const publish = h("button", { type: "button", onclick: publishNow }, icon("publish"), "Publish now");
  const more = h("button", { type: "button", hidden: true, onclick: loadOlder }, "Older versions");
  const element = h("div", { class: "stack" }, h("section", { class: "panel", "aria-label": "Versions" },
    h("div", { class: "panel-head" }, h("h2", {}, "Published versions"), h("div", { class: "buttons" }, publish)),
    h("p", { class: "muted" }, "Numbers only grow: a rollback publishes earlier weights under a new number, and training goes on from them."),
    note, rows.element, more));

  function actionOf(row) {
    if (row.current) return h("span", { class: "muted" }, "serves");
    if (!row.kept) return h("span", { class: "muted", title: "Its weights are no longer on disk" }, "not kept");
    const label = `Roll back to version ${row.version}`;
    return h("button", { type: "button", class: "small", "aria-label": label, onclick: () => rollBack(ctx, row.version) }, icon("back"), "Roll back");
  }

  function marks(row) {
    return h("span", { class: "counts" },
      row.current && h("span", { class: "pill live" }, "current"),
      row.good && h("span", { class: "pill good" }, "found good"),
      row.rolled_back_to !== null && row.rolled_back_to !== undefined &&
        h("span", { class: "pill" }, `weights of ${row.rolled_back_to}${row.stats?.by ? `, by ${row.stats.by}` : ""}`));
  }

  function show() {
    const all = versions.rows.reverse();
    rows.update(all);
    rows.element.hidden = all.length === 0;
    more.hidden = !versions.more;
    replace(note, all.length ? [] : empty("No version yet", "The first is published when the graph has started."));
  }

  async function loadOlder() {
    more.disabled = true;
    try {
      await versions.older();
      show();
    } catch (error) {
      notice(error.message, "error");
    } finally {
      more.disabled = false;
    }
  }

  async function publishNow() {
    publish.disabled = true;
    try {
      notice(wordsOfPublish(await api.publish()));
      poll.now();
    } catch (error) {
      notice(error.message, "error");
    } finally {
      publish.disabled = false;
    }
  }

  const poll = new Poll((signal) => versions.refresh(signal), {
    everyMs: 3000,
    onValue: show,
    onTrouble: (error) => rows.element.hidden && showFailure(note, error, () => poll.now()),
  });
  ctx.onChange = () => poll.now();
  return { title: "Versions", element, start: () => poll.start(), stop: () => poll.stop() };
}

export function wordsOfPublish(answer) {
  if (answer.outcome === "nothing_new") return `Version ${whole(answer.version)} already has all that was learned, up to step ${whole(answer.step)}.`;
  return `The trainer was asked to publish what it learned up to step ${whole(answer.newest_step)}.`;
}

export async function rollBack(ctx, version) {
  await ask({
    title: `Roll back to version ${version}?`,
    text: [
      `The weights of version ${version} serve again within seconds, under a new number. No request is refused.`,
      "Training goes on from them; what was learned since is set aside.",
    ],
    action: `Roll back to ${version}`,
    danger: true,
    async act() {
      const done = await api.rollback(version);
      notice(`Version ${done.version} now serves the weights of version ${done.rolled_back_to}.`);
      ctx.refresh();
      ctx.onChange?.();
    },
  });
}
