// The list of runs: filtered by words and conditions, one of them shown, several chosen to be compared.

import { h, attr, text, keyed, short, number, last, ago, NONE } from "./dom.js";

const ALIKE = { return: "return", evaluation: "evaluation", eval: "evaluation", steps: "step", step: "step", "steps/s": "steps_per_s", steps_per_s: "steps_per_s", seed: "seed", wall_s: "wall_s", alarms: "alarms",
  env: "env", algorithm: "algorithm", algo: "algorithm", status: "status", verdict: "cause", cause: "cause", name: "id" };
const ORDER = { running: 0, quiet: 1 };

/** What a filter says, as a function of a row; null where a part of it makes no sense. */
export const filter = (typed) => {
  const tests = typed.trim().toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const found = /^([a-z_/]+)(>=|<=|=|>|<)(.+)$/.exec(word);
    if (!found) return (row) => `${row.id} ${row.env} ${row.algorithm} ${row.status} ${row.cause ?? ""}`.toLowerCase().includes(word);
    const key = ALIKE[found[1]], wanted = found[3], limit = Number(wanted.replace(/k$/, "e3").replace(/m$/, "e6"));
    if (!key || (found[2] !== "=" && Number.isNaN(limit))) return null;
    const tells = { ">": (x) => x > limit, "<": (x) => x < limit, ">=": (x) => x >= limit, "<=": (x) => x <= limit }[found[2]];
    return tells ? (row) => typeof row[key] === "number" && tells(row[key])
      : (row) => String(row[key] ?? "").toLowerCase() === wanted || last(row[key]).toLowerCase() === wanted;
  });
  return tests.includes(null) ? null : (row) => tests.every((test) => test(row));
};

export const KEYS = Object.keys(ALIKE);

