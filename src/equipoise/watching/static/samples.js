// What a run made: the last completions of an evaluation, and clips of episodes.

import { h, text, keyed, query, short, number } from "./dom.js";

export class Samples {
  constructor(id) {
    this.id = id;
    this.list = h("ol", { class: "completions" });
    this.clips = h("ul", { class: "clips" });
    this.when = h("p", { class: "note" });
    this.texts = h("section", { class: "card", "aria-label": "Completions", hidden: true }, h("h2", null, "Completions"), this.when, this.list);
    this.films = h("section", { class: "card", "aria-label": "Clips", hidden: true }, h("h2", null, "Clips"), this.clips);
    this.element = h("div", { class: "samples", hidden: true }, this.texts, this.films);
  }

  update({ completions, clips }) {
    const texts = completions?.samples ?? [], films = clips ?? [];
    this.texts.hidden = !texts.length;
    this.films.hidden = !films.length;
    this.element.hidden = !texts.length && !films.length;
    text(this.when, texts.length ? `Evaluation at step ${short(completions.step)}: ${texts.length} of its answers.` : "");
    keyed(this.list, texts, (one) => `${completions.step} ${one.prompt} ${one.completion} ${one.reward}`, (one) => h("li", null, h("pre", { class: "prompt" }, one.prompt), h("pre", null, one.completion || "(empty)"), h("span", { class: "note" }, `reward ${number(one.reward, 2)}`)));
    keyed(this.clips, films, (one) => `${one.name} ${one.changed}`, (one) => h("li", null, h("video", { src: `api/clip?${query({ run: this.id, name: one.name, changed: one.changed })}`, controls: true, muted: true, preload: "metadata", "aria-label": one.name }), h("span", { class: "note" }, one.name)));
  }
}
