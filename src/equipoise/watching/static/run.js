// One run: the return, the ring, the bottleneck and suggestions, numbers, workers, curves, samples, alarms.

import { h, s, attr, text, keyed, ask, query, short, number, percent, bytes, clock, seconds, last, ago, NONE } from "./dom.js";
import { Ring, STATES } from "./ring.js";
import { Chart, spark, sparkBox } from "./chart.js";
import { Samples } from "./samples.js";

const CURVES_MS = 1500; // between two looks at the curves
const SHOWN = 4; // remedies that are open
const SIDES = ["sampling", "learning"];
const COLUMNS = ["worker", "time", ...STATES, "cores", "memory", "most of its work"];
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const options = (said) => said.split(/(--[\w-]+(?: \S+)?)/).map((part, i) => (i % 2 ? h("code", null, part) : part));

const card = (title, kind, ...parts) => h("section", { class: `card ${kind}`, "aria-label": title }, title ? h("h2", null, title) : null, ...parts);

export class RunView {
  constructor(id) {
    this.id = id;
    this.ring = new Ring();
    this.samples = new Samples(id);
    this.charts = { return: new Chart("Return of training; dots: evaluations", { height: 15 }), speed: new Chart("Steps/s", { height: 9.2, holds: [0] }), lag: new Chart("Lag, versions", { height: 9.2, holds: [0, 1] }), more: new Chart("Any other number", { height: 11 }) };
    this.areas = Object.fromEntries(SIDES.map((side) => [side, new Chart({ sampling: "Time of the workers that sample", learning: "Time of the learners" }[side], { height: 9.2, areas: true })]));
    const p = this.parts = {
      name: h("h1", null, id), status: h("span", { class: "chip" }, "connecting"), about: h("p", { class: "about" }),
      progress: h("div", { class: "progress", hidden: true }, h("i")), far: h("p", { class: "far" }),
      problems: h("ul", { class: "problems" }), quiet: h("p", { class: "quietly", hidden: true }),
      cause: h("strong"), verdict: h("p", { class: "sentence", "aria-live": "off" }), remedies: h("ol", { class: "remedies" }), further: h("details", { hidden: true }, h("summary"), h("ol", { class: "remedies" })), helps: h("p", { class: "note" }),
      tiles: h("dl", { class: "tiles" }), workers: h("tbody"), more: h("p", { class: "note", hidden: true }), alarms: h("ul", { class: "said" }), notes: h("ul", { class: "said" }), calm: h("p", { class: "note" }),
      phases: h("p", { class: "phases", hidden: true }),
      which: h("select", { "aria-label": "Which number", onchange: () => { this.wanted = p.which.value; this.curves(true); } }),
    };
    const head = h("header", { class: "head" }, h("div", { class: "title" }, p.name, p.status, h("a", { class: "button quiet", href: `#/compare?${query({ run: id })}` }, "Compare")), p.about, p.far, p.progress, p.quiet, p.problems);
    const table = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Workers" }, h("table", { class: "workers" }, h("thead", null, h("tr", null, ...COLUMNS.map((name, i) => h("th", { scope: "col", class: i > 1 && i < 8 ? "num" : null }, name)))), p.workers));
    this.element = h("div", { class: "run" }, head,
      h("div", { class: "column left" }, card("The ring", "ringcard", p.phases, this.ring.element)),
      h("div", { class: "column right" }, card("Return", "learning", this.charts.return.element), card("Bottleneck", "verdict", p.verdict, p.helps, p.remedies, p.further)),
      p.tiles, this.samples.element,
      card("Curves", "curves", h("div", { class: "four" }, this.charts.speed.element, this.charts.lag.element, this.areas.sampling.element, this.areas.learning.element), h("details", null, h("summary", null, "Other numbers"), p.which, this.charts.more.element)),
      card("Workers", "workerscard", table, p.more),
      card("Alarms and notes", "alarms", p.calm, p.alarms, p.notes));
    this.size = -1;
    this.wanted = null;
    this.timer = null;
    this.asked = 0;
  }

