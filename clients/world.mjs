// A world for `equipoise train remote:tcp://HOST:PORT`: your game or simulator in JavaScript, one file, no dependencies (Node 18+).
//
//   import { EpisodeLost, RunOver, World, box, discrete } from "./world.mjs";
//
//   const world = await World.connect("tcp://127.0.0.1:7000", { observation: box([4]), action: discrete(2) });
//   try {
//     for (;;) {
//       try {
//         let action = await world.reset(game.start());
//         for (;;) {
//           const { obs, reward, over } = game.step(action);
//           if (over) { await world.end(obs, reward, { terminated: true }); break; }
//           action = await world.step(obs, reward);
//         }
//       } catch (error) {
//         if (!(error instanceof EpisodeLost)) throw error; // the run gave the episode up: begin another
//       }
//     }
//   } catch (error) {
//     if (!(error instanceof RunOver)) throw error; // training has ended
//   }
//
// An observation is a number, (nested) lists of numbers, an object of these for a Dict space, or a typed array (Float32Array,
// Uint8Array, ...), with a shape as array(typed, [84, 84]). An action comes as a number or as lists of numbers. If your game did
// another thing than it was told, say { took: ACTION }. What was lost, doubled or late on the way is mended here; a connection
// that breaks is made again, and the episode goes on where it was. The protocol: docs/guides/protocol.md.

import { randomBytes } from "node:crypto";
import { createConnection } from "node:net";

const VERSION = 1;
const MOST = 1 << 26; // bytes of a frame

/** The run gave this episode up, since the world was away for longer than its grace, or for a value that it sent. */
export class EpisodeLost extends Error {}

/** The run has ended. */
export class RunOver extends Error {}

/** The run does not take this world: `code` is version, token, space, frame, observe or gap. */
export class Refused extends Error {
  constructor(code, text) {
    super(`${code}: ${text}`);
    this.code = code;
  }
}

/** A space of arrays. `low`, `high`: a number for all places, or nested lists. */
export const box = (shape, low = "-inf", high = "inf", dtype = "float32") => ({ type: "Box", shape, dtype, low, high });

/** A space of the whole numbers from `start` to `start` + n - 1. */
export const discrete = (n, start = 0) => ({ type: "Discrete", n, start, dtype: "int64" });

/** A space of objects with a space for each key; the key `action_mask` says which actions are allowed now. */
export const mapping = (spaces) => ({ type: "Dict", spaces: Object.entries(spaces) });

const DTYPES = new Map([
  [Float32Array, "float32"], [Float64Array, "float64"], [Uint8Array, "uint8"], [Int8Array, "int8"], [Uint16Array, "uint16"],
  [Int16Array, "int16"], [Uint32Array, "uint32"], [Int32Array, "int32"],
]);

/** An array of the numbers of a typed array, in C order. */
export function array(typed, shape = [typed.length]) {
  const bytes = new Uint8Array(typed.buffer, typed.byteOffset, typed.byteLength);
  return new Packed({ dtype: DTYPES.get(typed.constructor), shape, data: bytes });
}

