// CartPole in JavaScript, as a world: node cartpole.mjs ADDRESS WORLDS. The dynamics are those of Gymnasium's CartPole-v1.
import { EpisodeLost, RunOver, World, box, discrete } from "../../clients/world.mjs";

const GRAVITY = 9.8, CART = 1.0, POLE = 0.1, HALF = 0.5, FORCE = 10.0, TAU = 0.02, STEPS = 500;

function randoms(seed) { // mulberry32
  let a = seed;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export class CartPole {
  constructor(seed) {
    this.random = randoms(seed);
  }

  reset() {
    this.state = Array.from({ length: 4 }, () => this.random() * 0.1 - 0.05);
    this.steps = 0;
    return this.state;
  }

  step(action) {
    let [x, speed, angle, turning] = this.state;
    const sin = Math.sin(angle), cos = Math.cos(angle), mass = CART + POLE;
    const push = ((action === 1 ? FORCE : -FORCE) + POLE * HALF * turning ** 2 * sin) / mass;
    const turn = (GRAVITY * sin - cos * push) / (HALF * (4 / 3 - (POLE * cos ** 2) / mass));
    const drive = push - (POLE * HALF * turn * cos) / mass;
    x += TAU * speed;
    speed += TAU * drive;
    angle += TAU * turning;
    turning += TAU * turn;
    this.state = [x, speed, angle, turning];
    const terminated = Math.abs(x) > 2.4 || Math.abs(angle) > (12 * 2 * Math.PI) / 360;
    return { obs: this.state, reward: 1, terminated, truncated: ++this.steps >= STEPS };
  }
}

async function play(address) {
  try {
    const world = await World.connect(address, { observation: box([4]), action: discrete(2) });
    const env = new CartPole(world.seed);
    for (;;) {
      try {
        let action = await world.reset(env.reset());
        for (;;) {
          const { obs, reward, terminated, truncated } = env.step(action);
          if (terminated || truncated) {
            await world.end(obs, reward, { terminated, truncated });
            break;
          }
          action = await world.step(obs, reward);
        }
      } catch (error) {
        if (!(error instanceof EpisodeLost)) throw error;
      }
    }
  } catch (error) {
    if (!(error instanceof RunOver)) throw error;
  }
}

await Promise.all(Array.from({ length: Number(process.argv[3]) }, () => play(process.argv[2])));