  close() {
    this.ring.close();
    for (const one of [...Object.values(this.charts), ...Object.values(this.areas)]) one.close();
    clearTimeout(this.timer);
    this.closed = true;
  }

  update(told) {
    if (this.closed) return;
    this.told = told;
    // A file that was damaged may say anything: what cannot be shown is left as it was, and the rest goes on.
    for (const part of ["head", "verdict", "tiles", "workers", "said"]) {
      try { this[part](told); } catch (error) { console.warn(`${part} of ${this.id}: ${error.message}`); }
    }
    try { this.samples.update(told); } catch (error) { console.warn(`the samples of ${this.id}: ${error.message}`); }
    try { this.ring.update(told); } catch (error) { console.warn(`the ring of ${this.id}: ${error.message}`); }
    this.curves();
  }

  head(told) {
    const p = this.parts;
    text(p.name, told.id);
    attr(p.status, { class: `chip ${told.status}` });
    p.progress.hidden = false;
    text(p.status, told.status);
    text(p.about, [`${last(told.env)}`, last(told.algorithm), isNumber(told.seed) ? `seed ${told.seed}` : null, told.on ? `on ${told.on}` : null, told.host ? `at ${told.host}` : null, told.started ? `since ${told.started.slice(0, 16).replace("T", " ")}` : null].filter(Boolean).join(" · "));
    const goal = told.steps, share = goal ? Math.min(1, (told.step ?? 0) / goal) : 0;
    text(p.far, [goal ? `${percent(share)}: ${short(told.step)} of ${short(goal)} steps` : `${short(told.step)} steps`, `${clock(told.wall_s)} elapsed`, told.status === "running" && isNumber(told.remaining_s) ? `ETA ${clock(told.remaining_s)}` : null,
      told.evaluating ? `evaluating ${told.evaluating.episodes} of ${told.evaluating.of} episodes` : null].filter(Boolean).join(" · "));
    p.progress.firstChild.style.width = `${(100 * share).toFixed(2)}%`;
    attr(p.progress, { class: `progress ${told.status}` });
    const age = told.time ? Date.now() / 1000 - told.time : 0;
    p.quiet.hidden = !["quiet", "killed"].includes(told.status);
    text(p.quiet, told.status === "killed" ? `The run was killed${told.time ? ` ${ago(age)} ago` : ""}: this is its last report. 'equipoise resume' goes on from its newest checkpoint.` : `No report for ${ago(age)}; the process is alive.`);
    keyed(p.problems, (told.problems ?? []).map((said, i) => ({ said, i })), (one) => one.i, () => h("li"), (node, one) => text(node, one.said));
    const phases = Object.entries(told.phases ?? {});
    p.phases.hidden = !phases.length || told.status !== "running";
    text(p.phases, `Starting. ${phases.slice(0, 4).map(([who, what]) => `${who}: ${what}`).join("; ")}${phases.length > 4 ? ` and ${phases.length - 4} more` : ""}`);
  }

  verdict(told) {
    const p = this.parts, [summary, rest] = p.further.children, cause = told.cause ?? "", sentence = String(told.verdict ?? "No verdict yet.");
    if (this.sentence !== sentence) {
      this.sentence = sentence;
      p.verdict.replaceChildren(...(sentence.startsWith(cause) && cause ? [h("strong", null, cause), ...options(sentence.slice(cause.length))] : options(sentence)));
    }
    const list = (told.remedies ?? []).filter((one) => one.low > 1).slice(0, 12), most = Math.max(1.2, ...list.map((one) => one.high));
    text(p.helps, list.length ? "Suggestions: predicted steps/s, as a multiple of the present rate." : "");
    p.further.hidden = list.length <= SHOWN;
    text(summary, `${list.length - SHOWN} more`);
    for (const [place, some] of [[p.remedies, list.slice(0, SHOWN)], [rest, list.slice(SHOWN)]]) this.remedies(place, some, most);
  }

