// The page: the server's events, the view that is shown, keys, light and dark.

import { h, attr, text, ask, query, rem } from "./dom.js";
import { Shelf } from "./shelf.js";
import { RunView } from "./run.js";
import { CompareView, MOST } from "./compare.js";
import { VersionsView } from "./versions.js";
import { StudyView } from "./study.js";

const $ = (id) => document.getElementById(id);
const main = $("main"), narrow = matchMedia("(max-width: 60rem)");
const state = { view: null, kind: "", id: null, study: null, chosen: [], source: null, hello: null };

const shelf = new Shelf({ list: $("runs"), input: $("filter"), counted: $("counted"), none: $("none"), onchoose: (id, on) => choose(id, on) });

// ------------------------------------------------------------------------------------------------------ where we are

const parse = () => {
  const [path, words = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [kind, ...rest] = path.split("/");
  let name = rest.join("/");
  try { name = decodeURIComponent(name); } catch { /* as it is */ }
  return { kind: kind || "run", name, chosen: new URLSearchParams(words).getAll("run") };
};

const compareHash = (ids) => `#/compare${ids.length ? `?${query({ run: ids })}` : ""}`;

const choose = (id, on) => {
  const ids = on ? [...state.chosen.filter((one) => one !== id), id].slice(-MOST) : state.chosen.filter((one) => one !== id);
  state.chosen = ids;
  if (state.kind === "compare") history.replaceState(null, "", compareHash(ids));
  if (state.kind === "compare") state.view.choose(ids);
  shelf.draw(state.kind === "run" ? state.id : null, ids);
  attr(document.querySelector('[data-view="compare"]'), { href: compareHash(ids) });
};

const route = () => {
  let { kind, name, chosen } = parse();
  if (kind === "study" && !name) name = shelf.sorted(shelf.studies)[0]?.id ?? "";
  const loose = shelf.sorted().find((row) => !shelf.studyOf(row.id)), only = shelf.sorted(shelf.studies)[0];
  if (kind === "run" && !name && !state.id && !loose && only) { kind = "study"; name = only.id; }
  const id = kind === "study" ? name : name || state.id || (loose ?? shelf.sorted()[0])?.id;
  const was = state.kind, same = kind === was && (kind !== "run" || id === state.id) && (kind !== "study" || id === state.study) && kind !== "compare" && kind !== "versions";
  for (const link of document.querySelectorAll("[data-view]")) attr(link, { "aria-current": link.dataset.view === kind ? "page" : null });
  if (same) return;
  if (kind === "versions" && was === "versions" && state.view) { state.view.policy = name; if (state.view.told) state.view.show(); return; }
  if (kind === "compare" && was === "compare" && state.view) { state.chosen = chosen; state.view.choose(chosen); shelf.draw(null, chosen); return; }
  state.view?.close?.();
  state.kind = kind;
  state.study = kind === "study" ? id : null;
  if (kind === "compare") {
    if (chosen.length) state.chosen = chosen.slice(0, MOST);
    state.view = new CompareView(state.chosen, shelf.rows, { onleave: (one) => choose(one, false), onseeds: () => { for (const row of shelf.shown.slice(0, MOST)) choose(row.id, true); } });
    state.view.update();
  } else if (kind === "versions") {
    state.view = new VersionsView(name, { dialog: $("ask") });
  } else if (kind === "study") {
    state.view = new StudyView(id);
    if (narrow.matches && was) $("shelf").open = false;
  } else {
    state.kind = "run";
    state.id = id;
    if (!id) { main.replaceChildren(empty()); state.view = null; return; }
    state.view = new RunView(id);
    if (narrow.matches && was) $("shelf").open = false;
  }
  document.title = kind === "run" || kind === "study" ? `${id} · equipoise` : `${kind} · equipoise`;
  main.replaceChildren(state.view.element);
  scrollTo(0, 0);
  shelf.draw(state.kind === "run" ? state.id : null, state.chosen, state.study);
  listen();
};

const empty = () => (shelf.known
  ? h("div", { class: "card empty" }, h("h1", null, "No runs yet"), h("p", { class: "note" }, `Nothing is in ${state.hello?.place ?? "the folder"}. A run appears here as soon as it begins:`), h("pre", null, "equipoise train CartPole-v1 --stop-at 475"))
  : h("div", { class: "card empty" }, h("h1", null, "Connecting"), h("p", { class: "note" }, "The runs appear here when the server answers.")));

// ---------------------------------------------------------------------------------------------------- what is pushed

const link = (kind, said) => { attr($("link"), { class: kind }); text($("link").lastElementChild, said); };

const listen = () => {
  const run = state.kind === "run" ? state.id : null, about = state.study ? query({ study: state.study }) : run ? query({ run }) : "";
  if (state.source && state.listening === about) return;
  state.source?.close();
  state.listening = about;
  const source = state.source = new EventSource(`api/events${about ? `?${about}` : ""}`);
  const on = (name, act) => source.addEventListener(name, (event) => source === state.source && act(JSON.parse(event.data)));
  on("hello", (said) => { state.hello = said; link("on", "live"); attr($("link"), { title: `${said.place}, equipoise ${said.version}` }); });
  on("runs", (news) => {
    const first = !shelf.known;
    shelf.take(news);
    if (first && state.kind === "run" && !state.view) main.replaceChildren(empty());
    if (state.kind === "compare") state.view.update();
    else if (state.kind === "run" && !state.view && (shelf.rows.size || shelf.studies.size)) { state.kind = ""; route(); }
    else if (state.kind === "run" && state.view && !shelf.rows.has(state.id)) text($("none"), "");
    if (news.all && state.kind === "run" && state.id && !shelf.rows.has(state.id)) gone("run", state.id);
    if (news.all && state.study && !shelf.studies.has(state.study)) gone("study", state.study);
  });
  on("run", (told) => { if (state.kind === "run" && told.id === state.id) state.view?.update(told); });
  on("study", (told) => { if (told.id === state.study) state.view?.update(told); });
  on("versions", () => { if (state.kind === "versions") state.view.load(); });
  source.onerror = async () => {
    if (source !== state.source) return;
    link("off", "no connection");
    if (source.readyState !== EventSource.CLOSED) return;
    const problem = await ask("api/curves").then(() => null, (error) => error);
    if (problem?.status === 401) enter(); else setTimeout(() => { if (source === state.source) { state.source = null; listen(); } }, 2000);
  };
};

const gone = (kind, id) => { main.replaceChildren(h("div", { class: "card empty" }, h("h1", null, `No such ${kind}`), h("p", { class: "note" }, `There is no ${kind} ${id} in ${state.hello?.place}. The list has every ${kind} of this folder.`))); };

/** Ask for the token of a server that other machines reach. */
const enter = () => {
  const dialog = $("ask"), token = h("input", { type: "password", required: true, autocomplete: "off" }), wrong = h("p", { class: "bad", role: "alert" });
  if (dialog.open) return;
  dialog.replaceChildren(h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try { await ask("api/enter", { token: token.value }); dialog.close(); state.source = null; state.kind = ""; route(); if (!state.source) listen(); } catch (error) { text(wrong, error.message); }
  } }, h("h2", { id: "ask-title" }, "Token"), h("p", { class: "note" }, "This page needs the token that 'equipoise watch' was given."), h("label", null, "Token", token), wrong, h("div", { class: "acts" }, h("button", { type: "submit", class: "primary" }, "Enter"))));
  dialog.showModal();
};

