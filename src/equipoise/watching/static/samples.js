// What a run made: the last completions of an evaluation, and clips of episodes.

import { h, text, keyed, query, short, number } from "./dom.js";

export class Samples {
  constructor(id) {
    this.id = id;
    this.head = h("tr");
    this.list = h("tbody");
    const table = h("table", { class: "completions" }, h("thead", null, this.head), this.list);
    this.clips = h("ul", { class: "clips" });
    this.when = h("p", { class: "note" });
    this.texts = h("section", { class: "card", "aria-label": "Completions", hidden: true }, h("h2", null, "Completions"), this.when, h("div", { class: "wide" }, table));
    this.films = h("section", { class: "card", "aria-label": "Clips", hidden: true }, h("h2", null, "Clips"), this.clips);
    this.element = h("div", { class: "samples", hidden: true }, this.texts, this.films);
  }

  update({ completions, clips }) {
    const texts = completions?.samples ?? [], films = clips ?? [];
    this.texts.hidden = !texts.length;
    this.films.hidden = !films.length;
    this.element.hidden = !texts.length && !films.length;
    text(this.when, texts.length ? `Evaluation at step ${short(completions.step)}: ${texts.length} of its answers.` : "");
    const names = [...new Set(texts.flatMap((one) => Object.keys(one.rewards ?? {})))];
    const head = ["prompt", "completion", "reward", ...names].map((name, i) => ({ name, i }));
    keyed(this.head, head, (one) => `${one.i} ${one.name}`, (one) => h("th", { scope: "col" }, one.name));
    const rows = texts.map((one, i) => ({ ...one, i, step: completions.step, names }));
    keyed(this.list, rows, (one) => JSON.stringify(one), (one) => h("tr", null,
      h("td", null, h("pre", { class: "prompt" }, one.prompt)),
      h("td", null, h("pre", null, one.completion || "(empty)")),
      ...[one.reward, ...names.map((name) => one.rewards?.[name])].map((x) => h("td", { class: "number" }, number(x, 2)))));
    keyed(this.clips, films, (one) => `${one.name} ${one.changed}`, (one) => h("li", null, h("video", { src: `api/clip?${query({ run: this.id, name: one.name, changed: one.changed })}`, controls: true, muted: true, preload: "metadata", "aria-label": one.name }), h("span", { class: "note" }, one.name)));
  }
}