export class Shelf {
  /** `onchoose(id, chosen)` where a run is to be compared, or no longer. */
  constructor({ list, input, counted, none, onchoose }) {
    Object.assign(this, { list, input, counted, none, onchoose });
    this.rows = new Map();
    this.studies = new Map();
    this.known = false; // has the server named its runs?
    this.shown = [];
    input.addEventListener("input", () => this.draw());
    list.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1, Home: -1e9, End: 1e9 }[event.key];
      const links = [...list.querySelectorAll("a")], here = links.indexOf(document.activeElement?.closest("li")?.querySelector("a"));
      if (!step || here < 0) return;
      event.preventDefault();
      links[Math.max(0, Math.min(links.length - 1, here + step))]?.focus();
    });
  }

  take({ rows, studies, gone, all, problem }) {
    this.problem = problem;
    this.known = true;
    for (const [known, news] of [[this.rows, rows], [this.studies, studies]]) {
      if (all) for (const id of [...known.keys()]) if (!news.some((row) => row.id === id)) known.delete(id);
      for (const row of news) known.set(row.id, row);
      for (const id of gone) known.delete(id);
    }
    this.draw();
  }

  /** The study that a run is a trial of. */
  studyOf(id) { return [...this.studies.values()].find((study) => id.startsWith(study.prefix)); }

  sorted(rows = this.rows) {
    return [...rows.values()].sort((a, b) => (ORDER[a.status] ?? 2) - (ORDER[b.status] ?? 2) || (b.changed ?? 0) - (a.changed ?? 0) || (a.id < b.id ? -1 : 1));
  }

  draw(current = this.current, chosen = this.chosen ?? [], study = this.study) {
    this.current = current; this.chosen = chosen; this.study = study;
    const fits = filter(this.input.value), rows = this.sorted();
    this.shown = fits ? rows.filter(fits) : rows;
    attr(this.input, { "aria-invalid": fits ? null : "true" });
    if (!this.known) { text(this.counted, "Runs: connecting"); return; }
    const going = rows.filter((row) => row.status === "running").length, studies = this.sorted(this.studies), shown = fits ? studies.filter(fits) : studies;
    text(this.counted, `${this.shown.length === rows.length ? rows.length : `${this.shown.length} of ${rows.length}`} run${rows.length === 1 ? "" : "s"}${going ? `, ${going} running` : ""}${studies.length ? `, ${studies.length} stud${studies.length === 1 ? "y" : "ies"}` : ""}`);
    this.none.hidden = this.shown.length + shown.length > 0 && !!fits && !this.problem;
    text(this.none, this.problem || (fits ? (rows.length ? "No run fits the filter." : "No runs yet. 'equipoise train ENV' makes one, and it appears here.")
      : `A filter is words, and conditions such as return>100 or status=running. Keys: ${KEYS.join(", ")}.`));
    keyed(this.list, this.lines(shown), (row) => (row.prefix === undefined ? row.id : `${row.id}/`), (row) => (row.prefix === undefined ? this.make(row) : this.makeStudy(row)), (node, row) => (row.prefix === undefined ? this.fill(node, row) : this.fillStudy(node, row)));
  }

  /** Studies and runs; the trials of a study only where it is open, or a filter asks for them. */
  lines(studies) {
    const open = this.study ?? this.studyOf(this.current ?? "")?.id, all = !!this.input.value.trim();
    const of = new Map(this.shown.map((row) => [row.id, this.studyOf(row.id)?.id]));
    const trials = (study) => this.shown.filter((row) => of.get(row.id) === study.id);
    return [...studies.flatMap((study) => [study, ...(all || study.id === open ? trials(study) : [])]), ...this.shown.filter((row) => of.get(row.id) === undefined || (all && !studies.some((study) => study.id === of.get(row.id))))];
  }

  makeStudy(row) {
    const parts = { dot: h("i", { class: "dot", "aria-hidden": "true" }), name: h("b"), state: h("span", { class: "state" }), about: h("span", { class: "about" }), value: h("span", { class: "value" }) };
    const link = h("a", { href: `#/study/${encodeURIComponent(row.id)}` }, h("span", { class: "first" }, parts.dot, parts.name, parts.value), h("span", { class: "second" }, parts.about, parts.state));
    return Object.assign(h("li", null, link), { parts, link });
  }

  fillStudy(node, row) {
    const { parts } = node;
    attr(node, { class: `study ${row.status}` });
    attr(node.link, { "aria-current": row.id === this.study ? "page" : null });
    text(parts.name, row.id);
    text(parts.about, [`${row.strategy ?? "?"} study`, last(row.algorithm), last(row.env)].filter(Boolean).join(" · "));
    text(parts.state, `${row.trials ?? 0} trial${row.trials === 1 ? "" : "s"}`);
    attr(node.link, { title: `${row.id}: ${row.status}` });
    text(parts.value, typeof row.score === "number" ? number(row.score, Math.abs(row.score) < 100 ? 1 : 0) : NONE);
  }

  make(row) {
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${row.id}`, onchange: () => this.onchoose(row.id, box.checked) });
    const parts = { dot: h("i", { class: "dot", "aria-hidden": "true" }), name: h("b"), state: h("span", { class: "state" }), about: h("span", { class: "about" }), value: h("span", { class: "value" }), bar: h("i", { class: "bar", "aria-hidden": "true" }) };
    const link = h("a", { href: `#/run/${encodeURIComponent(row.id)}`, title: row.id },
      h("span", { class: "first" }, parts.dot, parts.name, parts.value), h("span", { class: "second" }, parts.about, parts.state), parts.bar);
    return Object.assign(h("li", null, link, h("label", { class: "pick" }, box)), { parts, link, box });
  }

  fill(node, row) {
    const { parts } = node, study = this.studyOf(row.id);
    attr(node, { class: study ? `trial ${row.status}` : row.status });
    attr(node.link, { "aria-current": row.id === this.current ? "page" : null });
    node.box.checked = this.chosen.includes(row.id);
    text(parts.name, study ? row.id.slice(study.prefix.length) : row.id);
    text(parts.about, `${last(row.algorithm)} · ${last(row.env)}`);
    text(parts.state, row.status === "running" ? `${short(row.step)} steps` : row.status);
    attr(node.link, { title: `${row.id}${row.changed ? `: ${row.status} ${ago(Date.now() / 1000 - row.changed)} ago` : ""}` });
    const value = row.return ?? row.evaluation;
    text(parts.value, typeof value === "number" ? number(value, Math.abs(value) < 100 ? 1 : 0) : NONE);
    parts.bar.style.width = row.status === "running" && row.steps ? `${Math.min(100, (100 * row.step) / row.steps).toFixed(1)}%` : "0";
    text(parts.dot, row.alarms ? "!" : "");
    parts.dot.classList.toggle("alarm", !!row.alarms);
  }
}
