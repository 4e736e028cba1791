// The ring: workers as arcs cut into what their time was, stores as gauges, and between them what flows and who waits.

import { s, h, attr, text, keyed, rem, short, number, percent, NONE } from "./dom.js";

export const STATES = ["worked", "preempted", "starved", "blocked"];
const MOST_TRACKS = 10; // arcs of one station; beyond that its workers are one arc
const BACK = [146, 214]; // degrees, clockwise from the top: the way of the weights
const BLOCKS = 0.05; // share of the time from which waiting is drawn
const FLOW = [0, 2.6, 1.9, 1.3, 0.9]; // seconds for a dot to take the place of the next one, by level

const at = (c, r, degrees) => {
  const t = (degrees * Math.PI) / 180;
  return [c[0] + r * Math.sin(t), c[1] - r * Math.cos(t)];
};
const point = (p) => `${p[0].toFixed(2)} ${p[1].toFixed(2)}`;
const arc = (c, r, a, b) => `M${point(at(c, r, a))}A${r.toFixed(2)} ${r.toFixed(2)} 0 ${+(b - a > 180)} 1 ${point(at(c, r, b))}`;

/** What each station and arrow has of the way from the actors to the learner, in degrees. */
const places = (stations) => {
  const weight = (one, i) => (i === 0 || i === stations.length - 1 ? 3.1 : one.shares ? 1.5 : 1.15);
  const gap = stations.length > 3 ? 0.85 : 1.1;
  const weights = stations.map(weight);
  const whole = weights.reduce((a, b) => a + b) + gap * (stations.length - 1);
  const unit = (360 - (BACK[1] - BACK[0])) / whole;
  let angle = BACK[1];
  return stations.map((_, i) => {
    const start = angle, end = start + weights[i] * unit;
    angle = end + gap * unit;
    return { start, end, next: angle };
  });
};

/** The arcs of a station: its workers, each one, or where they are many all as one. */
const tracks = (station, i, workers) => {
  if (!station.shares) return [];
  const mine = workers.filter((one) => one.station === i);
  const some = mine.length && mine.length <= MOST_TRACKS ? mine : [{ name: station.name, shares: station.shares }];
  return some.map((one) => ({ name: one.name, shares: one.shares ?? {} }));
};

const said = (name, shares) => {
  const parts = STATES.filter((state) => (shares[state] ?? 0) >= 0.005).map((state) => `${state} ${percent(shares[state])}`);
  return `${name}: ${parts.join(", ") || "nothing measured yet"}`;
};

/** The words beside an arrow, each with its kind (record/ring.py has them). */
const beside = (arrow) => arrow?.said ?? [];

