// Curves: lines over steps or time, a reading under the pointer or by the arrow keys, and shares of time as areas.

import { s, h, attr, text, keyed, rem, short, clock, number } from "./dom.js";

const STYLES = 8;
export const UNITS = { steps: "env steps", updates: "updates", wall: "time" };
const onX = (axis, x) => (axis === "wall" ? clock(x) : short(x));

/** At most `most` + 1 round numbers between two. */
const ticks = (low, high, most) => {
  const span = high - low;
  if (!(span > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10, 20].map((x) => x * power).find((x) => span / x <= most);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n <= Math.floor(high / step + 1e-9); n++) found.push(+(n * step).toPrecision(12));
  return found;
};

const smoothed = (y, by) => {
  if (!by) return y;
  let mean = 0, weight = 0;
  return y.map((value) => { mean = by * mean + (1 - by) * value; weight = by * weight + 1 - by; return mean / weight; });
};

const nearest = (xs, x) => {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (xs[mid] < x) low = mid; else high = mid; }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
};

export class Chart {
  /** `series`: [{name, style, x, y, dots}]; `axis`: steps, updates or wall. */
  constructor(label, { height = 13, areas = false, holds = [], still = false } = {}) {
    // `holds`: values that the axis always includes; `still`: many lines, whose names are shown at the pointer in place of values
    this.still = still; this.names = {};
    this.label = label; this.height = height; this.areas = areas; this.holds = holds;
    this.series = []; this.beside = []; this.axis = "steps"; this.smooth = 0; this.at = null;
    this.svg = s("svg", { "aria-hidden": "true" });
    this.readout = h("div", { class: "reading", hidden: true });
    this.empty = h("p", { class: "note", hidden: true }, "Nothing to draw yet.");
    this.box = h("div", { class: "plot", tabindex: still ? null : 0, role: still ? "img" : "group", "aria-label": still ? label : `${label}. The arrow keys read values.` }, this.svg, this.readout, this.empty);
    this.element = h("figure", { class: "chart" }, h("figcaption", null, label), this.box);
    this.watcher = new ResizeObserver(([entry]) => { this.width = entry.contentRect.width; this.draw(); });
    this.watcher.observe(this.box);
    if (still) return;
    this.box.addEventListener("pointermove", (event) => { const box = this.svg.getBoundingClientRect(); this.point((event.clientX - box.left) * (this.width / box.width)); });
    this.box.addEventListener("pointerleave", () => this.read(null));
    this.box.addEventListener("blur", () => this.read(null));
    this.box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      const xs = this.grid;
      if (event.key === "Escape") this.read(null);
      if (!step || !xs?.length) return;
      event.preventDefault();
      this.read(Math.max(0, Math.min(xs.length - 1, (this.at ?? (step < 0 ? xs.length : -1)) + step)));
    });
  }

  close() { this.watcher.disconnect(); }

  /** `beside`: series of other charts, whose axes this one shares; `names`: {across, up}, lists of [value, label] in place of numbers. */
  update(series, axis = "steps", smooth = 0, beside = [], names = {}) {
    this.names = names;
    this.series = series.filter((one) => one.x.length); this.axis = axis; this.smooth = smooth; this.beside = beside.filter((one) => one.x.length);
    this.draw();
  }

  draw() {
    if (!this.width) return;
    const em = rem(), height = this.height * em;
    attr(this.svg, { viewBox: `0 0 ${this.width} ${height}`, width: this.width, height });
    this.empty.hidden = this.series.length > 0;
    if (!this.series.length) { this.svg.replaceChildren(); this.grid = []; this.read(null); return; }
    const left = 3.4 * em, right = 0.8 * em, top = 0.6 * em, bottom = 1.7 * em;
    const lines = this.series.map((one) => ({ ...one, shown: one.dots || this.areas ? one.y : smoothed(one.y, this.smooth) }));
    const xs = [...lines, ...this.beside].flatMap((one) => [one.x[0], one.x.at(-1)]), ys = this.areas ? [0, 1] : [...lines.map((one) => one.shown), ...this.beside.map((one) => one.y), this.holds, (this.names.up ?? []).map(([y]) => y)].flat();
    let [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    let y0 = ys.reduce((a, b) => Math.min(a, b)), y1 = ys.reduce((a, b) => Math.max(a, b));
    if (x1 - x0 < 1e-9 * Math.max(Math.abs(x0), Math.abs(x1), 1)) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    if (!this.areas) {
      // a change of less than a twentieth does not fill the axis
      const least = Math.max(Math.abs(y0), Math.abs(y1)) / 20 || 1;
      if (y1 - y0 < least) { const room = (least - (y1 - y0)) / 2; y0 -= room; y1 += room; }
      const room = (y1 - y0) / 16; y0 = this.holds.includes(0) && y0 === 0 ? 0 : y0 - room; y1 += room;
    }
    const X = (x) => left + ((x - x0) / (x1 - x0)) * (this.width - left - right), Y = (y) => top + ((y1 - y) / (y1 - y0)) * (height - top - bottom);
    const nodes = [];
    const named = (list, values, said) => (list?.length ? list : values.map((value) => [value, said(value)]));
    for (const [y, name] of named(this.names.up, ticks(y0, y1, this.areas ? 2 : 4), (y) => (this.areas ? `${Math.round(100 * y)} %` : Math.abs(y) >= 1000 ? short(y) : String(+y.toPrecision(4))))) {
      nodes.push(s("path", { class: "rule", d: `M${left} ${Y(y).toFixed(1)}H${this.width - right}` }),
        s("text", { class: "tick", x: left - 0.5 * em, y: Y(y) + 0.3 * em, "text-anchor": "end" }, name));
    }
    const many = Math.max(4, Math.min(7, Math.floor(this.width / (5.5 * em))));
    const across = this.names.across ?? [], every = Math.ceil((6 * em * across.length) / this.width); // labels that fit
    for (const [x, name] of named(across.filter((_, i) => (across.length - 1 - i) % every === 0), ticks(x0, x1, many), (x) => onX(this.axis, x))) {
      const anchor = X(x) < left + em ? "start" : X(x) > this.width - 2 * em ? "end" : "middle";
      nodes.push(s("text", { class: "tick", x: X(x).toFixed(1), y: height - 0.35 * em, "text-anchor": anchor }, name));
    }
    const path = (one, values) => "M" + one.x.map((x, i) => `${X(x).toFixed(1)} ${Y(values[i]).toFixed(1)}`).join("L") + (one.x.length > 1 ? "" : "h0");
    if (this.areas) {
      let below = lines[0].x.map(() => 0);
      for (const one of lines) {
        const above = one.y.map((y, i) => Math.min(1, (below[i] ?? 0) + y));
        const there = one.x.map((x, i) => `${X(x).toFixed(1)} ${Y(above[i]).toFixed(1)}`), back = one.x.map((x, i) => `${X(x).toFixed(1)} ${Y(below[i] ?? 0).toFixed(1)}`).reverse();
        nodes.push(s("path", { class: `area ${one.kind}`, d: `M${[...there, ...back].join("L")}Z` }));
        below = above;
      }
    } else {
      for (const one of lines.filter((line) => !line.dots)) {
        if (this.smooth) nodes.push(s("path", { class: `line faint s${one.style % STYLES}`, d: path(one, one.y) }));
        if (!this.still && (lines.length === 1 || lines.every((line) => line.dots || line.style === one.style))) {
          nodes.push(s("path", { class: `under f${one.style % STYLES}`, d: `${path(one, one.shown)}L${X(one.x.at(-1)).toFixed(1)} ${height - bottom}L${X(one.x[0]).toFixed(1)} ${height - bottom}Z` }));
        }
        nodes.push(s("path", { class: `line s${one.style % STYLES}${one.solid ? " solid" : ""}${one.faint ? " faint" : ""}${one.kind ? ` ${one.kind}` : ""}`, d: path(one, one.shown) }, this.still && one.name ? s("title", null, one.name) : null));
      }
      for (const one of lines.filter((line) => line.dots)) {
        for (let i = 0; i < one.x.length; i++) nodes.push(s("circle", { class: `dot s${one.style % STYLES}`, cx: X(one.x[i]).toFixed(1), cy: Y(one.y[i]).toFixed(1), r: (this.still && one.x.length > 30 ? 0.15 : 0.24) * em }, this.still && one.name ? s("title", null, one.name) : null));
      }
    }
    this.cross = s("path", { class: "cross" });
    this.marks = s("g");
    this.svg.replaceChildren(...nodes, this.cross, this.marks);
    const longest = lines.reduce((a, b) => (b.x.length > a.x.length ? b : a));
    Object.assign(this, { grid: longest.x, lines, X, Y, top, low: height - bottom });
    if (this.still) return;
    if (this.at !== null) this.read(Math.min(this.at, this.grid.length - 1));
  }

  point(px) {
    if (!this.grid?.length) return;
    const { X } = this, a = this.grid[0], b = this.grid.at(-1);
    const x = X(b) > X(a) ? a + ((px - X(a)) / (X(b) - X(a))) * (b - a) : a;
    this.read(nearest(this.grid, x));
  }

  read(at) {
    this.at = at;
    this.readout.hidden = at === null || !this.grid?.length;
    if (this.readout.hidden) { this.cross && attr(this.cross, { d: null }); this.marks?.replaceChildren(); return; }
    const x = this.grid[at], px = this.X(x);
    attr(this.cross, { d: `M${px.toFixed(1)} ${this.top}V${this.low}` });
    const rows = this.lines.map((one) => {
      const i = nearest(one.x, x);
      return { ...one, value: one.shown[i], there: one.x[i] };
    }).filter((one) => Math.abs(this.X(one.there) - px) < 0.6 * rem() || (!one.dots && one.x[0] < x && x < one.x.at(-1)));
    this.marks.replaceChildren(...(this.areas ? [] : rows.map((one) => s("circle", { class: `mark f${one.style % STYLES}`, cx: this.X(one.there).toFixed(1), cy: this.Y(one.value).toFixed(1), r: 0.3 * rem() }))));
    this.readout.replaceChildren(h("b", null, `${onX(this.axis, x)} ${UNITS[this.axis]}`), ...rows.slice(0, 12).map((one) => h("span", { class: "row" },
      this.areas ? s("svg", { class: "swatch", viewBox: "0 0 12 12" }, s("rect", { class: one.kind, width: 12, height: 12 })) : sample(one.style, one.dots),
      h("span", null, one.name), h("i", null, this.areas ? `${Math.round(100 * one.value)} %` : Math.abs(one.value) >= 1000 ? number(one.value, 0) : String(+one.value.toPrecision(5))))));
    this.readout.classList.toggle("left", px > this.width / 2);
    this.readout.style.left = px > this.width / 2 ? "" : `${px + rem()}px`;
    this.readout.style.right = px > this.width / 2 ? `${this.width - px + rem()}px` : "";
  }
}

export const sample = (style, dots = false) => s("svg", { class: "sample", viewBox: "0 0 26 10", "aria-hidden": "true" },
  dots ? s("circle", { class: `dot s${style % STYLES}`, cx: 13, cy: 5, r: 3.4 }) : s("path", { class: `line s${style % STYLES}`, d: "M0 5H26" }));

/** A small line without axes. */
export const spark = (node, values) => {
  const shown = values.filter((x) => Number.isFinite(x));
  if (shown.length < 2) { node.replaceChildren(); return; }
  const low = Math.min(...shown), span = Math.max(...shown) - low || 1;
  const points = shown.map((y, i) => `${((100 * i) / (shown.length - 1)).toFixed(1)} ${(22 - (20 * (y - low)) / span).toFixed(1)}`);
  node.replaceChildren(s("path", { class: "under", d: `M${points.join("L")}L100 24L0 24Z` }), s("path", { class: "thread", d: `M${points.join("L")}` }));
};
export const sparkBox = () => s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" });
