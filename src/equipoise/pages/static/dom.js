// Elements and numbers. Text of a run only ever becomes a text node: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

const put = (node, props, children) => {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.setAttribute("class", value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
};

export const h = (tag, props, ...children) => put(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => put(document.createElementNS(SVG, tag), props, children);

/** Set what changed: a text, attributes. */
export const text = (node, said) => { if (node.textContent !== said) node.textContent = said; };
export const attr = (node, values) => {
  for (const [key, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === false) node.removeAttribute(key);
    else if (node.getAttribute(key) !== String(value)) node.setAttribute(key, value);
  }
};

/** Children by key: those that stay keep their place in the page, their focus and their state. */
export const keyed = (parent, items, key, make, update) => {
  const known = parent.known ??= new Map();
  const wanted = new Set(items.map(key));
  for (const [name, child] of known) if (!wanted.has(name)) { child.remove(); known.delete(name); }
  items.forEach((item, i) => {
    const name = key(item);
    let child = known.get(name);
    if (!child) known.set(name, child = make(item));
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] ?? null);
    update?.(child, item, i);
  });
};

export const NONE = "—";
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

/** 12,288 as 12.3k. */
export const short = (x) => {
  if (!isNumber(x)) return NONE;
  const size = Math.abs(x);
  for (const [scale, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= 0.9995 * scale) return `${+(x / scale).toPrecision(3)}${letter}`;
  }
  return size >= 100 || Number.isInteger(x) ? `${Math.round(x)}` : `${+x.toPrecision(3)}`;
};
export const number = (x, decimals = 1) =>
  isNumber(x) ? x.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }) : NONE;
export const percent = (x) => (isNumber(x) ? `${Math.round(100 * x)} %` : NONE);
export const bytes = (x) => {
  if (!isNumber(x)) return NONE;
  for (const [scale, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (x >= 0.9995 * scale) return `${+(x / scale).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(x)} B`;
};
export const clock = (x) => {
  if (!isNumber(x)) return NONE;
  const t = Math.max(0, Math.floor(x)), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(t / 3600), minutes = Math.floor((t % 3600) / 60);
  return hours ? `${hours}:${two(minutes)}:${two(t % 60)}` : `${minutes}:${two(t % 60)}`;
};
export const ago = (x) =>
  x < 90 ? `${Math.round(x)} s` : x < 5400 ? `${Math.round(x / 60)} min` : x < 172800 ? `${Math.round(x / 3600)} h` : `${Math.round(x / 86400)} d`;
export const seconds = (x) =>
  x < 1e-3 ? `${+(x * 1e6).toPrecision(3)} µs` : x < 1 ? `${+(x * 1e3).toPrecision(3)} ms` : `${+x.toPrecision(3)} s`;
export const last = (name) => String(name ?? "").split(":").pop();

export const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

/** Ask the server; an answer that is no success is an Error with what it says. `how`: further options of fetch. */
export const ask = async (path, body, headers = {}, how = {}) => {
  const asked = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const answer = await fetch(path, { ...how, ...asked, headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers } });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error ?? `the server answered ${answer.status}`), { status: answer.status });
  return said;
};

export const query = (given) => {
  const words = new URLSearchParams();
  for (const [key, values] of Object.entries(given)) for (const value of [values].flat()) words.append(key, value);
  return words.toString();
};