// ------------------------------------------------------------------------------------------------------- keys, colours

const KEYS = [["1 2 3", "the run, compare, versions"], ["/", "filter the runs"], ["j k", "the next run, the one before"], ["x", "add this run to the comparison, or remove it"], ["t", "theme: auto, light, dark"], ["← →", "in a curve: read its values; in the lineage: the next version"], ["↑ ↓", "in the list: the next run"], ["?", "these keys"], ["Esc", "close"]];

const themes = ["", "light", "dark"], names = { "": "auto", light: "light", dark: "dark" };
const theme = (next) => {
  const root = document.documentElement, now = root.dataset.theme ?? "";
  const to = next ? themes[(themes.indexOf(now) + 1) % themes.length] : now;
  if (to) root.dataset.theme = to; else delete root.dataset.theme;
  try { if (to) localStorage.setItem("theme", to); else localStorage.removeItem("theme"); } catch { /* it holds for this page */ }
  $("theme").replaceChildren(h("kbd", { "aria-hidden": "true" }, "t"), h("span", null, `Theme: ${names[to]}`));
  attr($("theme"), { "aria-label": `Theme: ${names[to]}` });
};

const help = () => {
  const dialog = $("help");
  dialog.replaceChildren(h("h2", { id: "help-title" }, "Keys"), h("dl", { class: "keys" }, KEYS.map(([keys, what]) => [h("dt", null, keys.split(" ").map((key) => h("kbd", null, key))), h("dd", null, what)])), h("div", { class: "acts" }, h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
};

/** Go there at once: a hash that is only set is looked at later, when the next key may be down already. */
const go = (hash) => { if (location.hash !== hash) { history.pushState(null, "", hash); route(); } };

const onward = (step) => {
  const rows = shelf.shown, here = rows.findIndex((row) => row.id === state.id), next = rows[Math.max(0, Math.min(rows.length - 1, here + step))];
  if (next) { go(`#/run/${encodeURIComponent(next.id)}`); document.querySelector('#runs a[aria-current]')?.scrollIntoView({ block: "nearest" }); }
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input:not([type=checkbox]):not([type=range]), select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
  const act = {
    1: () => go(state.id ? `#/run/${encodeURIComponent(state.id)}` : "#/run"), 2: () => go(compareHash(state.chosen)), 3: () => go("#/versions"),
    "/": () => { $("shelf").open = true; $("filter").focus(); }, j: () => onward(1), k: () => onward(-1), x: () => state.id && choose(state.id, !state.chosen.includes(state.id)), t: () => theme(true), "?": help,
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});

$("theme").addEventListener("click", () => theme(true));
$("keys").addEventListener("click", help);
addEventListener("hashchange", route);
const hatch = () => { for (const one of document.querySelectorAll("pattern")) attr(one, { patternTransform: `${one.id === "fill-preempted" ? "rotate(45) " : ""}scale(${(rem() / 16).toFixed(2)})` }); };
addEventListener("resize", hatch);
hatch();
if (narrow.matches) $("shelf").open = false;
theme(false);

const word = /^#token=(.+)$/.exec(location.hash); // said in the part of an address that no server sees
if (word) {
  history.replaceState(null, "", location.pathname);
  let token = word[1];
  try { token = decodeURIComponent(token); } catch { /* as it is */ }
  await ask("api/enter", { token }).catch(() => null);
}
route();
if (!state.source) listen();
