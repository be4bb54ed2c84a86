// Curves that go on while they are looked at. A person's zoom stays when new points come; all curves share one zoom and
// one cursor. Colours come from the style sheet, again with each change of the theme.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { h, setText } from "./dom.js";
import { clock, hour } from "./format.js";
import { colour } from "./theme.js";

const HEIGHT = 190;

// A group of curves over one horizontal axis.
export class Curves {
  constructor() {
    this.charts = [];
    this.zoom = null;
    this.sync = uPlot.sync(`curves-${Math.random()}`);
    this.byTime = true;
    this.onZoom = () => {};
    this.watch = new ResizeObserver(() => this.charts.forEach((chart) => chart.resize()));
    this.themed = () => this.charts.forEach((chart) => chart.rebuild());
    document.addEventListener("console:theme", this.themed);
  }

  // series: [{name, colour, dashed, stepped}]; `show(value)` words a value.
  add(title, note, series, show, range) {
    const chart = new Chart(this, title, note, series, show, range);
    this.charts.push(chart);
    return chart;
  }

  setZoom(zoom) {
    this.zoom = zoom;
    for (const chart of this.charts) chart.draw();
    this.onZoom(zoom !== null);
  }

  close() {
    document.removeEventListener("console:theme", this.themed);
    this.watch.disconnect();
    this.charts.forEach((chart) => chart.plot?.destroy());
  }
}

class Chart {
  constructor(group, title, note, series, show, range) {
    Object.assign(this, { group, title, series, show, range, data: [[], ...series.map(() => [])], plot: null });
    this.readout = h("p", { class: "readout num" });
    this.place = h("div", { class: "plot", tabindex: "0", role: "img" });
    this.nothing = h("p", { class: "nothing" }, "No steps yet.");
    const keys = h("ul", { class: "legend", hidden: series.length < 2 });
    for (const one of series) keys.append(h("li", { class: `line-${one.colour}${one.dashed ? " dashed" : ""}` }, one.name));
    this.keys = keys;
    const head = h("div", { class: "chart-head" }, h("h3", {}, title), this.readout);
    this.element = h("figure", { class: "chart" }, head, h("figcaption", {}, note), this.place, this.nothing, keys);
    this.place.addEventListener("keydown", (event) => this.key(event));
    group.watch.observe(this.element);
  }

  // xs ascending; one list of values (null: none) a series.
  update(xs, ...lists) {
    this.data = [xs, ...lists];
    const known = lists.map((list) => list.some((value) => value !== null));
    [...this.keys.children].forEach((item, at) => (item.hidden = !known[at]));
    this.nothing.hidden = known.includes(true);
    this.place.hidden = !known.includes(true);
    if (!known.includes(true)) return this.drop();
    if (this.plot) this.draw();
    else this.rebuild();
    this.describe();
  }

  drop() {
    this.plot?.destroy();
    this.plot = null;
    setText(this.readout, "");
  }

  draw() {
    if (!this.plot) return;
    this.plot.batch(() => {
      this.plot.setData(this.data, this.group.zoom === null);
      // Beside new data a scale has to be named again, else it follows them.
      if (this.group.zoom !== null) this.plot.setScale("x", this.group.zoom);
    });
  }

  rebuild() {
    if (!this.data[0].length || this.place.hidden) return;
    this.plot?.destroy();
    const grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: colour("muted"), grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
    const points = this.data[0].length < 60;
    const lines = this.series.map((one) => ({
      label: one.name,
      stroke: colour(one.colour),
      width: one.dashed ? 2 : 1.75,
      dash: one.dashed ? [6, 4] : undefined,
      spanGaps: true,
      paths: one.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: points && !one.dashed, size: 5, fill: colour(one.colour) },
    }));
    const options = {
      width: this.width(),
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: this.group.sync.key }, points: { size: 7 }, ...this.mouse() },
      scales: { x: { time: this.group.byTime }, y: this.range ? { range: this.range } : {} },
      series: [{}, ...lines],
      axes: [
        { ...axis, size: 30, ...(this.group.byTime ? { values: (_, ticks, __, ___, apart) => ticks.map((tick) => hour(tick, apart)) } : {}) },
        { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => this.show(tick)) },
      ],
      hooks: {
        setSelect: [(plot) => this.selected(plot)],
        // What is seen, for whoever reads the page rather than the curve.
        setScale: [(plot, name) => name === "x" && (this.place.dataset.shows = `${plot.scales.x.min} ${plot.scales.x.max}`)],
        setCursor: [(plot) => this.point(plot.cursor.idx)],
      },
    };
    this.plot = new uPlot(options, this.data, this.place);
    if (this.group.zoom !== null) this.plot.setScale("x", this.group.zoom);
  }

  // A stretch that was dragged over becomes the zoom of the whole group, a double click ends it.
  mouse() {
    const reset = () => () => {
      this.group.setZoom(null);
      return null;
    };
    return { drag: { x: true, y: false, setScale: false }, bind: { dblclick: reset } };
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const zoom = { min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") };
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.group.setZoom(zoom);
  }

  width() {
    return Math.max(180, Math.floor(this.place.clientWidth || this.element.clientWidth - 32));
  }

  resize() {
    if (this.plot && this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: HEIGHT });
  }

  at(index) {
    const x = this.data[0][index];
    const where = this.group.byTime ? clock(x) : `step ${x}`;
    const values = this.series
      .map((one, at) => [one, this.data[at + 1][index]])
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([one, value]) => (this.series.length > 1 ? `${one.name} ${this.show(value)}` : this.show(value)));
    return values.length ? `${values.join(", ")} · ${where}` : "";
  }

  point(index) {
    const last = this.lastKnown();
    setText(this.readout, this.at(index ?? last) || this.at(last));
  }

  lastKnown() {
    let last = this.data[0].length - 1;
    while (last > 0 && this.data.slice(1).every((list) => list[last] === null)) last -= 1;
    return last;
  }

  describe() {
    if (this.plot?.cursor.idx === null || this.plot?.cursor.idx === undefined) this.point(null);
    const label = `${this.title}: ${this.data[0].length} points, the last is ${this.at(this.lastKnown())}. Arrow keys move along it.`;
    if (this.place.getAttribute("aria-label") !== label) this.place.setAttribute("aria-label", label);
  }

  key(event) {
    const plot = this.plot;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!plot) return;
    const { min, max } = plot.scales.x;
    if (by) {
      const xs = this.data[0];
      const from = plot.cursor.idx ?? (by > 0 ? -1 : xs.length);
      const to = Math.min(xs.length - 1, Math.max(0, from + by));
      plot.setCursor({ left: plot.valToPos(xs[to], "x"), top: plot.over.clientHeight / 2 });
    } else if (event.key === "+" || event.key === "-") {
      const middle = plot.cursor.idx === null || plot.cursor.idx === undefined ? (min + max) / 2 : this.data[0][plot.cursor.idx];
      const half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2);
      this.group.setZoom({ min: middle - half, max: middle + half });
    } else if (event.key === "0" || event.key === "Escape") {
      this.group.setZoom(null);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
