// A client of `equipoise serve` for Node and browsers: one file without dependencies.
//
//   import { Client } from "./client.mjs";
//   const client = new Client("http://127.0.0.1:8000");
//   const { action, id } = await client.act([0, 0.1, 0, 0.2]);
//   await client.outcome(id, { reward: 1 });
//
//   const episode = client.episode();          // of a policy with a memory
//   const first = await episode.act(obs);      // begins it; then episode.act(obs, { done: true }), or await episode.end()
//
// A page in a browser may ask where the server was started with --allow-origin and the page's origin.

/** The server refused: `status` as in HTTP, and its sentence as `message`. */
export class ServeError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.name = "ServeError";
    this.status = status;
  }
}

export class Client {
  /** `token`: where the server asks for one. `timeoutMs`: the longest that an answer may take. */
  constructor(url = "http://127.0.0.1:8000", { token = undefined, timeoutMs = 10_000 } = {}) {
    this.url = url.replace(/\/$/, "");
    this.timeoutMs = timeoutMs;
    this.headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
  }

  /** One decision: `given` may have session, first, done, unit, deterministic, version, deadline_ms. */
  act(obs, given = {}) {
    return this.#ask("POST", "/v1/act", { obs: plain(obs), ...given });
  }

  /** What became of a decision: `reward`, `data`; it is stored when this is fulfilled. */
  async outcome(id, { reward = null, data = null } = {}) {
    await this.#ask("POST", "/v1/outcome", { id, reward, data });
  }

  async end(session) {
    await this.#ask("POST", "/v1/end", { session });
  }

  /** What the server serves, and what is wrong with it (`alarms`). */
  state() {
    return this.#ask("GET", "/readyz");
  }

  /** An episode that keeps its name and `first`. */
  episode(name = crypto.randomUUID(), given = {}) {
    let open = false;
    return {
      name,
      act: async (obs, more = {}) => {
        const decision = await this.act(obs, { ...given, ...more, session: name, first: !open });
        open = !more.done;
        return decision;
      },
      end: async () => {
        if (open) await this.end(name);
        open = false;
      },
    };
  }

  async #ask(method, path, given) {
    let answer;
    try {
      answer = await fetch(this.url + path, {
        method,
        headers: this.headers,
        body: given && JSON.stringify(given),
        signal: AbortSignal.timeout(this.timeoutMs),
      });
    } catch (error) {
      const got = error.name === "TimeoutError" ? `no answer within ${this.timeoutMs} ms` : (error.cause?.message ?? error.message);
      throw new Error(`${this.url}: expected a server that answers, got ${got}; 'equipoise serve' starts one`, { cause: error });
    }
    const said = await answer.json().catch(() => ({ error: `expected JSON, got ${answer.statusText}` }));
    if (!answer.ok) throw new ServeError(answer.status, said.error ?? answer.statusText);
    return said;
  }
}

/** Typed arrays as lists, also within objects. */
function plain(value) {
  if (ArrayBuffer.isView(value)) return Array.from(value);
  if (Array.isArray(value)) return value.map(plain);
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, plain(one)]));
  return value;
}
