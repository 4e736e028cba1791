// The page of the owner: how far the store is, and how the annotators agree.

import { h, text, ask, number, percent, NONE } from "./dom.js";
import { enter } from "./entering.js";

const EVERY_MS = 5000;
const $ = (id) => document.getElementById(id);
const two = (x) => number(x, 2);
const HEAD = ["annotator", "answers", "error", "gold", "repeats", "left", "link"];

const facts = (pairs) => h("dl", { class: "facts" }, pairs.map(([name, said]) => h("div", null, h("dt", null, name), h("dd", null, said))));

const draw = ({ counts, annotators, each, alpha, shared }) => {
  const total = Object.values(counts.queries).reduce((a, b) => a + b, 0);
  const links = new Map(annotators.map(({ name, active }) => [name, active ? "works" : "revoked"]));
  const rows = [...new Set([...links.keys(), ...Object.keys(each ?? {})])].map((name) => {
    const one = each?.[name];
    const said = one ? [one.answers, percent(one.error), percent(one.gold), percent(one.repeats), percent(one.left_on_screen)] : [0, NONE, NONE, NONE, NONE];
    return h("tr", null, h("th", { scope: "row" }, name), said.map((x) => h("td", null, String(x))), h("td", null, links.get(name) ?? "imported", one?.spammer ? h("b", { class: "bad" }, " answers at random") : null));
  });
  $("main").replaceChildren(
    facts([["queries", number(total, 0)], ["open", number(counts.open, 0)], ["answers", number(counts.answers, 0)], ["undone", number(counts.undone, 0)], ["agreement (alpha)", two(alpha)], ["queries with two answers", number(shared, 0)]]),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Annotators" }, h("table", null, h("thead", null, h("tr", null, HEAD.map((one) => h("th", { scope: "col" }, one)))), h("tbody", null, rows))),
    h("p", { class: "note" }, "error: wrong answers, estimated from all answers. gold: right answers to questions with a known answer. repeats: equal answers to the same question. left: choices of the left side; 50 % is expected."));
};

const problem = (said) => { $("problem").hidden = !said; text($("problem"), said); };

const look = async () => {
  try {
    await enter("api/owner");
    draw(await ask("api/progress"));
    text($("state"), `at ${new Date().toLocaleTimeString()}`);
    problem("");
  } catch (error) {
    problem(error.status ? error.message : "No connection to the server.");
    if (error.status === 401) { text($("state"), ""); return; }
  }
  setTimeout(look, EVERY_MS);
};

addEventListener("hashchange", () => location.reload());
look();
