// The registry: versions of a policy by their parents, aliases on them, and moves that ask again and need the token.

import { h, s, attr, text, keyed, ask, rem, short, number, ago, last, bytes, NONE } from "./dom.js";

const ALIASES = ["champion", "candidate", "shadow", "previous"];
const STEP = [12.5, 7.4], BOX = [10.8, 5.4]; // rem: from a version to the next, and the size of one
const brief = (version) => String(version ?? NONE).slice(0, 12);
const when = (time) => (typeof time === "number" ? `${ago(Date.now() / 1000 - time)} ago` : String(time ?? NONE).slice(0, 16).replace("T", " "));

/** Where each version stands: time goes to the right; a child goes on in its parent's lane, another child in a new one. */
export const layout = (versions) => {
  const sorted = [...versions].sort((a, b) => a.time - b.time), place = new Map(), tails = [];
  const parentOf = (one) => sorted.find((other) => one.lineage?.parent && other !== one && other.version.startsWith(one.lineage.parent))?.version ?? null;
  sorted.forEach((one, column) => {
    const parent = parentOf(one), before = place.get(parent);
    let lane = before && tails[before.lane] === parent ? before.lane : tails.length;
    tails[lane] = one.version;
    place.set(one.version, { column, lane, parent, one });
  });
  return { place, columns: sorted.length, lanes: Math.max(tails.length, 1) };
};