  remedies(place, list, most) {
    keyed(place, list, (one) => one.change, (one) => {
      const parts = { gain: h("b"), bar: h("i", { class: "gain" }, h("i"), h("u")), costs: h("span"), range: h("span", { class: "note" }) };
      const copy = h("button", { type: "button", class: "copy quiet", title: "Copy", "aria-label": `Copy ${one.change}`, onclick: async () => {
        try { await navigator.clipboard.writeText(one.change); text(copy, "copied"); } catch { text(copy, "no clipboard here"); }
        setTimeout(() => text(copy, "copy"), 1500);
      } }, "copy");
      return Object.assign(h("li", null, h("span", { class: "change" }, one.change.startsWith("--") ? h("code", null, one.change) : one.change), parts.gain, parts.bar, h("span", { class: "note" }, parts.costs, one.change.startsWith("--") ? copy : null), parts.range), { parts });
    }, (node, one) => {
      text(node.parts.gain, `× ${number(one.gain, 2)}`);
      text(node.parts.costs, one.costs ? `costs: ${one.costs}` : "");
      text(node.parts.range, `${number(one.low, 2)} to ${number(one.high, 2)}`);
      const at = (x) => `${((100 * Math.max(0, Math.min(most, x) - 1)) / (most - 1)).toFixed(1)}%`;
      node.parts.bar.children[0].style.width = at(one.gain);
      node.parts.bar.children[1].style.left = at(one.low);
      node.parts.bar.children[1].style.right = `${100 - parseFloat(at(one.high))}%`;
    });
  }

  tiles(told) {
    const lag = told.lag ?? {}, bound = lag.now ?? lag.bound, spread = told.evaluation;
    const list = [
      ["return", number(told.return_mean), "last 100 episodes", "return"],
      ["evaluation", number(spread?.mean), isNumber(spread?.mean) ? `± ${number(spread.std)}, ${spread.episodes} episodes` : "none yet", "evaluation"],
      ["steps/s", short(told.steps_per_s), "of env steps", "steps_per_s"],
      ["updates/s", short(told.updates_per_s), `${short(told.version)} so far`, "updates_per_s"],
      [lag.name ?? "lag", number(lag.mean, 2), `max ${lag.max ?? NONE}, bound ${bound ?? "none"}`, "lag"],
      ["episodes", short(told.episodes), isNumber(told.length_mean) ? `${number(told.length_mean, 0)} steps each` : "", "length"],
    ];
    keyed(this.parts.tiles, list, (one) => one[3], ([name]) => {
      const parts = { name: h("dt", null, name), value: h("dd", { class: "big" }), note: h("dd", { class: "note" }), line: sparkBox() };
      return Object.assign(h("div", null, parts.name, parts.value, parts.note, parts.line), { parts });
    }, (node, [name, value, note, key]) => {
      text(node.parts.name, name); text(node.parts.value, value); text(node.parts.note, note);
      const points = this.found?.of?.[key]?.[1];
      if (points && node.points !== points) spark(node.parts.line, (node.points = points).slice(-60));
    });
  }

