// What it does right now and where it is going: the way of the turns, curves, the health of recent answers.

import { api } from "../api.js";
import { Curves } from "../charts.js";
import { notice } from "../dialogs.js";
import { h, reconcile, replace, stamped } from "../dom.js";
import { REASONS, STATES, clock, duration, fullTime, number, percent, plural, whole, words } from "../format.js";
import { History } from "../history.js";
import { Poll } from "../live.js";
import { MEASURES, measureColumns, measuresIn } from "../measures.js";
import { bars, changingTable, empty, loading, panel, showFailure, stepLink } from "../widgets.js";

const HEALTH = {
  mean_tokens: "mean length in tokens", share_short: "share of short answers", fluency: "fluency, nats per token",
  share_repetitive: "share that repeats itself", on_topic_lift: "on-topic lift, nats per token",
  kl: "KL from the start, nats per token", share_non_finite: "share with no finite figure",
};

export function view(ctx) {
  const tiles = h("div", { class: "tiles" });
  const way = h("ol", { class: "way", "aria-label": "Turns by state" });
  const drops = h("div", {});
  const wayPanel = panel("Turns by state", way, drops);
  const health = h("div", {});
  const lags = h("div", {});
  const curves = stepCurves();
  const element = h(
    "div",
    { class: "stack" },
    tiles,
    wayPanel,
    curves.element,
    h("div", { class: "two" }, panel("Health of recent answers", health), panel("Age of the trained samples", lags)),
    curves.table,
  );

  function onStatus(status) {
    reconcile(tiles, tilesOf(status), (tile) => tile.name, tile);
    reconcile(way, wayOf(status), (part) => part.state, wayPart);
    const dropped = Object.entries(status.turns?.dropped ?? {}).sort((a, b) => b[1] - a[1]);
    stamped(drops, dropped, () => dropsOf(dropped));
    stamped(health, status.guards ?? {}, () => healthOf(status.guards ?? {}));
    stamped(lags, status.staleness ?? {}, () => lagsOf(status.staleness ?? {}));
  }

  return { title: "Overview", element, onStatus, start: curves.start, stop: curves.stop };
}

function tilesOf(status) {
  const newest = status.versions?.[0]?.stats ?? {};
  const replicas = status.replicas ?? [];
  return [
    { name: "Policy version", value: whole(status.version), note: `made by step ${whole(status.step)}` },
    { name: "Reward", value: number(newest.reward_mean), note: "mean of the newest version's step" },
    { name: "Turns", value: whole(status.turns?.recorded), note: `${plural(status.sessions?.active ?? 0, "active session")}` },
    { name: "Judge", value: duration(status.judge?.mean_seconds), note: `each; ${whole(status.judge?.abstained)} of ${whole(status.judge?.judged)} abstained` },
    { name: "Requests held", value: number(status.holds_ms?.p50, 1), note: `ms at a publish (p50), p95 ${number(status.holds_ms?.p95, 1)}` },
    { name: "Replicas", value: whole(replicas.length), note: `${whole(sum(replicas, "running"))} running, ${whole(sum(replicas, "waiting"))} waiting` },
  ];
}

const sum = (rows, field) => rows.reduce((total, row) => total + (row[field] ?? 0), 0);

const tile = ({ name, value, note }) =>
  h("div", { class: "tile" }, h("span", { class: "tile-name" }, name), h("strong", {}, value), h("span", { class: "muted" }, note));

function wayOf(status) {
  const counts = status.turns?.by_state ?? {};
  return STATES.map((state) => ({ state, count: counts[state] ?? 0, waits: state === "queued" ? status.trainer?.waits : null }));
}

const wayPart = ({ state, count, waits }) =>
  h(
    "li",
    { class: `state-${state}${count ? "" : " none"}` },
    h("a", { href: `#/turns?state=${state}`, title: waits ? `the trainer waits ${waits}` : undefined },
      h("strong", {}, whole(count)), h("span", {}, words(state))),
  );

function dropsOf(dropped) {
  if (!dropped.length) return h("p", { class: "muted" }, "No turn has been dropped.");
  const known = (name) => (REASONS.includes(name) ? `#/turns?reason=${name}` : "#/turns?state=dropped");
  return [h("h3", {}, "Dropped, by reason"), bars("Dropped turns by reason", dropped, known)];
}

function healthOf(guards) {
  const figures = guards.figures ?? {};
  const names = Object.keys(figures).filter((name) => !name.startsWith("baseline_"));
  if (!names.length) return empty("Nothing measured yet", "Figures appear once a few answers have been looked at.");
  const rows = names.map((name) =>
    h("tr", {}, h("th", { scope: "row" }, HEALTH[name] ?? words(name)),
      h("td", { class: "num" }, number(figures[name])), h("td", { class: "num muted" }, number(figures[`baseline_${name}`]))));
  const head = h("tr", {}, h("th", { scope: "col" }, "Figure"), h("th", { scope: "col", class: "num" }, "Now"),
    h("th", { scope: "col", class: "num" }, "At the start"));
  const good = guards.good_version ?? null;
  return [
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Health figures" },
      h("table", {}, h("thead", {}, head), h("tbody", {}, rows))),
    h("p", { class: "muted" }, good === null ? "No version has been found good yet." : `Version ${good} is the last that was found good.`),
  ];
}

function lagsOf(staleness) {
  const rows = Object.entries(staleness.lag ?? {});
  if (!rows.length) return empty("Nothing trained yet", "Here is shown how many optimizer steps behind samples were.");
  return [
    bars("Samples by optimizer steps behind", rows.map(([lag, count]) => [`${lag} behind`, count])),
    h("p", { class: "muted" }, `Over ${plural(staleness.of_steps ?? 0, "step")}; ${plural(staleness.dropped ?? 0, "turn")} dropped beyond ${staleness.limit}.`),
  ];
}

