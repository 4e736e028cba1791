// What the server has not acknowledged: kept in the browser, over reloads, and sent until it is.
// Several tabs may send the same entry: the server takes it once.

import { ask } from "./dom.js";

const WAIT_MS = 10000; // for an acknowledgement
const REFUSED = [400, 409]; // an entry that will never be taken

export class Outbox {
  /** `id`: names an annotator of a store. */
  constructor(id) { this.id = id; this.prefix = `equipoise label ${id} `; this.memory = new Map(); }

  add(name, path, body) {
    const entry = { path, body, at: Date.now() };
    this.memory.set(this.prefix + name, entry);
    try { localStorage.setItem(this.prefix + name, JSON.stringify(entry)); } catch { /* a full or closed storage: memory has it */ }
  }

  remove(key) {
    this.memory.delete(key);
    try { localStorage.removeItem(key); } catch { /* it never held anything */ }
  }

  /** [key, entry] of all, the oldest first. */
  get entries() {
    const found = new Map(this.memory);
    try {
      for (const key of Object.keys(localStorage)) {
        const kept = key.startsWith(this.prefix) && !found.has(key) ? JSON.parse(localStorage.getItem(key)) : null;
        if (kept) found.set(key, kept);
      }
    } catch { /* memory has those of this tab */ }
    return [...found].sort((a, b) => a[1].at - b[1].at);
  }

  get empty() { return this.entries.length === 0; }

  /** Send all -> why the server refused some; throws if one was not acknowledged, and keeps it. */
  async send() {
    const refused = [];
    for (const [key, { path, body }] of this.entries) {
      try {
        await ask(path, body, {}, { signal: AbortSignal.timeout(WAIT_MS) });
      } catch (error) {
        if (!REFUSED.includes(error.status)) throw error;
        refused.push(error.message);
      }
      this.remove(key);
    }
    return refused;
  }
}