  workers(told) {
    const list = (told.workers ?? []).slice(0, 64);
    keyed(this.parts.workers, list, (one) => one.name, (one) => {
      const cells = [h("th", { scope: "row" }, one.name), h("td", { class: "bar" }, h("div", { class: "shares", role: "img" }, STATES.map((state) => h("i", { class: `fill ${state}` })))), ...COLUMNS.slice(2, 8).map((name) => h("td", { class: "num", "data-name": name })), h("td", { class: "note" })];
      return Object.assign(h("tr", null, cells), { fields: cells });
    }, (row, one) => {
      const shares = one.shares ?? {}, c = row.fields;
      STATES.forEach((state, i) => { c[1].firstChild.children[i].style.flexGrow = String(shares[state] ?? 0); });
      attr(c[1].firstChild, { "aria-label": STATES.map((state) => `${state} ${percent(shares[state] ?? 0)}`).join(", ") });
      STATES.forEach((state, i) => text(c[2 + i], percent(shares[state])));
      text(c[6], isNumber(one.cores) ? number(one.cores, 2) : NONE); text(c[7], isNumber(one.rss) ? bytes(one.rss) : NONE);
      const parts = Object.entries(one.parts ?? {}).sort((a, b) => b[1] - a[1]).slice(0, 2);
      text(c[8], parts.map(([name, share]) => `${name} ${percent(share)}${one.each_s?.[name] ? ` (${seconds(one.each_s[name])} each)` : ""}`).join(", "));
    });
    const more = (told.more_workers ?? 0) + Math.max((told.workers ?? []).length - 64, 0);
    this.parts.more.hidden = !more;
    text(this.parts.more, `${more} more workers have no row here.`);
  }

  said(told) {
    const alarms = told.alarms?.length ? told.alarms : [];
    const list = Array.isArray(alarms) ? alarms.slice(-20).reverse() : [];
    text(this.parts.calm, list.length ? "" : "No alarms.");
    keyed(this.parts.alarms, list, (one) => `${one.name} ${one.owner} ${one.step}`, (one) => h("li", { class: "alarm" },
      h("b", null, one.name), ` ${one.owner}, at ${clock(one.wall_s)}, step ${short(one.step)}: ${one.evidence}; `, h("span", null, ...options(one.action ?? ""))));
    const notes = (told.notes ?? []).filter((note) => !note.startsWith("warning: alarm:")).slice(-12).reverse();
    keyed(this.parts.notes, notes.map((said, i) => ({ said, i })), (one) => `${one.i} ${one.said}`, (one) => h("li", { class: one.said.startsWith("warning:") ? "warning" : "plain" }, one.said));
  }

  /** Ask for the curves where the file has grown, not too often. */
  curves(now = false) {
    if (this.closed) return;
    const wait = CURVES_MS - (performance.now() - this.asked);
    if (!now && (this.told?.bytes === this.size || this.busy)) return;
    if (!now && wait > 0) { this.timer ??= setTimeout(() => { this.timer = null; this.curves(); }, wait); return; }
    this.asked = performance.now();
    this.size = this.told?.bytes;
    this.busy = true;
    const y = ["return", "evaluation", "steps_per_s", "updates_per_s", "lag", "length", ...SIDES.flatMap((side) => STATES.map((state) => `${side}/${state}`)), ...(this.wanted ? [this.wanted] : [])];
    ask(`api/curves?${query({ run: this.id, y, x: "steps" })}`).then((answer) => this.closed || this.draw(answer[this.id])).catch((error) => console.warn(error.message)).finally(() => { this.busy = false; });
  }

  draw(found) {
    this.found = found;
    const of = (name, style, more = {}) => ({ name, style, x: found.of[name]?.[0] ?? [], y: found.of[name]?.[1] ?? [], ...more });
    this.charts.return.update([of("return", 0), of("evaluation", 1, { dots: true })]);
    this.charts.speed.update([of("steps_per_s", 6, { solid: true })]);
    this.charts.lag.update([of("lag", 3, { solid: true })]);
    for (const side of SIDES) this.areas[side].update(STATES.map((state) => ({ ...of(`${side}/${state}`, 0), name: state, kind: state })));
    const names = found.names.filter((name) => name.includes("/"));
    keyed(this.parts.which, names, (name) => name, (name) => h("option", { value: name }, name));
    if (names.length && !this.wanted) { this.wanted = names.includes("learner/entropy") ? "learner/entropy" : names[0]; this.parts.which.value = this.wanted; this.curves(true); }
    if (this.wanted) this.charts.more.update([of(this.wanted, 4, { solid: true })]);
    if (this.told) this.tiles(this.told);
  }
}
