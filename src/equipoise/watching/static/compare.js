// Several runs: one number of each, over each other or side by side, their last words as a table, and the settings that differ.

import { h, attr, text, keyed, ask, query, short, number, percent, clock, last, NONE } from "./dom.js";
import { Chart, sample, UNITS } from "./chart.js";

export const MOST = 12; // runs that are compared at once
const USUAL = ["return", "evaluation", "steps_per_s", "updates_per_s", "lag", "length"];
const WORDS = { return: "return", evaluation: "evaluation", steps_per_s: "steps/s", updates_per_s: "updates/s", lag: "lag", length: "episode length" };
const CURVES_MS = 2000;

export class CompareView {
  /** `onleave(id)`: a run is no longer compared. */
  constructor(ids, rows, { onleave, onseeds }) {
    this.ids = ids; this.rows = rows; this.found = {}; this.settings = null;
    this.y = "return"; this.axis = "steps"; this.smooth = 0; this.apart = false;
    const select = (name, values, words, change) => h("label", { class: "field" }, name, h("select", { onchange: (event) => change(event.target.value) }, values.map((value) => h("option", { value }, words[value] ?? value))));
    this.number = h("select", { onchange: () => { this.y = this.number.value; this.curves(true); } });
    this.chips = h("ul", { class: "chips" });
    this.chart = new Chart("Return", { height: 24 });
    this.grid = h("div", { class: "grid", hidden: true });
    this.small = new Map();
    this.onleave = onleave;
    this.table = h("tbody");
    this.differ = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings that differ" });
    const smooth = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: () => { this.smooth = Number(smooth.value); this.draw(); } });
    const apart = h("input", { type: "checkbox", onchange: () => { this.apart = apart.checked; this.draw(); } });
    this.none = h("div", { class: "card empty" }, h("h2", null, "Choose runs to compare"), h("p", { class: "note" }, "Tick the boxes in the list of runs, or press x on a run. Up to 12 are drawn at once."),
      h("p", null, h("button", { type: "button", onclick: onseeds }, "Compare what the filter shows")));
    this.body = h("div", { class: "body" },
      h("section", { class: "card big", "aria-label": "Curves" }, h("div", { class: "fields" }, h("label", { class: "field" }, "number", this.number), select("over", Object.keys(UNITS), UNITS, (value) => { this.axis = value; this.curves(true); }),
        h("label", { class: "field" }, "smooth", smooth), h("label", { class: "field check" }, apart, "side by side")), this.chips, this.chart.element, this.grid),
      h("section", { class: "card", "aria-label": "Numbers" }, h("h2", null, "Numbers"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers of the runs" }, h("table", null, h("thead", null, h("tr", null, ["run", "state", "steps", "steps/s", "return", "evaluation", "time", "bottleneck"].map((name, i) => h("th", { scope: "col", class: i > 1 && i < 7 ? "num" : null }, name)))), this.table))),
      h("section", { class: "card", "aria-label": "Settings" }, h("h2", null, "Settings that differ"), this.differ));
    this.element = h("div", { class: "compare" }, h("h1", { class: "unseen" }, "Compare runs"), this.none, this.body);
    this.asked = 0;
    this.size = "";
    this.names();
  }

  close() { this.closed = true; this.chart.close(); for (const one of this.small.values()) one.close(); clearTimeout(this.timer); }

  names() {
    const found = new Set(Object.values(this.found).flatMap((one) => one.names));
    const names = [...USUAL, ...[...found].filter((name) => name.includes("/")).sort()];
    keyed(this.number, names, (name) => name, (name) => h("option", { value: name }, WORDS[name] ?? name));
    this.number.value = this.y;
  }

  choose(ids) { this.ids = ids.slice(0, MOST); this.size = ""; this.update(); }

  update() {
    if (this.closed) return;
    const there = this.ids.map((id) => this.rows.get(id)).filter(Boolean);
    this.none.hidden = there.length > 0;
    this.body.hidden = !there.length;
    if (!there.length) return;
    keyed(this.chips, there, (row) => row.id, (row) => Object.assign(h("li", null, h("span", { class: "line" }), h("a", { href: `#/run/${encodeURIComponent(row.id)}` }, row.id), h("button", { type: "button", class: "quiet", "aria-label": `Leave out ${row.id}`, onclick: () => this.onleave(row.id) }, "×"))),
      (node, row) => { const i = this.ids.indexOf(row.id); if (node.style_ !== i) { node.style_ = i; node.firstChild.replaceChildren(sample(i)); } });
    keyed(this.table, there, (row) => row.id, (row) => Object.assign(h("tr", null, h("th", { scope: "row" }, row.id), ...Array.from({ length: 7 }, (_, i) => h("td", { class: i > 0 && i < 6 ? "num" : null })))), (node, row) => {
      [row.status, short(row.step), short(row.steps_per_s), number(row.return), number(row.evaluation), clock(row.wall_s), row.cause ?? NONE].forEach((said, i) => text(node.children[i + 1], said));
    });
    const size = JSON.stringify(there.map((row) => [row.id, row.bytes]));
    if (size !== this.size) this.curves(this.size === "");
  }

  curves(now = false) {
    if (this.closed) return;
    const there = this.ids.filter((id) => this.rows.has(id));
    const wait = CURVES_MS - (performance.now() - this.asked);
    if (!there.length || this.busy) return;
    if (!now && wait > 0) { this.timer ??= setTimeout(() => { this.timer = null; this.curves(); }, wait); return; }
    this.asked = performance.now();
    this.size = JSON.stringify(there.map((id) => [id, this.rows.get(id).bytes]));
    this.busy = true;
    const key = there.join("\n");
    Promise.all([ask(`api/curves?${query({ run: there, y: this.y, x: this.axis })}`), this.settingsOf === key ? this.settings : ask(`api/settings?${query({ run: there })}`)])
      .then(([found, settings]) => { if (!this.closed) { this.found = found; this.settings = settings; this.settingsOf = key; this.draw(); this.table2(); } })
      .catch((error) => console.warn(error.message)).finally(() => { this.busy = false; });
  }

  draw() {
    this.names();
    const lines = this.ids.map((id, i) => ({ id, name: id, style: i, x: this.found[id]?.of[this.y]?.[0] ?? [], y: this.found[id]?.of[this.y]?.[1] ?? [] })).filter((one) => this.found[one.id]);
    const name = `${WORDS[this.y] ?? this.y} over ${UNITS[this.axis]}`;
    text(this.chart.element.firstChild, name);
    this.chart.element.hidden = this.apart;
    this.grid.hidden = !this.apart;
    if (!this.apart) { this.chart.update(lines, this.axis, this.smooth); return; }
    keyed(this.grid, lines, (one) => one.id, (one) => { const chart = new Chart(one.id, { height: 11 }); this.small.set(one.id, chart); return chart.element; },
      (_, one) => this.small.get(one.id).update([one], this.axis, this.smooth, lines));
  }

  table2() {
    const { runs, differ, alike } = this.settings, rows = Object.entries(differ).filter(([, values]) => !values.includes(null)), rest = Object.entries(differ).filter(([, values]) => values.includes(null));
    if (!rows.length && !rest.length) { this.differ.replaceChildren(h("p", { class: "note" }, `All ${alike} settings are alike.`)); return; }
    const table = (some) => h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "setting"), runs.map((run) => h("th", { scope: "col" }, run)))),
      h("tbody", null, some.slice(0, 200).map(([key, values]) => h("tr", null, h("th", { scope: "row" }, h("code", null, key)), values.map((value) => h("td", null, value === null ? NONE : value.slice(0, 80)))))));
    this.differ.replaceChildren(...[rows.length ? table(rows) : null, rest.length ? h("details", null, h("summary", null, `${rest.length} that only some runs have`), table(rest)) : null, h("p", { class: "note" }, alike ? `${alike} others are alike.` : "")].filter(Boolean));
  }
}