// The curves and, beside them for whoever cannot or does not want to see curves, the same as a table.
function stepCurves() {
  const steps = new History(api.steps, (row) => row.seq);
  const versions = new History(api.versions, (row) => row.version);
  const curves = new Curves();
  const state = h("div", {}, loading("the steps"));
  const reward = curves.add("Reward", "Mean reward of the turns of each step, and its mean over ten",
    [{ name: "step", colour: "line-1" }, { name: "mean of ten", colour: "line-2", dashed: true }], (v) => number(v));
  const accepted = curves.add("Accepted share", "Share of the rewarded turns that were rewarded above zero",
    [{ name: "accepted", colour: "line-1" }], (v) => percent(v), [0, 1]);
  const kl = curves.add("KL", "Divergences that the method measures, in nats per token",
    MEASURES.map(({ short, colour, dashed }) => ({ name: short, colour, dashed })), (v) => number(v, 3));
  const version = curves.add("Version", "The version that serves; it goes on counting over a rollback",
    [{ name: "version", colour: "line-1", stepped: true }], (v) => number(v, 0));
  const reset = h("button", { type: "button", disabled: true, onclick: () => curves.setZoom(null) }, "Whole range");
  curves.onZoom = (zoomed) => (reset.disabled = !zoomed);
  const axis = h("select", { "aria-label": "Horizontal axis" }, h("option", { value: "time" }, "by time"), h("option", { value: "step" }, "by step"));
  axis.addEventListener("change", () => {
    curves.byTime = axis.value === "time";
    curves.setZoom(null);
    for (const chart of curves.charts) chart.drop();
    draw();
  });
  const more = h("button", { type: "button", hidden: true, onclick: older }, "Load older steps");
  const grid = h("div", { class: "charts", hidden: true }, curves.charts.map((chart) => chart.element));
  const element = h("section", { class: "panel", "aria-label": "Curves" },
    h("div", { class: "panel-head" }, h("h2", {}, "Curves"), h("div", { class: "buttons" }, axis, reset, more)), state, grid);
  const rows = changingTable("Newest steps", (shown) => [
    { name: "Step", class: "num", cell: (row) => stepLink(row.step) },
    { name: "When", cell: (row) => h("time", { title: fullTime(row.at) }, clock(row.at)) },
    { name: "State", cell: (row) => words(row.state) },
    { name: "Turns", class: "num", cell: (row) => whole(row.turns) },
    { name: "Reward", class: "num", cell: (row) => number(row.reward_mean) },
    { name: "Accepted", class: "num", cell: (row) => percent(row.accepted_share) },
    { name: "Loss", class: "num", cell: (row) => number(row.stats?.loss, 4) },
    ...measureColumns(measuresIn(shown)),
    { name: "Grad norm", class: "num", cell: (row) => number(row.stats?.grad_norm, 3) },
  ], (row) => row.seq);
  const listed = panel("Newest steps", rows.element);
  listed.hidden = true;

  function draw() {
    const all = steps.rows;
    const taken = all.filter((step) => step.state !== "undone");
    const x = (row, time) => (curves.byTime ? time : row.step);
    const line = [...new Map(taken.map((step) => [x(step, step.at), step])).entries()].sort((a, b) => a[0] - b[0]);
    const xs = line.map(([at]) => at);
    const of = (read) => line.map(([, step]) => finite(read(step)));
    const rewards = of((step) => step.reward_mean);
    reward.update(xs, rewards, moving(rewards, 10));
    accepted.update(xs, of((step) => step.accepted_share));
    const measured = measuresIn(taken);
    kl.update(xs, ...MEASURES.map((one) => of((step) => (measured.includes(one) ? step.stats?.[one.field] : null))));
    const marks = [...new Map(versions.rows.map((one) => [x(one, one.published_at), one.version])).entries()].sort((a, b) => a[0] - b[0]);
    // The newest version still serves where the other curves end.
    if (marks.length && xs.length && xs.at(-1) > marks.at(-1)[0]) marks.push([xs.at(-1), marks.at(-1)[1]]);
    version.update(marks.map(([at]) => at), marks.map(([, number]) => number));
    rows.update(all.slice(-12).reverse());
    listed.hidden = all.length === 0;
    grid.hidden = all.length === 0 && versions.known.size === 0;
    curves.charts.forEach((chart) => (grid.hidden ? null : chart.plot ? chart.resize() : chart.rebuild()));
    replace(state, grid.hidden ? empty("Nothing has been trained yet", "Curves begin with the first step. Chat, and say what answers were worth.") : []);
    more.hidden = !steps.more;
  }

  async function older() {
    more.disabled = true;
    try {
      await Promise.all([steps.older(), versions.more && versions.older()]);
      draw();
    } catch (error) {
      notice(error.message, "error");
    } finally {
      more.disabled = false;
    }
  }

  const poll = new Poll(
    (signal) => Promise.all([steps.refresh(signal), versions.refresh(signal)]),
    {
      everyMs: 4000,
      patienceMs: 30_000,
      onValue: draw,
      onTrouble(error) {
        if (!steps.known.size) showFailure(state, error, () => poll.now());
      },
    },
  );
  return {
    element,
    table: listed,
    start: () => poll.start(),
    stop: () => {
      poll.stop();
      curves.close();
    },
  };
}

const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

function moving(values, over) {
  return values.map((_, at) => {
    const window = values.slice(Math.max(0, at - over + 1), at + 1).filter((value) => value !== null);
    return window.length ? window.reduce((a, b) => a + b, 0) / window.length : null;
  });
}