export class Ring {
  constructor() {
    this.svg = s("svg", { class: "ring", role: "img", "aria-label": "The ring: nothing was measured yet." });
    this.flows = h("ul", { class: "flows" });
    this.legend = h("ul", { class: "legend" }, STATES.map((state) => h("li", null,
      s("svg", { class: "swatch", viewBox: "0 0 12 12", "aria-hidden": "true" }, s("rect", { class: state, width: 12, height: 12 })),
      h("span", null, { worked: "worked", preempted: "preempted: waits for a core", starved: "starved: waits for input", blocked: "blocked: waits for room" }[state]))));
    this.element = h("div", { class: "ringbox" }, this.svg, this.flows, this.legend);
    this.width = 0;
    this.shape = "";
    this.watcher = new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - this.width) < 2) return;
      this.width = entry.contentRect.width;
      if (this.told) this.update(this.told);
    });
    this.watcher.observe(this.element);
  }

  close() { this.watcher.disconnect(); }

  update(told) {
    this.told = told;
    const stations = told.ring?.stations ?? [];
    if (!this.width || stations.length < 2) { this.svg.replaceChildren(); this.shape = ""; return; }
    const all = stations.map((one, i) => tracks(one, i, told.workers ?? []));
    const shape = JSON.stringify([this.width, rem(), stations.map((one, i) => [one.noun, !!one.shares, all[i].length]), !!told.ring.back]);
    if (shape !== this.shape) { this.shape = shape; this.build(stations, all, !!told.ring.back); }
    this.show(told, stations, all);
  }

  build(stations, all, back) {
    // Words at the arrows stand beside the ring where there is room, else in a list below it; names bend along the ring.
    const em = rem(), room = (this.width / 2 / em - 11.5) / 0.62 - 1.2, wide = room >= 11.5;
    const crowded = stations.length > 3, above = (wide ? (crowded ? 5.6 : 3.4) : 2.1) * em, below = (wide ? 4.4 : 1.2) * em;
    const outer = Math.min(this.width / 2 - 2 * em, (wide ? Math.min(room, 18) : 13.5) * em);
    const height = 2 * outer + above + below;
    const c = [this.width / 2, above + outer], thick = Math.min(outer * 0.36, 5.6 * em), inner = outer - thick, middle = outer - thick / 2;
    attr(this.svg, { viewBox: `0 0 ${this.width.toFixed(1)} ${height.toFixed(1)}`, height: height.toFixed(1), width: this.width.toFixed(1) });
    const place = places(stations);
    this.parts = { stations: [], arrows: [], labels: [] };
    const nodes = [s("circle", { class: "orbit", cx: c[0], cy: c[1], r: middle, fill: "none" })];

    stations.forEach((one, i) => {
      const { start, end } = place[i], arcs = [];
      const n = Math.max(all[i].length, one.shares ? Math.min(2, all[i].length + 1) : 1), each = thick / n, space = Math.min(0.22 * em, each / 4);
      (all[i].length ? all[i] : [null]).forEach((track, k) => {
        const whole = all[i].length === 1 || !track;
        const r = whole ? middle : outer - each * (k + 0.5), width = (whole ? thick * 0.72 : each) - space;
        const d = arc(c, r, start, end), title = s("title");
        const pieces = (track ? STATES : ["full"]).map((state) =>
          s("path", { class: `piece ${state}`, d, pathLength: 1000, "stroke-width": width.toFixed(2) }));
        arcs.push({ title, pieces });
        nodes.push(s("g", { class: track ? "track" : "store" }, title, s("path", { class: "ground", d, "stroke-width": width.toFixed(2) }), pieces));
      });
      this.parts.stations.push(arcs);
    });

    const draw = (a, b, kind) => {
      const pad = Math.min(4, (b - a) / 8), from = a + pad, to = b - pad - 3.2, d = arc(c, middle, from, to);
      const tip = at(c, middle, b - pad), wing = 0.62 * em, [x, y] = at(c, middle + wing, to), [u, v] = at(c, middle - wing, to);
      const way = s("path", { class: "way", d }), dots = s("path", { class: "dots", d });
      const head = s("path", { class: "head", d: `M${point([x, y])}L${point(tip)}L${point([u, v])}Z` });
      // Back-pressure: chevrons against the flow, at the end where there is no room.
      const press = s("g", { class: "press" }, [0, 1, 2].map((k) => {
        const angle = from + 0.5 + k * 4, [p, q, t] = [at(c, middle + 0.7 * em, angle + 2.6), at(c, middle, angle), at(c, middle - 0.7 * em, angle + 2.6)];
        const d = `M${point(p)}L${point(q)}L${point(t)}`;
        return s("g", null, s("path", { class: "halo", d }), s("path", { d }));
      }));
      const group = s("g", { class: `arrow ${kind}` }, way, dots, head, press);
      nodes.push(group);
      return { group, way, dots, press, angle: (a + b) / 2 };
    };
    for (let i = 0; i + 1 < stations.length; i++) this.parts.arrows.push(draw(place[i].end, place[i].next, "rows"));
    this.parts.back = back ? draw(BACK[0], BACK[1], "back") : null;

    const label = (angle, lines, far) => {
      const turn = Math.sin((angle * Math.PI) / 180), anchor = turn < -0.25 ? "end" : turn > 0.25 ? "start" : "middle";
      const [x, y] = at(c, outer + far * em, angle), up = -Math.cos((angle * Math.PI) / 180);
      const first = y + (anchor === "middle" ? (up < 0 ? -(lines - 1) * 1.3 * em : 0.7 * em) : (-(lines - 1) * 0.65 + 0.3) * em + up * 0.7 * em);
      const rows = Array.from({ length: lines }, (_, k) => s("text", {
        x: x.toFixed(1), y: (first + k * 1.3 * em).toFixed(1), class: "said", "text-anchor": anchor }));
      nodes.push(...rows);
      return rows;
    };
    this.parts.names = stations.map((one, i) => {
      const { start, end } = place[i], more = i && i < stations.length - 1 ? (crowded ? 7 : 16) : 2;
      const name = s("tspan"), rest = s("tspan", { class: "rest" });
      nodes.push(s("path", { id: `bent-${i}`, d: arc(c, outer + 0.6 * em, start - more, end + more) }),
        s("text", { class: "name", "text-anchor": "middle" }, s("textPath", { href: `#bent-${i}`, startOffset: "50%" }, name, rest)));
      return { name, rest, room: ((end - start + 2 * more) / 57.3) * (outer / em) };
    });
    this.parts.said = wide ? this.parts.arrows.map((one) => label(one.angle, 4, crowded && Math.abs(Math.sin((one.angle * Math.PI) / 180)) < 0.25 ? 2.3 : 1.2)) : [];
    this.parts.backSaid = wide && back ? label(180, 2, 0.9) : null;
    const centre = (dy, kind) => { const node = s("text", { x: c[0], y: c[1] + dy * em, class: kind, "text-anchor": "middle" }); nodes.push(node); return node; };
    const big = Math.min(4.6, inner / em / 2.4);
    this.parts.centre = [centre(-0.1 * big, "big"), centre(0.62 * big + 0.3, "unit"), centre(0.62 * big + 1.8, "unit")];
    this.parts.centre[0].style.fontSize = `${big.toFixed(2)}rem`;
    this.svg.replaceChildren(...nodes);
    this.element.classList.toggle("narrow", !wide);
  }

  show(told, stations, all) {
    const { parts } = this;
    stations.forEach((one, i) => {
      parts.stations[i].forEach(({ title, pieces }, k) => {
        const track = all[i][k];
        if (!track) {
          const full = typeof one.full === "number" ? one.full : 0;
          text(title, `${one.name}: ${typeof one.full === "number" ? `${percent(full)} full` : "how full is unknown"}`);
          pieces[0].style.strokeDasharray = `${(1000 * full).toFixed(1)} 2000`;
          pieces[0].style.visibility = full > 0.002 ? "visible" : "hidden";
          return;
        }
        text(title, said(track.name, track.shares));
        let from = 0;
        pieces.forEach((piece, j) => {
          const share = track.shares[STATES[j]] ?? 0;
          piece.style.strokeDasharray = `${(1000 * share).toFixed(1)} 2000`;
          piece.style.strokeDashoffset = `${(-1000 * from).toFixed(1)}`;
          piece.style.visibility = share > 0.002 ? "visible" : "hidden";
          from += share;
        });
      });
      const { name, rest, room } = parts.names[i];
      const more = [one.shares ? `${percent(one.shares.worked ?? 0)} worked` : null, typeof one.full === "number" ? `${percent(one.full)} full` : null].filter(Boolean).join(", ");
      const brief = one.name.length * 0.53 > room && one.noun ? one.noun : one.name;
      text(name, brief);
      text(rest, more && (brief.length + more.length + 3) * 0.5 < room ? ` · ${more}` : "");
    });
    const moving = told.status === "running";
    const arrows = told.ring.arrows ?? [];
    parts.arrows.forEach((one, i) => this.flow(one, arrows[i] ?? {}, moving));
    arrows.forEach((arrow, i) => {
      const rows = parts.said[i];
      if (!rows) return;
      const lines = beside(arrow).map(([said, kind]) => ({ said, kind: kind === "flow" ? "said flow" : `said ${kind}-word` }));
      const spare = Math.max(0, rows.length - lines.length), top = parts.arrows[i].angle % 360 > 300 || parts.arrows[i].angle % 360 < 60 ? spare : 0; // close to the ring
      rows.forEach((row, k) => { const line = lines[k - top]; text(row, line?.said ?? ""); attr(row, { class: line?.kind ?? "said" }); });
    });
    if (parts.back) {
      this.flow(parts.back, told.ring.back ?? {}, moving);
      const lines = beside(told.ring.back);
      parts.backSaid?.forEach((row, k) => text(row, lines[k]?.[0] ?? ""));
    }
    const steps = told.steps_per_s || (told.updates_per_s ?? null), word = told.steps_per_s ? "steps/s" : "updates/s";
    text(parts.centre[0], steps === null ? NONE : short(steps));
    text(parts.centre[1], word);
    const lag = told.lag ?? {};
    text(parts.centre[2], typeof lag.mean === "number" ? `${lag.name} ${number(lag.mean, lag.mean < 100 ? 1 : 0)}` : "");
    const list = [...stations.slice(0, -1).map((one, i) => ({ key: i, from: one.name, to: stations[i + 1].name, said: beside(arrows[i]) })),
      ...(told.ring.back ? [{ key: "back", from: stations.at(-1).name, to: stations[0].name, said: beside(told.ring.back) }] : [])];
    this.flows.classList.toggle("four", list.length === 4);
    keyed(this.flows, list, (one) => one.key, () => h("li", null, h("span", { class: "way" }), h("span", { class: "what" })), (node, one) => {
      text(node.children[0], `${one.from} → ${one.to}`);
      text(node.children[1], one.said.map(([said]) => said).join(" · ") || "nothing flows");
    });
    attr(this.svg, { "aria-label": `The ring. ${stations.map((one) => (one.shares ? said(one.name, one.shares) : one.name)).join("; ")}.` });
  }

  flow(drawn, arrow, moving) {
    const level = Math.max(0, Math.min(4, arrow.level ?? 0));
    const blocked = (arrow.waits ?? []).filter(([, state]) => state === "blocked").reduce((sum, [, , share]) => Math.max(sum, share), 0);
    const starved = (arrow.waits ?? []).filter(([, state]) => state === "starved").reduce((sum, [, , share]) => Math.max(sum, share), 0);
    drawn.group.style.setProperty("--wide", `${0.16 + 0.1 * level}rem`);
    drawn.group.style.setProperty("--pace", `${FLOW[level] || 2}s`);
    drawn.group.classList.toggle("still", !level || !moving);
    drawn.group.classList.toggle("dry", starved >= BLOCKS && blocked < BLOCKS);
    [...drawn.press.children].forEach((one, k) => one.classList.toggle("on", blocked >= [BLOCKS, 0.3, 0.6][k]));
  }
}
