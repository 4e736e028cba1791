// Two clips in step: frames as images, or curves over time with a mark at the present step.

import { h } from "./dom.js";

const DASHES = [[], [8, 4], [2, 4], [11, 3, 2, 3], [14, 4], [5, 3], [1, 3, 6, 3], [3, 2]];
const PIXELATED = 240; // wide: smaller frames are shown with sharp pixels

/** A clip of the server: its head, and the bytes of its frames. */
export const load = async (hash, signal) => {
  const answer = await fetch(`api/clip/${hash}`, { signal });
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(said.error ?? `the server answered ${answer.status}`), { status: answer.status });
  }
  const data = await answer.arrayBuffer(), length = new DataView(data).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  return { ...head, pixels: new Uint8Array(data, 4 + length) };
};

class Frames {
  constructor(clip, side) {
    const [steps, height, width] = clip.frames;
    Object.assign(this, { steps, fps: clip.fps, pixels: clip.pixels, size: width * height });
    this.canvas = h("canvas", { width, height, role: "img", class: width < PIXELATED ? "sharp" : null, "aria-label": `${side} clip: ${steps} frames` });
    this.element = h("div", { class: "screen" }, this.canvas);
    this.context = this.canvas.getContext("2d");
    this.image = new ImageData(width, height);
  }

  draw(step) {
    const { pixels, size } = this, data = this.image.data;
    for (let i = 0, from = step * size * 3; i < size; i++, from += 3) {
      data[4 * i] = pixels[from]; data[4 * i + 1] = pixels[from + 1]; data[4 * i + 2] = pixels[from + 2]; data[4 * i + 3] = 255;
    }
    this.context.putImageData(this.image, 0, 0);
  }

  close() {}
}

class Curves {
  constructor(clip, side) {
    Object.assign(this, { steps: clip.steps, fps: clip.fps, curves: clip.curves, step: 0 });
    this.canvas = h("canvas", { role: "img", class: "curves", "aria-label": `${side} clip: ${clip.curves.length} curves over ${clip.steps} steps` });
    const names = clip.curves.map((one, i) => h("li", { class: `c${i % DASHES.length}` }, one.name));
    this.element = h("div", null, this.canvas, h("ul", { class: "legend" }, names, clip.more ? h("li", { class: "note" }, `and ${clip.more} more`) : null));
    this.watcher = new ResizeObserver(() => this.draw(this.step));
    this.watcher.observe(this.canvas);
  }

  get range() {
    const values = this.curves.flatMap((one) => one.points.map(([, y]) => y)).filter((y) => y !== null);
    return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : [0, 1];
  }

  draw(step) {
    this.step = step;
    const { canvas } = this, dots = devicePixelRatio, wide = canvas.clientWidth, high = canvas.clientHeight;
    if (!wide) return;
    canvas.width = wide * dots; canvas.height = high * dots;
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas), colour = (name) => style.getPropertyValue(name).trim();
    pen.scale(dots, dots);
    const [low, top] = this.shared, [last, span] = [this.longest - 1 || 1, top - low || 1];
    const X = (x) => 8 + ((wide - 16) * x) / last, Y = (y) => 20 + (high - 40) * (1 - (y - low) / span);
    pen.font = `12px ${style.fontFamily}`; pen.fillStyle = colour("--soft");
    pen.fillText(String(+top.toPrecision(4)), 8, 13); pen.fillText(String(+low.toPrecision(4)), 8, high - 5);
    this.curves.forEach((one, i) => {
      pen.strokeStyle = colour(`--s${i % DASHES.length}`); pen.lineWidth = 1.8; pen.setLineDash(DASHES[i % DASHES.length]);
      pen.beginPath();
      let on = false;
      for (const [x, y] of one.points) { if (y === null) on = false; else { pen[on ? "lineTo" : "moveTo"](X(x), Y(y)); on = true; } }
      pen.stroke();
    });
    pen.setLineDash([]); pen.strokeStyle = colour("--ink"); pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(X(step), 18); pen.lineTo(X(step), high - 18); pen.stroke();
  }

  close() { this.watcher.disconnect(); }
}

/** Two clips, played in step by one clock; the shorter one waits at its end. */
export class Player {
  constructor(clips) {
    this.clips = clips.map((clip, i) => new (clip.frames ? Frames : Curves)(clip, ["Left", "Right"][i]));
    const curves = this.clips.filter((one) => one instanceof Curves), ranges = curves.map((one) => one.range);
    for (const one of curves) {
      one.shared = [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, top]) => top))];
      one.longest = Math.max(...curves.map(({ steps }) => steps));
    }
    this.calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => { for (const one of curves) one.draw(one.step); };
    this.scheme.addEventListener("change", this.redraw);
  }

  start() { if (this.calm) this.show(0); else this.play(); }

  play() {
    cancelAnimationFrame(this.next);
    const began = performance.now();
    const turn = (now) => { if (this.show(Math.max(0, now - began) / 1000)) this.next = requestAnimationFrame(turn); };
    turn(began);
  }

  /** Draw the steps at a time in seconds; is there more to come? */
  show(seconds) {
    let more = false;
    for (const one of this.clips) {
      const step = Math.floor(seconds * one.fps + 1e-6);
      one.draw(Math.min(step, one.steps - 1));
      more ||= step < one.steps - 1;
    }
    return more;
  }

  close() { cancelAnimationFrame(this.next); this.scheme.removeEventListener("change", this.redraw); for (const one of this.clips) one.close(); }
}
