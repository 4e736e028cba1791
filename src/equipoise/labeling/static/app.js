// The page of an annotator: a question, its answer, and the next one.

import { h, attr, text, ask } from "./dom.js";
import { enter } from "./entering.js";
import { load, Player } from "./clip.js";
import { Outbox } from "./outbox.js";

const REST_MS = 300; // after a question is shown: the second half of a double press is no answer to it
const LOOK_MS = 10000; // between two looks for a question while there is none
const LONGEST_S = 7 * 86400;
const $ = (id) => document.getElementById(id);
const SIDES = ["left", "right"];
const KEYS = { ArrowLeft: "left", ArrowRight: "right", e: "equal", c: "cannot_tell", r: "replay", u: "undo" };
const state = { outbox: null, shown: null, last: null, wait: 1000, timer: 0, running: false, again: false };

const problem = (said) => { $("problem").hidden = !said; text($("problem"), said); };

// ---------------------------------------------------------------------------------------------------- what is shown

const messages = (said) => (typeof said === "string"
  ? h("p", { class: "text", dir: "auto" }, said)
  : said.map(({ role, content }) => h("div", { class: "message" }, h("b", null, role), h("p", { class: "text", dir: "auto" }, content))));

const item = (side, said) => {
  const content = said.problem ? h("p", { class: "bad" }, said.problem) : said.text !== undefined ? messages(said.text) : h("p", { class: "note" }, "Loading");
  return h("section", { class: "side", "aria-labelledby": `${side}-name` }, h("h2", { id: `${side}-name` }, side === "left" ? "Left" : "Right"), h("div", { class: "content" }, content));
};

const show = (question) => {
  state.shown?.close.abort();
  state.shown?.player?.close();
  const shown = state.shown = { lease: question.lease, close: new AbortController(), player: null, since: performance.now(), ready: false, done: false };
  const sides = SIDES.map((side) => item(side, question[side]));
  $("main").replaceChildren(...(question.prompt ? [h("section", { class: "prompt", "aria-labelledby": "prompt-name" }, h("h2", { id: "prompt-name" }, "Prompt"), question.prompt.problem ? h("p", { class: "bad" }, question.prompt.problem) : messages(question.prompt.text))] : []), h("div", { class: `pair ${question.kind}s` }, sides));
  attr(document.querySelector('[data-act="replay"]'), { class: question.kind === "clip" ? null : "absent" });
  if (SIDES.some((side) => question[side].problem)) return;
  if (question.kind === "clip") play(shown, SIDES.map((side) => question[side].clip), sides);
  else ready(shown);
};

const ready = (shown) => { shown.ready = true; shown.since = performance.now(); attr($("main"), { "data-lease": shown.lease }); };

/** Load both clips, again and again without a connection, and play them. */
const play = async (shown, clips, sides) => {
  const { signal } = shown.close;
  for (let wait = 1000; !signal.aborted; wait = Math.min(2 * wait, 10000)) {
    const found = await Promise.allSettled(clips.map((hash) => load(hash, signal)));
    if (signal.aborted) return;
    const broken = found.map(({ reason }) => reason).map((error) => (error && [404, 422].includes(error.status) ? error.message : null));
    if (broken.some(Boolean)) {
      broken.forEach((said, i) => { if (said) sides[i].lastChild.replaceChildren(h("p", { class: "bad" }, said)); });
      return;
    }
    if (found.every(({ value }) => value)) {
      shown.player = new Player(found.map(({ value }) => value));
      shown.player.clips.forEach((one, i) => sides[i].lastChild.replaceChildren(one.element));
      shown.player.start();
      ready(shown);
      return;
    }
    if (found.some(({ reason }) => reason?.status === 401)) { advance(); return; }
    await new Promise((next) => setTimeout(next, wait));
  }
};

/** Show a sentence in place of a question. */
const instead = (title, note) => {
  state.shown?.close.abort();
  state.shown?.player?.close();
  state.shown = null;
  attr($("main"), { "data-lease": null });
  $("main").replaceChildren(h("section", { class: "empty" }, h("h2", null, title), note ? h("p", { class: "note" }, note) : null));
};

// ------------------------------------------------------------------------------------------------- what the server says

const counted = ({ name, answered, open }) => `${name}: ${answered} answered, ${open} open`;

const take = (told) => {
  if (state.outbox?.id !== told.id) state.outbox = new Outbox(told.id);
  if (!state.outbox.empty) return false; // of an earlier visit, or of another tab
  state.last = told.last;
  text($("state"), counted(told));
  $("acts").hidden = false;
  if (!told.question) instead("No question is left for you now.", "This page looks for new ones every 10 seconds.");
  else if (state.shown?.lease !== told.question.lease || state.shown.done) show(told.question);
  return true;
};

/** Send what is unacknowledged, then ask for the next question. */
const once = async () => {
  clearTimeout(state.timer);
  try {
    await enter("api/enter");
    let refused = [];
    if (state.outbox) refused = await state.outbox.send();
    if (!take(await ask("api/question", undefined, {}, { signal: AbortSignal.timeout(10000) }))) { state.again = true; return; }
    problem(refused.length ? `Not stored: ${refused.at(-1)}` : "");
    state.wait = 1000;
    if (!state.shown) state.timer = setTimeout(advance, LOOK_MS);
  } catch (error) {
    if (error.status === 401) { instead(error.message); $("acts").hidden = true; text($("state"), ""); problem(""); return; }
    const kept = state.outbox && !state.outbox.empty ? " Your answer is kept in this browser, and is sent again." : "";
    problem(error.status === 507 ? `The disk of the server is full: the answer is not stored.${kept}` : error.status ? `${error.message}.${kept}` : `No connection to the server.${kept}`);
    state.timer = setTimeout(advance, state.wait);
    state.wait = Math.min(2 * state.wait, 10000);
  }
};

const advance = async () => {
  state.again = true;
  if (state.running) return;
  state.running = true;
  try { while (state.again) { state.again = false; await once(); } } finally { state.running = false; }
};

// ------------------------------------------------------------------------------------------------ what an annotator does

const act = (name) => {
  const { shown, outbox } = state;
  if (name === "replay") { shown?.player?.play(); return; }
  if (!outbox || !outbox.empty || (shown && performance.now() - shown.since < REST_MS)) return;
  if (name === "undo") {
    if (state.last === null) { text($("state"), "There is nothing to undo."); return; }
    outbox.add(`undo ${state.last}`, "api/undo", { row: state.last });
  } else {
    if (!shown || shown.done || (!shown.ready && name !== "cannot_tell")) return;
    const latency_s = Math.min((performance.now() - shown.since) / 1000, LONGEST_S);
    outbox.add(`answer ${shown.lease}`, "api/answer", { lease: shown.lease, choice: name, latency_s });
  }
  if (shown) shown.done = true;
  text($("state"), "Sending");
  advance();
};

for (const button of document.querySelectorAll("[data-act]")) button.addEventListener("click", (event) => { if (event.detail < 2) act(button.dataset.act); });
addEventListener("keydown", (event) => {
  const name = KEYS[event.key];
  if (!name || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(name);
});
addEventListener("online", advance);
addEventListener("hashchange", advance);
document.addEventListener("visibilitychange", () => { if (!document.hidden) advance(); });
advance();