class Packed {
  constructor(value) {
    this.value = value;
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** One world, in one stream of a run. `stream`, `seed`: which one, and a seed for its randomness. */
export class World {
  #address; #hello; #patience; #timeout;
  #socket = null;
  #kept = Buffer.alloc(0);
  #messages = []; // that were not taken yet
  #full = false; // the run had no place for this world
  #broken = null; // why the connection ended
  #wakes = null; // who waits for a message
  #welcome = false; // by this connection: a beat before it would stand before the hello
  #life = ""; // of this world in the run; another one knows nothing of what was said in it
  #seq = -1; // of the last observation
  #running = false; // an episode
  #heartbeat = 1000;
  #beats = null;

  /** Connect, and wait until the run has a stream free. `token`: by default that in EQUIPOISE_WORLD_TOKEN.
   * `patience`: ms to try to connect; `timeout`: ms of a connection without a word. */
  static async connect(address, { observation, action, name, token, patience = 60000, timeout = 5000 }) {
    const world = new World();
    world.#address = address;
    world.#patience = patience;
    world.#timeout = timeout;
    const session = randomBytes(16).toString("hex");
    world.#hello = { kind: "hello", version: VERSION, session, name: name ?? `pid ${process.pid}`, observation, action };
    token ??= process.env.EQUIPOISE_WORLD_TOKEN;
    if (token) world.#hello.token = token;
    await world.#connect();
    world.#beat();
    return world;
  }

  /** Begin an episode with its first observation -> the first action. */
  async reset(obs) {
    this.#running = false;
    const answer = await this.#say({ obs, first: true });
    this.#running = true;
    return answer.action;
  }

  /** Say what followed from the last action -> the next one. Throws EpisodeLost where the run has given the episode up.
   * `took`: the action really taken, if it was another; `info`: numbers by name, for --metrics. */
  async step(obs, reward, { took, info } = {}) {
    return (await this.#say({ obs, reward, took, info })).action;
  }

  /** Say what followed from the last action of an episode. `terminated`: by itself; `truncated`: by a clock. */
  async end(obs, reward, { terminated = false, truncated = false, took, info } = {}) {
    if (!(terminated || truncated)) throw new RangeError("end: expected terminated or truncated to be true, got neither");
    try {
      await this.#say({ obs, reward, took, info, terminated, truncated });
    } catch (error) {
      if (!(error instanceof EpisodeLost)) throw error; // it is over anyway
    }
    this.#running = false;
  }

  /** Leave for good. */
  close() {
    this.#send({ kind: "bye" });
    this.#leave();
  }

  // ------------------------------------------------------------------------------------------------ messages and numbers

  /** Send an observation, again as often as it is lost, until its answer comes. */
  async #say(observation) {
    const message = { kind: "observe", seq: ++this.#seq, ...observation };
    this.#send(message);
    for (;;) {
      const answer = await this.#receive();
      if (answer === null) {
        if (!(await this.#connect())) { // the run knows nothing of this episode any more
          const lost = this.#running || !message.first;
          this.#running = false;
          if (lost) throw new EpisodeLost("the run gave up the episode: the world was away for too long");
          message.seq = this.#seq = 0;
        }
        this.#send(message);
      } else if (answer.kind === "act" && answer.seq === this.#seq) {
        if (!answer.lost) return answer;
        this.#running = false;
        throw new EpisodeLost("the run gave up the episode, for a value that it was sent");
      } else if (answer.kind === "beat" && (answer.seen < this.#seq || answer.answered >= this.#seq)) {
        this.#send(message); // it never came there, or its answer never came here
      }
    }
  }

  /** Connect, as often as it takes -> does the run still know this world? */
  async #connect() {
    let until = Date.now() + this.#patience;
    for (let ms = 50; ; ms = Math.min(2 * ms, 1000)) {
      this.#open();
      this.#send(this.#hello);
      let message;
      while ((message = await this.#receive()) !== null) {
        if (message.kind === "welcome") {
          const known = message.life === this.#life;
          this.#life = message.life;
          this.stream = message.stream;
          this.seed = message.seed;
          this.#heartbeat = 1000 * message.heartbeat_s;
          this.#welcome = true;
          if (!known) this.#seq = -1;
          return known;
        }
        until = Math.max(until, Date.now() + this.#patience); // "wait": no stream is free yet
      }
      if (this.#full) until = Math.max(until, Date.now() + this.#patience);
      if (Date.now() > until) {
        const why = this.#broken;
        this.#leave();
        throw new Error(`${this.#address}: expected a run that listens, got: ${why}`);
      }
      await pause(ms);
    }
  }

  #open() {
    this.#socket?.destroy();
    const unix = this.#address.startsWith("unix:");
    const [, host, port] = unix ? [] : /^tcp:\/\/\[?([^\]]+)\]?:(\d+)$/.exec(this.#address);
    const socket = createConnection(unix ? { path: this.#address.slice(5) } : { host, port: Number(port) });
    socket.setNoDelay(true);
    this.#socket = socket;
    this.#kept = Buffer.alloc(0);
    this.#messages = [];
    this.#broken = null;
    this.#full = this.#welcome = false;
    const ends = (why) => {
      if (this.#socket === socket && this.#broken === null) {
        this.#broken = why;
        this.#wakes?.();
      }
    };
    socket.on("error", (error) => ends(error.message));
    socket.on("close", () => ends("the end of the connection"));
    socket.on("data", (data) => {
      if (this.#socket === socket) this.#take(data, ends);
    });
  }

  #take(data, ends) {
    let kept = this.#kept.length ? Buffer.concat([this.#kept, data]) : data;
    while (kept.length >= 4 && kept.length >= 4 + kept.readUInt32BE(0)) {
      const size = 4 + kept.readUInt32BE(0);
      this.#messages.push(unpack(kept.subarray(4, size)));
      kept = kept.subarray(size);
    }
    this.#kept = kept;
    if (kept.length >= 4 && kept.readUInt32BE(0) > MOST) ends("a frame that is too large");
    this.#wakes?.();
  }

  /** The next message; null where the connection has ended, or says nothing for too long. */
  async #receive() {
    if (!this.#messages.length && this.#broken === null) {
      const ms = Math.max(this.#timeout, 3 * this.#heartbeat);
      let timer;
      await new Promise((resolve) => {
        this.#wakes = resolve;
        timer = setTimeout(resolve, ms);
      });
      clearTimeout(timer);
      this.#wakes = null;
    }
    const message = this.#messages.shift();
    if (message === undefined) {
      this.#broken ??= "no word";
      return null;
    }
    if (message.code === "full") { // as "wait": it comes again
      this.#full = true;
      this.#broken ??= message.text;
      return null;
    }
    if (message.kind === "refuse" || message.kind === "bye") {
      this.#leave();
      throw message.kind === "bye" ? new RunOver(message.text) : new Refused(message.code, message.text);
    }
    return message;
  }

  #send(message) {
    if (this.#broken === null && this.#socket !== null && !this.#socket.destroyed) {
      const body = pack(message);
      const head = Buffer.alloc(4);
      head.writeUInt32BE(body.length);
      this.#socket.write(Buffer.concat([head, body]));
    }
  }

  /** Say now and then that this world lives. */
  #beat() {
    this.#beats = setTimeout(() => {
      if (this.#welcome) this.#send({ kind: "beat" });
      this.#beat();
    }, this.#heartbeat / 2);
    this.#beats.unref();
  }

  #leave() {
    clearTimeout(this.#beats);
    this.#socket?.end();
    this.#socket?.unref();
    this.#socket = null;
  }
}

// -------------------------------------------------------------------------------------------------------------- msgpack

/** A value as msgpack: null, booleans, numbers, texts, bytes (Buffer), lists, objects, typed arrays. */
export function pack(value) {
  const parts = [];
  put(value, parts);
  return Buffer.concat(parts);
}

function sized(kind, size, parts) {
  const head = Buffer.alloc(5);
  head[0] = kind;
  head.writeUInt32BE(size, 1);
  parts.push(head);
}

function put(value, parts) {
  if (value === null || value === undefined) parts.push(Buffer.of(0xc0));
  else if (typeof value === "boolean") parts.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "number") {
    if (Number.isInteger(value) && value >= 0 && value < 128) parts.push(Buffer.of(value));
    else {
      const whole = Number.isInteger(value) && Math.abs(value) < 2 ** 31 && !Object.is(value, -0);
      const data = Buffer.alloc(whole ? 5 : 9);
      data[0] = whole ? 0xd2 : 0xcb;
      if (whole) data.writeInt32BE(value, 1);
      else data.writeDoubleBE(value, 1);
      parts.push(data);
    }
  } else if (typeof value === "string") {
    const data = Buffer.from(value);
    sized(0xdb, data.length, parts);
    parts.push(data);
  } else if (Array.isArray(value)) {
    sized(0xdd, value.length, parts);
    for (const item of value) put(item, parts);
  } else if (value instanceof Packed) {
    const { dtype, shape, data } = value.value;
    sized(0xdf, 3, parts);
    put("dtype", parts);
    put(dtype, parts);
    put("shape", parts);
    put(shape, parts);
    put("data", parts);
    sized(0xc6, data.length, parts);
    parts.push(data);
  } else if (DTYPES.has(value.constructor)) put(array(value), parts);
  else {
    const entries = Object.entries(value).filter(([, one]) => one !== undefined);
    sized(0xdf, entries.length, parts);
    for (const [key, one] of entries) {
      put(key, parts);
      put(one, parts);
    }
  }
}

/** The value that msgpack bytes are. */
export function unpack(data) {
  let at = 0;
  const size = { 0xc4: 1, 0xc5: 2, 0xc6: 4, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4 };
  const fixed = {
    0xca: ["readFloatBE", 4], 0xcb: ["readDoubleBE", 8], 0xcc: ["readUInt8", 1], 0xcd: ["readUInt16BE", 2],
    0xce: ["readUInt32BE", 4], 0xcf: ["readBigUInt64BE", 8], 0xd0: ["readInt8", 1], 0xd1: ["readInt16BE", 2],
    0xd2: ["readInt32BE", 4], 0xd3: ["readBigInt64BE", 8],
  };
  const read = () => {
    const kind = data[at++];
    if (kind < 0x80) return kind;
    if (kind >= 0xe0) return kind - 256;
    if (kind in fixed) {
      const [name, bytes] = fixed[kind];
      at += bytes;
      return Number(data[name](at - bytes));
    }
    if (kind === 0xc0) return null;
    if (kind === 0xc2 || kind === 0xc3) return kind === 0xc3;
    let count = kind >= 0xa0 ? kind & 0x1f : kind & 0x0f;
    if (kind in size) {
      count = data.readUIntBE(at, size[kind]);
      at += size[kind];
    } else if (kind >= 0xc0) throw new Error(`expected msgpack without extensions, got the byte ${kind}`);
    if ((kind >= 0xa0 && kind < 0xc0) || (kind >= 0xd9 && kind <= 0xdb)) {
      at += count;
      return data.toString("utf8", at - count, at);
    }
    if (kind >= 0xc4 && kind <= 0xc6) {
      at += count;
      return data.subarray(at - count, at);
    }
    if (kind >> 4 === 0x9 || kind === 0xdc || kind === 0xdd) return Array.from({ length: count }, read);
    const found = {};
    for (let i = 0; i < count; i++) {
      const key = read();
      found[key] = read();
    }
    return found;
  };
  return read();
}