export class VersionsView {
  constructor(policy, { onpolicy, dialog }) {
    Object.assign(this, { policy, onpolicy, dialog });
    const p = this.parts = {
      policies: h("ul", { class: "tabs" }), aliases: h("dl", { class: "aliases" }), edges: s("svg", { class: "edges", "aria-hidden": "true" }), nodes: h("div", { class: "nodes" }),
      detail: h("div", { class: "detail" }), audit: h("ol", { class: "audit" }), back: h("button", { type: "button", onclick: () => this.rollback() }, "Roll back…"), said: h("p", { class: "result", role: "status" }), none: h("p", { class: "note" }),
    };
    p.graph = h("div", { class: "graph scroll", tabindex: 0, role: "region", "aria-label": "Versions by their parents" }, h("div", { class: "canvas" }, p.edges, p.nodes));
    this.full = h("div", { class: "full" }, h("section", { class: "card lineage", "aria-label": "Lineage" }, h("div", { class: "title" }, h("h2", null, "Lineage"), p.back), p.aliases, p.graph, p.said),
      h("section", { class: "card", "aria-label": "The version" }, p.detail), h("section", { class: "card", "aria-label": "Audit" }, h("h2", null, "Audit log"), p.audit));
    this.element = h("div", { class: "versions" }, h("h1", { class: "unseen" }, "Versions"), p.policies, p.none, this.full);
    p.nodes.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      if (!step) return;
      event.preventDefault();
      const all = [...p.nodes.children].sort((a, b) => a.column - b.column), here = all.indexOf(document.activeElement);
      all[Math.max(0, Math.min(all.length - 1, here + step))]?.focus();
    });
    this.watcher = new ResizeObserver(() => { if (this.told) this.show(); });
    this.watcher.observe(p.graph);
    this.load();
  }

  close() { this.closed = true; this.watcher.disconnect(); }

  async load() {
    try { this.told = await ask("api/registry"); } catch (error) {
      this.full.hidden = true;
      this.parts.none.replaceChildren(error.status === 404 ? "Start the page with a registry to see versions here: " : `${error.message} `, error.status === 404 ? h("code", null, "equipoise watch --registry DIR") : "");
      return;
    }
    if (!this.closed) this.show();
  }

  get current() { return this.told.policies.find((one) => one.name === this.policy) ?? this.told.policies[0]; }

  show() {
    const { parts: p, told } = this, here = this.current;
    keyed(p.policies, told.policies, (one) => one.name, (one) => h("li", null, h("a", { href: `#/versions/${encodeURIComponent(one.name)}` }, one.name)), (node, one) => attr(node.firstChild, { "aria-current": one === here ? "page" : null }));
    this.full.hidden = !here;
    text(p.none, here ? "" : "The registry has no policy yet: 'equipoise registry add' makes one.");
    if (!here) return;
    keyed(p.aliases, ALIASES, (one) => one, (one) => h("div", { class: `alias ${one}` }, h("dt", null, one), h("dd")), (node, one) => {
      const version = here.aliases[one];
      if (node.version === version && node.lastChild.hasChildNodes()) return;
      node.version = version;
      node.lastChild.replaceChildren(version ? h("button", { type: "button", class: "link", onclick: () => this.pick(version, true) }, brief(version)) : h("span", { class: "note" }, "not set"));
    });
    p.back.hidden = !here.aliases.previous;
    const { place, columns, lanes } = layout(here.versions), em = rem();
    // whole boxes fill the view, so that none is cut at its ends
    const seen = p.graph.clientWidth, fit = Math.max(1, Math.floor(seen / (STEP[0] * em)));
    const step = columns > fit && seen ? seen / fit : STEP[0] * em, side = Math.max((step - BOX[0] * em) / 2, 0);
    const spot = ({ column, lane }) => [column * step + side, lane * STEP[1] * em + 0.6 * em];
    const width = columns * step, height = ((lanes - 1) * STEP[1] + BOX[1] + 1.2) * em;
    attr(p.edges, { viewBox: `0 0 ${width} ${height}`, width, height });
    p.nodes.parentElement.style.width = `${width}px`; p.nodes.parentElement.style.height = `${height}px`;
    p.edges.replaceChildren(...[...place.values()].filter((one) => one.parent).map((one) => {
      const [x, y] = spot(one), [px, py] = spot(place.get(one.parent)), from = [px + BOX[0] * em, py + (BOX[1] * em) / 2], to = [x, y + (BOX[1] * em) / 2], bend = Math.min(60, (to[0] - from[0]) / 1.6);
      return s("path", { d: `M${from}C${from[0] + bend} ${from[1]} ${to[0] - bend} ${to[1]} ${to}` });
    }));
    keyed(p.nodes, [...place.values()], ({ one }) => one.version, ({ one }) => {
      const at = { hash: h("b"), what: h("span"), score: h("span", { class: "score" }), flags: h("span", { class: "flags" }) };
      return Object.assign(h("button", { type: "button", class: "node", onclick: () => this.pick(one.version) }, h("span", { class: "first" }, at.hash, at.score), at.what, at.flags), { at });
    }, (node, spotted) => {
      const { one } = spotted, [x, y] = spot(spotted), lineage = one.lineage ?? {}, flags = ALIASES.filter((alias) => here.aliases[alias] === one.version);
      node.column = spotted.column;
      Object.assign(node.style, { left: `${x}px`, top: `${y}px`, width: `${BOX[0]}rem`, height: `${BOX[1]}rem` });
      attr(node, { class: `node ${flags[0] ?? ""}`, "aria-pressed": String(one.version === this.version) });
      text(node.at.hash, brief(one.version)); text(node.at.score, score(lineage.evaluation));
      text(node.at.what, [typeof lineage.step === "number" ? `${short(lineage.step)} steps` : null, when(one.time)].filter(Boolean).join(" · "));
      keyed(node.at.flags, flags, (flag) => flag, (flag) => h("i", { class: flag }, flag));
    });
    if (!here.versions.some((one) => one.version === this.version)) this.version = here.aliases.champion ?? here.versions[0]?.version;
    if (this.shown !== here.name) { // begin where the champion is
      this.shown = here.name;
      const [x] = spot(place.get(this.version) ?? { column: columns, lane: 0 });
      requestAnimationFrame(() => { p.graph.scrollLeft = Math.round((x + step / 2 - seen / 2) / step) * step; });
    }
    this.detail();
    keyed(p.audit, [...here.audit].reverse().slice(0, 100), (one) => one.record, (one) => h("li", { class: one.kind }, h("time", null, when(one.time)), h("span", null, h("b", null, one.kind), " ", one.alias && one.kind !== one.alias ? `${one.alias} ` : "",
      one.from ? `${brief(one.from)} → ` : "", one.version ? brief(one.version) : "", one.problem ? `: ${one.problem}` : ""), h("span", { class: "note" }, [one.who, one.reason].filter(Boolean).join(": "))));
  }

  pick(version, seen = false) {
    this.version = version;
    this.show();
    if (seen) [...this.parts.nodes.children].find((node) => node.getAttribute("aria-pressed") === "true")?.scrollIntoView({ block: "nearest", inline: "center" });
  }

  detail() {
    const here = this.current, one = here.versions.find((each) => each.version === this.version);
    const shape = JSON.stringify([here.name, here.revision, one]);
    if (shape === this.shape) return;
    this.shape = shape;
    if (!one) { this.parts.detail.replaceChildren(); return; }
    const lineage = one.lineage ?? {}, champion = here.aliases.champion === one.version;
    const rows = [["version", h("code", null, one.version)], ["run", lineage.run && h("bdi", null, lineage.run)], ["step", typeof lineage.step === "number" ? lineage.step.toLocaleString("en") : null], ["algorithm", lineage.algorithm && last(lineage.algorithm)],
      ["evaluation", evaluation(lineage.evaluation)], ["parent", lineage.parent && h("button", { type: "button", class: "link", onclick: () => this.pick(here.versions.find((each) => each.version.startsWith(lineage.parent))?.version ?? this.version, true) }, brief(lineage.parent))],
      ["data", lineage.data && h("code", null, brief(lineage.data))], ["commit", lineage.commit && h("code", null, brief(lineage.commit))], ["size", typeof one.size === "number" ? bytes(one.size) : null],
      ["added", [when(one.time), one.who && `by ${one.who}`, one.reason].filter(Boolean).join(" ")], ["problem", one.problem && h("strong", { class: "bad" }, one.problem)]].filter(([, value]) => value);
    const act = (alias, word) => h("button", { type: "button", disabled: here.aliases[alias] === one.version, class: alias === "champion" ? "primary" : null, onclick: () => this.promote(one.version, alias) }, word);
    this.parts.detail.replaceChildren(h("h2", null, champion ? "The champion" : "The version"), h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
      h("div", { class: "acts" }, act("champion", "Promote to champion…"), act("candidate", "Make candidate…"), act("shadow", "Make shadow…")));
  }

  promote(version, alias) {
    const here = this.current, now = here.aliases[alias] ?? "";
    this.confirm(`Make ${brief(version)} the ${alias} of ${here.name}?`, [[`${alias} now`, now ? brief(now) : "not set"], [`${alias} then`, brief(version)]],
      alias === "champion" ? "Servers of this policy take it at their next look: sessions end their episodes with the version that they began with." : "", alias === "champion" ? "Promote" : "Move",
      (reason) => ["api/alias", { policy: here.name, alias, version, expect: now, reason }]);
  }

  rollback() {
    const here = this.current, { champion, previous } = here.aliases;
    this.confirm(`Roll ${here.name} back?`, [["champion now", brief(champion)], ["champion then", brief(previous)]], "", "Roll back", (reason) => ["api/rollback", { policy: here.name, expect: champion ?? "", reason }]);
  }

  /** Ask again, with the token; the server writes down who, when, what and why. */
  confirm(title, rows, note, word, request) {
    const reason = h("input", { type: "text", maxlength: 300, autocomplete: "off" }), token = h("input", { type: "password", required: true, autocomplete: "off", value: this.token ?? "" }), wrong = h("p", { class: "bad", role: "alert" });
    const go = h("button", { type: "submit", class: "primary" }, word);
    const form = h("form", { onsubmit: async (event) => {
      event.preventDefault();
      go.disabled = true;
      text(wrong, "");
      try {
        const [path, body] = request(reason.value);
        const { version } = await ask(path, body, { Authorization: `Bearer ${token.value}` });
        this.token = token.value;
        this.dialog.close();
        text(this.parts.said, `Done: ${brief(version)}.`);
        await this.load();
      } catch (error) { text(wrong, error.message); if (error.status === 409) this.load(); } finally { go.disabled = false; }
    } }, h("h2", { id: "ask-title" }, title), h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, h("code", null, value))])), note ? h("p", { class: "note" }, note) : null,
      h("label", null, "Why (it is written down)", reason), h("label", null, "Token of 'equipoise watch'", token), wrong, h("div", { class: "acts" }, h("button", { type: "button", onclick: () => this.dialog.close() }, "Cancel"), go));
    this.dialog.replaceChildren(form);
    this.dialog.showModal();
    (token.value ? reason : token).focus();
  }
}

const score = (found) => (typeof found === "number" ? number(found) : typeof found?.mean === "number" ? number(found.mean) : "");
const evaluation = (found) => (typeof found?.mean === "number" ? `${number(found.mean)}${typeof found.std === "number" ? ` ± ${number(found.std)}` : ""}${found.episodes ? `, ${found.episodes} episodes` : ""}` : typeof found === "number" ? number(found) : null);
