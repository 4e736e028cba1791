// One study: its best score, the pictures of its trials, the importance of its settings, its trials and its decisions.

import { h, attr, text, keyed, percent } from "./dom.js";
import { Chart } from "./chart.js";

const card = (title, kind, ...parts) => h("section", { class: `card ${kind}`, "aria-label": title }, h("h2", null, title), ...parts);
const WORDS = { running: "training", completed: "ended" };

export class StudyView {
  constructor(id) {
    this.id = id;
    this.charts = new Map();
    const p = this.parts = {
      name: h("h1", null, id), status: h("span", { class: "chip" }, "connecting"), about: h("p", { class: "about" }), problems: h("ul", { class: "problems" }),
      tiles: h("dl", { class: "tiles" }), plots: h("div", { class: "plots" }), small: h("div", { class: "grid" }), importance: h("tbody"), head: h("tr"), rows: h("tbody"), more: h("p", { class: "note" }), decisions: h("ul", { class: "said" }),
    };
    p.smallcard = card("Settings over time", "", p.small);
    p.importancecard = card("Importance of settings", "", h("p", { class: "note" }, "The share of the differences between trials that each setting explains alone."), h("table", { class: "importance" }, p.importance));
    p.decisionscard = card("Decisions", "", p.decisions);
    p.trials = card("Trials", "", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Trials" }, h("table", null, h("thead", null, p.head), p.rows)), p.more);
    this.element = h("div", { class: "study" }, h("header", { class: "head" }, h("div", { class: "title" }, p.name, p.status), p.about, p.problems), p.tiles, p.plots, p.smallcard, p.importancecard, p.trials, p.decisionscard);
  }

  close() { this.closed = true; for (const one of this.charts.values()) one.close(); }

  update(told) {
    if (this.closed) return;
    for (const part of ["head", "pictures", "table", "said"]) {
      try { this[part](told); } catch (error) { console.warn(`${part} of ${this.id}: ${error.message}`); }
    }
  }

  head(told) {
    const p = this.parts;
    text(p.name, told.title ?? told.id);
    attr(p.status, { class: `chip ${told.status}` });
    text(p.status, WORDS[told.status] ?? told.status);
    text(p.about, `${told.id}${told.status === "interrupted" ? ": no process runs this study, 'equipoise tune resume' goes on with it" : ""}`);
    keyed(p.problems, told.problems ?? [], (one) => one, (one) => h("li", null, one));
    keyed(p.tiles, told.facts ?? [], (one) => one[0], ([name]) => {
      const parts = { value: h("dd", { class: "big" }), note: h("dd", { class: "note" }) };
      return Object.assign(h("div", null, h("dt", null, name), parts.value, parts.note), { parts });
    }, (node, [, value, note]) => { text(node.parts.value, value); text(node.parts.note, note); attr(node.parts.note, { title: note }); });
  }

  pictures(told) {
    const p = this.parts, all = told.plots ?? [], small = all.filter((one) => one.key.startsWith("schedule "));
    const make = (height) => (one) => {
      const chart = new Chart(one.title, { height, still: true });
      this.charts.set(one.key, chart);
      return h("section", { class: height > 10 ? "card" : "", "aria-label": one.title }, chart.element, h("p", { class: "note" }));
    };
    const draw = (node, one) => { text(node.lastChild, one.note); this.charts.get(one.key).update(one.lines, "steps", 0, [], one); };
    const known = new Set(all.map((one) => one.key));
    for (const [key, chart] of this.charts) if (!known.has(key)) { chart.close(); this.charts.delete(key); }
    keyed(p.plots, all.filter((one) => !small.includes(one)), (one) => one.key, make(15), draw);
    keyed(p.small, small, (one) => one.key, make(9), draw);
    p.smallcard.hidden = !small.length;
    const found = told.importance ?? [];
    p.importancecard.hidden = !found.length;
    keyed(p.importance, found, (one) => one[0], ([key]) => Object.assign(h("tr", null, h("th", { scope: "row" }, h("code", null, key)), h("td", { class: "bar" }, h("div", { class: "progress running" }, h("i"))), h("td", { class: "num" }))),
      (row, [, share]) => { row.children[1].firstChild.firstChild.style.width = `${(100 * share).toFixed(1)}%`; text(row.lastChild, percent(share)); });
  }

  table(told) {
    const p = this.parts, head = told.head ?? [], rows = told.rows ?? [];
    p.trials.hidden = !rows.length;
    keyed(p.head, head, (name) => name, (name) => h("th", { scope: "col" }), (node, name, i) => { text(node, name); attr(node, { class: i > 2 ? "num" : null }); });
    keyed(p.rows, rows, (row) => row[0], ([name]) => h("tr", null, h("th", { scope: "row" }, h("a", { href: `#/run/${encodeURIComponent(told.prefix + name)}` }, name)), head.slice(1).map((_, i) => h("td", { class: i > 1 ? "num" : null }))),
      (node, row) => row.slice(1).forEach((said, i) => text(node.children[i + 1], said)));
    text(p.more, told.more ?? "");
  }

  said(told) {
    this.parts.decisionscard.hidden = !told.decisions?.length;
    const list = (told.decisions ?? []).map((said, i, all) => ({ said, n: all.length - i }));
    keyed(this.parts.decisions, list, (one) => `${one.n} ${one.said}`, (one) => h("li", null, one.said));
  }
}
